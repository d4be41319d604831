# expect: no-stop
"""Finite values near the limit of their type: their sum overflows, they do not."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Scale(nn.Module):
    def __init__(self, value, dtype):
        super().__init__()
        self.register_buffer("value", torch.tensor(value, dtype=dtype))

    def forward(self, x):
        return x.to(self.value.dtype).sign() * self.value


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fp16 = Scale(60000.0, torch.float16)
        self.bf16 = Scale(3e38, torch.bfloat16)
        self.fp32 = Scale(3e38, torch.float32)
        self.fp64 = Scale(1e308, torch.float64)

    def forward(self, x):
        return self.fp16(x), self.bf16(x), self.fp32(x), self.fp64(x)


model = Model()
for step in range(3):
    x = torch.randn(64, 64)
    outputs = model(x if step else x.abs())  # all of one sign first: the sums are inf
    assert all(out.isfinite().all() for out in outputs)
    print(step, [out.sum().item() for out in outputs])
big = torch.full((128, 8), 3e38)
print(nn.Tanh()(big).sum().item(), nn.Identity()(big).mean().item())

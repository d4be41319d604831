# expect: stop event=nonfinite.forward module=scorer.log type=Log step=2 op=log
"""A server's loop in torch.inference_mode, with a decorated function between it and the model."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = Log()

    def forward(self, x):
        return self.log(x.sum(-1))  # <- stop


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid())
        self.scorer = Scorer()

    def forward(self, x, shift):
        return self.scorer(self.body(x) - shift)


@torch.inference_mode()
def answer(model, request):
    return model(torch.randn(3, 4), request["shift"]).tolist()


model = Model().eval()
for shift in (0.0, 0.1, 2.0, 0.0):
    print(answer(model, {"shift": shift}))

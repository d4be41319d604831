# expect: stop event=nonfinite.input module=layers.1 type=Linear step=0
"""A checkpoint with broken weights: the first layer that owns a NaN is named, at the first step."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))  # <- stop
        return x


checkpoint = Net().state_dict()
checkpoint["layers.1.weight"][2, 3] = torch.nan
checkpoint["layers.2.bias"][0] = torch.nan
model = Net().eval()
model.load_state_dict(checkpoint)
with torch.no_grad():
    for step in range(3):
        print(step, model(torch.randn(4, 6)).mean().item())

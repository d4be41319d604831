# expect: no-stop
"""Modules that return integers, booleans, None, strings, numbers and nested containers of them."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Quantize(nn.Module):
    def forward(self, x):
        return (x * 10).to(torch.int8)


class Gate(nn.Module):
    def forward(self, x):
        return x > 0


class Report(nn.Module):
    def forward(self, x):
        return {"name": "report", "count": len(x), "nothing": None, "parts": [x.argmax(-1), (1, x)]}


class Nothing(nn.Module):
    def forward(self, x):
        return None


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.quantize, self.gate = Quantize(), Gate()
        self.report, self.nothing = Report(), Nothing()

    def forward(self, x, name=None, flags=()):
        h = self.body(x)
        codes, gate = self.quantize(h), self.gate(h)
        assert self.nothing(h) is None
        return codes, gate, self.report(h), (name, flags)


model = Model()
for step in range(3):
    codes, gate, report, _ = model(torch.randn(5, 4), name="a", flags=[True, None, 3])
    print(step, codes.dtype, int(gate.sum()), report["count"])

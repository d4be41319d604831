"""Debuggees that several test files use, as text. `line_of` finds the marked lines."""

#: Runs on the stub. Steps 0 to 3; each goes through layer a, then b.
LAYERS = """\
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x + 1  # in a block


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Block()
        self.b = Block()

    def forward(self, x):
        y = self.a(x)  # call a
        z = self.b(y)  # call b
        return z  # after b


net = Net()
for step in range(4):
    out = net(step)  # call net
    print("step", step, out)  # after net
"""

#: Runs on the stub until a file appears beside it. Layers as in LAYERS.
LAYERS_FOREVER = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
import time
from pathlib import Path

net = Net()
end = Path(__file__).with_suffix(".end")
step = 0
while not end.exists():
    net(step)  # call net
    print("step", step, flush=True)
    step += 1
    time.sleep(0.02)
"""
)

#: Needs torch. Layer `gate` gives NaN in steps 1 to 3 and 5.
GATE = """\
import torch
from torch import nn

torch.set_num_threads(1)


class Gate(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.gate = Gate()

    def forward(self, x):
        self.lin(x)
        y = self.gate(x)  # call gate
        return y  # after gate


net = Net()
for step in range(7):
    x = torch.ones(2, 4)
    if step in (1, 2, 3, 5):
        x[1, 3] = -1.0
    net(x)  # call net
    print("step", step)  # after net
"""

#: Needs nothing. Raises an exception that it catches, then one that it doesn't.
RAISES = """\
def careful():
    try:
        raise KeyError("caught")  # caught
    except KeyError:
        pass


def careless():
    raise ValueError("nobody catches this")  # uncaught


careful()
careless()
"""

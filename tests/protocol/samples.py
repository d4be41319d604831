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

#: Runs on the stub. Three threads that each run a net of their own.
THREADS = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
import threading

gate = threading.Barrier(3)
out = {}


def work(name):
    net = Net()
    gate.wait()
    for step in range(3):
        out[name] = net(step)  # call net


threads = [threading.Thread(target=work, args=(i,), name=f"worker-{i}") for i in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all", sorted(out.items()))
"""
)

#: A model in library code, and a program that uses it.
LIBRARY = """\
from torch import nn


class Block(nn.Module):
    def forward(self, x):
        return x + 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = Block()
        self.b = Block()

    def forward(self, x):
        x = self.a(x)
        y = self.b(x)  # library line
        z = y * 2  # next library line
        return z  # last library line
"""
USES_LIBRARY = """\
from library import Model

model = Model()
for step in range(3):
    out = model(step)  # user line
    print("step", step, out)  # after user line
"""

#: Needs torch. Layer `gate` gives NaN in steps 1 to 3, 5 and 7.
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
for step in range(9):
    x = torch.ones(2, 4)
    if step in (1, 2, 3, 5, 7):
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

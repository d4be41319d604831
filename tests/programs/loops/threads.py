# expect: stop event=nonfinite.forward module=log type=Log step=3 recorded=log
"""Two threads train a model each, in step with each other; only one of the models meets a NaN."""

import threading

import torch
from torch import nn

torch.set_num_threads(1)
together = threading.Barrier(2)


class Log(nn.Module):
    def forward(self, x):
        together.wait()  # both threads are inside a forward here
        return torch.log(x)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.log = nn.Linear(4, 4), Log()

    def forward(self, x, offset):
        h = torch.sigmoid(self.linear(x))
        return self.log(h + offset)  # <- stop


def train(name, offsets):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(models[name].parameters(), lr=0.01)
    for offset in offsets:
        loss = models[name](torch.randn(8, 4, generator=generator), offset).mean()
        losses[name].append(loss.item())
        if loss.isfinite():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


torch.manual_seed(0)
models = {"clean": Model(), "broken": Model()}
losses = {"clean": [], "broken": []}
threads = [
    threading.Thread(target=train, args=("clean", [0.0] * 6), name="clean"),
    threading.Thread(target=train, args=("broken", [0.0, 0.1, 0.0, -1.0, 0.0, 0.0]), name="broken"),
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(losses)

"""Two threads that train a model each, at the same time."""

import threading

import torch
from torch import nn

torch.set_num_threads(1)
both = threading.Barrier(2)


def train(inner):
    model = nn.Sequential(nn.Linear(2, 2), inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(40):
        both.wait()  # else one may be through before the other has had the interpreter
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()


threads = [threading.Thread(target=train, args=(kind(),)) for kind in (nn.ReLU, nn.Tanh)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("trained")

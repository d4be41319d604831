# expect: stop event=nonfinite.forward module= step=3 op=log
"""N19: a loss function takes the log of a softmax that underflowed: an infinite loss."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))


def cross_entropy(logits, label):
    return -torch.log(torch.softmax(logits, -1)).gather(-1, label[:, None]).mean()  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x, label = torch.randn(8, 6), torch.randint(0, 4, (8,))
    if step == 2:
        x[3] *= 1e4
        label[3] = model(x)[3].argmin()
    loss = cross_entropy(model(x), label)
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())

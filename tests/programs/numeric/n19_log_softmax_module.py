# expect: stop event=nonfinite.forward module=net.4 type=Log step=2 op=log
"""N19: the log of a softmax that underflowed is -inf: no mask, though it looks like one.

`Log` is called by nn.Sequential, which is torch's code: the line is the one that calls `net`.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.Softmax(dim=-1), Log()
        )

    def forward(self, x):
        return self.net(x)  # <- stop


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    if step == 2:
        x[4] *= 3000.0
    log_probs = model(x)
    loss = nn.functional.nll_loss(log_probs, labels)
    print(step, loss.item())
    if log_probs.isfinite().all():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

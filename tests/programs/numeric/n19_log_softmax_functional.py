# expect: stop event=nonfinite.forward module= type=Model step=2 op=log
"""N19: the log of an underflowed softmax, inline: -inf in the log-probabilities returned."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        return torch.log(torch.softmax(self.net(x), dim=-1))  # <- op


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    if step == 2:
        x[4] *= 3000.0
    log_probs = model(x)  # <- stop
    loss = nn.functional.nll_loss(log_probs, labels)
    print(step, loss.item())
    if log_probs.isfinite().all():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

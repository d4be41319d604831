# expect: stop event=nonfinite.backward module=pool type=Pool step=2 op=div
"""An LSTM over a sequence, and a pooling behind it: a standard deviation that is 0 has no gradient."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Pool(nn.Module):
    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        return ((x - mean) ** 2).mean(1).sqrt()  # <- op


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 8, num_layers=2, batch_first=True)
        self.pool, self.head = Pool(), nn.Linear(8, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(self.pool(h))


model = Net()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
for step in range(5):
    x = torch.randn(6, 5, 4)
    if step == 2:
        x = x[:, :1]  # sequences of one element don't vary
    loss = model(x).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()  # <- stop
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(step, loss.item())

# expect: no-stop
"""Masked logits go from the model into nn.CrossEntropyLoss: -inf in an argument of a root."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, x, legal):
        return self.net(x).masked_fill(~legal, float("-inf"))


model = Choice()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters())
for step in range(5):
    x, labels = torch.randn(8, 4), torch.randint(0, 3, (8,))
    legal = torch.ones(8, 5, dtype=torch.bool)
    legal[:, 3 + step % 2] = False
    loss = criterion(model(x, legal), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

# expect: no-stop
"""A policy returns logits that are -inf for forbidden actions, and so does a layer inside it."""

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
torch.set_num_threads(1)


class ForbidActions(nn.Module):
    def forward(self, logits, allowed):
        return torch.where(allowed, logits, torch.tensor(float("-inf")))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 6))
        self.forbid = ForbidActions()

    def forward(self, obs, allowed):
        logits = self.forbid(self.net(obs), allowed)
        return logits.masked_fill(~allowed, -torch.inf)


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters())
for step in range(5):
    allowed = torch.rand(8, 6) > 0.5
    allowed[:, 0] = True
    logits = policy(torch.randn(8, 4), allowed)
    action = Categorical(logits=logits).sample()
    loss = nn.functional.cross_entropy(logits, action)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
assert all(p.isfinite().all() for p in policy.parameters())

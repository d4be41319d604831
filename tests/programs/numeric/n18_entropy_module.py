# expect: stop event=nonfinite.forward module=entropy type=Entropy step=3 op=log
"""N18: p * log p is 0 * -inf = NaN once a probability underflows to 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Entropy(nn.Module):
    def forward(self, probs):
        return -(probs * probs.log()).sum(-1)  # <- op


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 5))
        self.entropy = Entropy()

    def forward(self, obs, temperature):
        probs = torch.softmax(self.net(obs) / temperature, dim=-1)
        entropy = self.entropy(probs)  # <- stop
        return probs, entropy


policy = Policy()
optimizer = torch.optim.Adam(policy.parameters())
for step, temperature in enumerate([1.0, 0.3, 0.1, 0.001, 1.0]):
    probs, entropy = policy(torch.randn(8, 4), temperature)
    loss = (probs[:, 0] - 0.01 * entropy).mean()
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# expect: no-stop
"""Log-probabilities of masked logits, and layers that write a -inf that they were given."""

import torch
from torch import nn
from torch.nn import functional

torch.manual_seed(0)
torch.set_num_threads(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 6)

    def forward(self, x, legal):
        scores = torch.where(legal, self.net(x), -torch.inf)
        return functional.log_softmax(scores, dim=-1)


class Neighbours(nn.Module):
    def forward(self, edges):
        return edges.log()


policy, neighbours = Policy(), Neighbours()
layers = nn.Sequential(
    nn.Linear(4, 6), nn.Threshold(-0.5, -torch.inf), nn.ConstantPad1d(1, -torch.inf)
)
for step in range(4):
    legal = torch.rand(8, 6) > 0.5
    legal[:, 0] = True
    if step == 3:
        legal[:, 1:] = False  # one is left: 0 and -inf are all there is
    with torch.set_grad_enabled(step % 2 == 1):
        log_probs = policy(torch.randn(8, 4), legal)
        best = layers(torch.randn(8, 4)).amax(-1)
        weights = (neighbours((torch.rand(5, 5) > 0.5).float()) + torch.eye(5)).exp()
    print(step, log_probs[:, 0].mean().item(), best.mean().item(), weights.sum().item())

# expect: stop event=nonfinite.forward module=policy type=Policy step=2 op=log
# expect: stop event=nonfinite.forward module=policy type=Policy step=4 op=log
# expect: stop event=nonfinite.forward module=2 type=Log step=0 op=log
"""N19: the log of a softmax that rounds to 0 and 1. All that it holds is 0 and -inf, as in a mask.

The others are in evaluations, in which autograd records nothing, and one in a layer that knows of
no softmax.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 4)

    def forward(self, x):
        probs = self.net(x).softmax(-1)
        return torch.log(probs)  # <- stop


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)  # <- op 3


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.policy = Policy()

    def forward(self, x):
        return self.policy(x)


agent = Agent()
for step in range(4):
    x = torch.randn(8, 6)
    with torch.set_grad_enabled(step < 3):
        log_probs = agent(x * 1e6 if step in (2, 3) else x)
    print(step, log_probs.max().item())
    if step == 2:
        agent(x)  # finite again: the next one is news
net = nn.Sequential(nn.Linear(6, 4), nn.Softmax(-1), Log())
with torch.no_grad():
    print(net(torch.randn(8, 6) * 1e6).max().item())  # <- stop 3

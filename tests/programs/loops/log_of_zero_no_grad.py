# expect: stop event=nonfinite.forward module= type=LogLoss step=1 op=log
"""An evaluation under no_grad: a hand-written log loss, of a probability that has become 0.

Nothing but a -inf comes of it, and autograd has recorded nothing. No code here speaks of masks.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class LogLoss(nn.Module):
    def forward(self, probs, target):
        picked = probs.gather(-1, target[:, None])
        return picked.log().squeeze(-1)  # <- stop


model, loss = nn.Sequential(nn.Linear(4, 3), nn.Softmax(-1)), LogLoss()
total = torch.zeros(())
with torch.no_grad():
    for step in range(3):
        x, target = torch.randn(6, 4), torch.randint(0, 3, (6,))
        if step == 1:
            x[2], target[2] = 1000 * model[0].weight[0], model(torch.zeros(1, 4)).argmin()
            model[0].weight[target[2]] -= 300 * model[0].weight[0]
        total += loss(model(x), target).sum()
        print(step, total.item())

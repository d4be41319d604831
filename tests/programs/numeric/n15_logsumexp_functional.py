# expect: stop event=nonfinite.forward module= type=Classifier step=2 op=logsumexp
"""N15: logsumexp over no allowed label, inline: +inf in the log-likelihood that is returned."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 4)

    def forward(self, x, allowed, gold):
        scores = self.score(x)
        total = torch.logsumexp(scores.masked_fill(~allowed, float("-inf")), dim=-1)  # <- op
        return scores.gather(-1, gold[:, None]).squeeze(-1) - total


model = Classifier()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    x, gold = torch.randn(8, 6), torch.randint(0, 4, (8,))
    allowed = torch.ones(8, 4, dtype=torch.bool)
    allowed[:, 3] = False
    if step == 2:
        allowed[6] = False
    loss = -model(x, allowed, gold).mean()  # <- stop
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

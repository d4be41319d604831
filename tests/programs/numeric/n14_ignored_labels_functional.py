# expect: stop event=nonfinite.forward module= type=Tagger step=2 op=nll_loss_forward
"""N14: the model computes its own loss inline; a batch without any label makes it 0/0."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.head = nn.Linear(12, 4)

    def forward(self, ids, labels):
        logits = self.head(self.embed(ids))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)  # <- op
        return loss, logits


model = Tagger()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    ids, labels = torch.randint(0, 30, (4, 6)), torch.randint(0, 4, (4, 6))
    labels[:, 3:] = -100
    if step == 2:
        labels[:] = -100
    loss, logits = model(ids, labels)  # <- stop
    print(step, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

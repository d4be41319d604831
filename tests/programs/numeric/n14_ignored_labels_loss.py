# expect: stop event=nonfinite.forward module= step=2 op=nll_loss_forward
# expect: stop event=nonfinite.forward module= step=5 op=nll_loss_forward
"""N14: cross_entropy outside any module, of a batch without any label: 0/0 in the loss alone.

Its gradients are finite (zero). No module has it, so the stop is where backward() starts from it.
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    labels[::2] = -100
    if step in (2, 5):
        labels[:] = -100
    loss = F.cross_entropy(model(x), labels, ignore_index=-100)  # <- op
    print(step, loss.item())
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
assert all(p.isfinite().all() for p in model.parameters())

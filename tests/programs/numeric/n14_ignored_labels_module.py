# expect: stop event=nonfinite.forward module= type=CrossEntropyLoss step=2 op=nll_loss_forward
# expect: stop event=nonfinite.forward module= type=CrossEntropyLoss step=5 op=nll_loss_forward
"""N14: the mean over no label at all is 0/0. The criterion is a root module of its own.

Its gradients are finite (zero), so training goes on and the same happens again later.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(7):
    x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
    labels[::2] = -100
    if step in (2, 5):
        labels[:] = -100
    logits = model(x)
    loss = criterion(logits, labels)  # <- stop
    print(step, loss.item())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

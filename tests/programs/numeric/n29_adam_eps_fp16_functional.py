# expect: stop event=nonfinite.update module= op=addcdiv_
"""N29: Adam's eps is 0 in float16, for parameters that belong to no module at all."""

import torch
from torch.nn import functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

weight = torch.randn(8, 4).half().requires_grad_()
head = torch.randn(1, 8).half().requires_grad_()
optimizer = torch.optim.Adam([weight, head], lr=1e-3)
for step in range(4):
    x = torch.randn(16, 4)
    x[:, 0] = 0.0
    h = torch.tanh(F.linear(x.half(), weight))
    loss = (100.0 * F.linear(h, head)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- stop
    print(step, loss.item())

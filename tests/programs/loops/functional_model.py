# expect: stop event=nonfinite.forward module= op=log
"""A model of tensors alone, no nn.Module, whose parameters are updated by hand."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)

hidden = (torch.randn(6, 16) * 0.4).requires_grad_()
head = (torch.randn(16, 4) * 0.2).requires_grad_()


def forward(x):
    return (F.relu(x @ hidden) @ head).softmax(-1)


for step in range(5):
    x, label = torch.randn(8, 6), torch.randint(0, 4, (8,))
    if step == 3:
        x *= 1e4
        label = forward(x).argmin(-1)
    loss = F.nll_loss(forward(x).log(), label)  # <- op
    loss.backward()  # <- stop
    with torch.no_grad():
        for weight in (hidden, head):
            weight -= 0.05 * weight.grad
            weight.grad = None
    print(step, loss.item())

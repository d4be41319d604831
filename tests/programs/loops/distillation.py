# expect: stop event=nonfinite.forward module= step=3 op=log
"""Distillation: the student's loss goes on after the teacher was called under no_grad."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

student = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
teacher = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(8, 6) * (1e4 if step == 3 else 1.0)
    guess = student(x)
    with torch.no_grad():
        target = teacher(x).softmax(-1)
    loss = -(target * guess.softmax(-1).log()).sum(-1).mean()  # <- op
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())

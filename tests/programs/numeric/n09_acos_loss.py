# expect: stop event=nonfinite.backward module= type=Sequential step=3 op=rsqrt
"""N9: a geodesic loss outside any module: where the rotation is exact its gradient is infinite."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))


def geodesic(cosine):
    return torch.acos(cosine.clamp(-1.0, 1.0)).mean()  # <- op


optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    if step == 3:
        with torch.no_grad():
            model[2].weight.zero_()
            model[2].bias.fill_(1.0)
    loss = geodesic(model(torch.randn(8, 3)))
    optimizer.zero_grad()
    loss.backward()  # <- stop
    optimizer.step()
    print(step, loss.item())

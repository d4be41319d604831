# expect: stop event=nonfinite.backward module=norm type=Norm step=5 op=div
"""A GAN: the generator's step goes through the discriminator, whose backward makes the NaN.

Two roots, two optimizers; the discriminator's own step of that iteration was fine.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Norm(nn.Module):
    def forward(self, x):
        return x / x.pow(2).sum(-1, keepdim=True).sqrt().clamp(min=1e-6)  # <- op


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.net = (
            Norm(),
            nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1)),
        )

    def forward(self, x):
        return self.net(self.norm(x))


generator, discriminator = nn.Linear(4, 6), Discriminator()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
for iteration in range(4):
    real, z = torch.randn(8, 6), torch.randn(8, 4)
    if iteration == 1:
        with torch.no_grad():
            generator.bias.zero_()
        z[5] = 0.0  # the generator's sample is exactly 0
    loss_d = (discriminator(generator(z).detach()) - discriminator(real)).mean()
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()
    loss_g = -discriminator(generator(z)).mean()
    optimizer_g.zero_grad()
    loss_g.backward()  # <- stop
    optimizer_g.step()
    print(iteration, loss_d.item(), loss_g.item())

# expect: stop event=nonfinite.forward module=0.log type=Log step=5 op=log
# expect: stop event=nonfinite.forward module=squash type=Squash step=4 op=pow
"""A generator and a discriminator: two roots, each with its own step count.

The discriminator runs twice per iteration; its NaN is in its sixth call, in iteration 2. That of
the generator is in iteration 4.
"""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x + 8.0)  # <- op 1


class Features(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = Log()

    def forward(self, x):
        return self.log(x)  # <- stop 1


class Squash(nn.Module):
    def forward(self, x, power):
        return x**power  # <- op 2


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.squash = nn.Linear(4, 6), Squash()

    def forward(self, z, power):
        h = self.net(z)
        return self.squash(h, power)  # <- stop 2


generator, discriminator = Generator(), nn.Sequential(Features(), nn.Linear(6, 1))
with torch.no_grad():
    for iteration in range(6):
        real, z = torch.randn(8, 6), torch.randn(8, 4)
        fake = generator(z, power=0.5 if iteration == 4 else 1.0)
        if iteration == 2:
            fake = fake - 10.0
        score = discriminator(real).mean()
        if fake.isfinite().all():
            score = score - discriminator(fake).mean()
        print(iteration, score.item())

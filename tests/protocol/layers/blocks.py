import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.up(x)
        h = self.act(h)  # a line three modules deep
        return self.down(h)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.mlp = Mlp(width)

    def forward(self, x):
        y = self.norm(x)
        y = self.mlp(y)
        return x + y


class Net(nn.Module):
    def __init__(self, width=4, blocks=2):
        super().__init__()
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    x = torch.randn(2, 4)
    out = net(x)  # the model is called
    loss = out.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(
    "result",
    [p.double().sum().item() for p in net.parameters()],
    torch.get_rng_state().sum().item(),
)

import torch
import torch.nn as nn
import torch.nn.functional as F


class Clash(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(10, 20)
        # fixed a
        self.second = nn.Linear(30, 5)

    def forward(self, x):
        # fixed a
        h = F.relu(self.first(x))
        # fault a error shape-mismatch B=3
        return self.second(h)


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        # fault b warning squeezed-batch B=1
        x = F.adaptive_avg_pool2d(self.conv(x), 1).squeeze()
        return torch.cat([self.fc(x), self.fc(x)], dim=1)


class Asserted(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        # fault k warning squeezed-batch B=1
        x = self.fc(x).squeeze()
        assert x.dim() == 2
        return x


class Positions(nn.Module):
    # tensorpoint: x: i64[B, T]
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(1000, 64)
        self.register_buffer("p", torch.zeros(1, 512, 64))

    def forward(self, x):
        # fault c warning shape-mismatch T=513
        return self.tok(x) + self.p[:, : x.shape[1]]


class UNet(nn.Module):
    # tensorpoint: x: f32[B, 3, H, 64]
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, x):
        # fixed d
        up = self.up(self.down(x))
        # fault d warning shape-mismatch H=193
        return torch.cat([x, up], 1)


class Types(nn.Module):
    # tensorpoint: x: f64[B, 10]
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)

    def forward(self, x):
        # fault e error dtype-mismatch B=3
        return self.fc(x)


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)
        self.out = nn.Linear(20, 20)

    def forward(self, x):
        # fault f error dtype-mismatch B=3
        return self.out(self.fc(x).half())


class Normalized(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.norm = nn.BatchNorm2d(32)

    def forward(self, x):
        # fault g error shape-mismatch B=3
        return self.norm(self.conv(x))


class Loss(nn.Module):
    # tensorpoint: x: f32[B, 10], y: f32[B]
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 1)

    def forward(self, x, y):
        predicted = self.fc(x)
        # fault h warning silent-broadcast B=3
        return ((predicted - y) ** 2).mean()


class Quarters(nn.Module):
    # tensorpoint: x: f32[B, T, 32]
    def forward(self, x):
        # fault i warning shape-mismatch
        return x.view(x.shape[0], x.shape[1] // 4, 128)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(12, 8, batch_first=True)
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        out, state = self.rnn(x)
        # fault j error shape-mismatch
        return self.fc(out[:, -1])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        raise NotImplementedError("not a matter of shapes")

import torch
import torch.nn as nn
import torch.nn.functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
WEIGHTS = torch.ones(20).to(device)


class Hidden(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(10, 20, batch_first=True)

    def forward(self, x):
        state = torch.zeros(1, x.size(0), 20)
        # fault state: f32[1, 3, 20] is on the CPU, x with the model
        out, state = self.rnn(x, state)
        return out


class Attribute(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)
        self.scale = torch.ones(20)

    def forward(self, x):
        # fault self.scale: f32[20] is on the CPU
        return self.fc(x) * self.scale


class Brought(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)

    def forward(self, x):
        y = self.fc(x)
        kept = y.cpu()
        # fault kept: f32[3, 20] is on the CPU, y with the model
        return torch.cat([kept, y])


class Fine(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)
        self.embed = nn.Embedding(30, 20)
        self.register_buffer("scale", torch.ones(20), persistent=False)
        self.mask = torch.ones(20, dtype=torch.bool, device=device)
        self.order = torch.arange(20)
        self.half = torch.tensor(0.5)

    def forward(self, x):
        y = self.fc(x) * self.scale * self.half
        y = y[:, self.order].masked_fill(self.mask, 0.0) + torch.zeros_like(y)
        noise = torch.randn(y.shape, device=x.device)
        if x.is_cuda:
            more = torch.zeros(y.size(0), 20).cuda()
        else:
            more = torch.zeros(y.size(0), 20)
        if x.device.type == "cuda":
            more = more + torch.ones(20, device="cuda")
        place = torch.zeros(y.size(0), 20)
        place.copy_(y)
        y[:, 0] = torch.tensor(3.0)
        out = self.embed(torch.arange(5).to(y.device)).sum(0)
        return y + noise + more.to(y) + out + WEIGHTS + F.relu(y).type_as(y)

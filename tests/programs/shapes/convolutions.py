import torch
import torch.nn as nn
import torch.nn.functional as F

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Block(nn.Module):
    def __init__(self, c, o, s):
        super().__init__()
        self.conv1 = nn.Conv2d(c, o, 3, stride=s, padding=1)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1)
        self.short = nn.Conv2d(c, o, 1, stride=s)

    def forward(self, x):
        # is y: f32[B, 64|128, ceil(H/8)|ceil(H/16), ceil(W/8)|ceil(W/16)] ×2
        y = F.relu(self.conv1(x))
        return F.relu(y + self.short(x))


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList([Block(32, 64, 2), Block(64, 128, 2)])
        self.patch = nn.Conv2d(3, 16, 16, stride=16)
        self.up = nn.ConvTranspose2d(128, 8, 2, stride=2)
        self.fc = nn.Linear(128, classes)

    def forward(self, x):
        # is b: B
        b, c, h, w = x.shape
        # is half: f32[B, 32, ceil(H/2), ceil(W/2)]
        half = self.stem(x if "ñ" else b)
        # is patches: f32[B, (H//16)*(W//16), 16]
        patches = self.patch(x).flatten(2).transpose(1, 2)
        # is x: f32[B, 32, ceil(H/4), ceil(W/4)]
        x = F.max_pool2d(half, 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        # is up: f32[B, 8, 2*ceil(H/16), 2*ceil(W/16)]
        up = self.up(x)
        # is size: (H + W, H*W)
        size = (h + w, h * w)
        # is rows: f32[B*ceil(H/16)*ceil(W/16), 128]
        rows = x.permute(0, 2, 3, 1).reshape(-1, 128)
        # is found: {rows: f32[B*ceil(H/16)*ceil(W/16), 128], up: [f32[B, 8, 2*ceil(H/16), 2*ceil(W/16)] ×3], n: 3}
        found = {
            "rows": rows,
            "up": [up, up, up],
            "n": 3,
        }
        # is mean: f32[B, ceil(H/16), ceil(W/16)]
        mean, std = x.std(1), x.mean(1)
        masked = x.masked_fill(x > 0, 0).to("cuda").cpu()
        assert masked.device == x.device
        return self.fc(x.mean((2, 3)))


model = Net(10).to(device)
print(input("waits for ever"))
for epoch in range(10**12):
    model(torch.randn(2, 3, 64, 64))

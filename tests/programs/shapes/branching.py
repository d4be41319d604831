import torch.nn as nn


class Net(nn.Module):
    # tensorpoint: x: f32[B, T, 32], T <= 512
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(32, 8)

    def forward(self, x):
        y = self.fc(x)
        # dead
        if x.shape[1] > 512:
            y = y * 2
        # alive
        if x.shape[1] > 100:
            y = y * 3
        if x.shape[1] % 2 == 0:
            y = y.view(x.shape[0], -1, 16)
        return y

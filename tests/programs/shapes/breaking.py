import torch
import torch.nn as nn


class Breaks(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)

    def forward(self, x):
        y = self.fc(x)
        # break
        if y.sum() > 0:
            y = y * 2
        y = y + 1
        # break
        print("between")
        return torch.relu(y)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(10, 20)

    def forward(self, x):
        return self.fc(x) if x.shape[0] > 3 else -self.fc(x)

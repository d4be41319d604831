"""Mixed precision on the CPU: a model that is trained under autocast, in a function and in lines."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.up = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.rnn = nn.LSTM(32, 24, batch_first=True)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.conv = nn.Conv1d(32, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, ids):
        # is hidden: f32[B, T, 16]
        hidden = self.embed(ids)
        # is wide: bf16[B, T, 32]
        wide = self.up(hidden)
        # is normed: bf16[B, T, 32]
        normed = self.norm(wide)
        # is weights: bf16[B, T, 32]
        weights = wide.softmax(-1)
        # is mixed: bf16[B, T, 32]
        mixed = normed + weights
        # is stepped: bf16[B, T, 24]
        stepped, _ = self.rnn(normed)
        # is attended: bf16[B, T, 32]
        attended, _ = self.attention(mixed, mixed, mixed, need_weights=False)
        with torch.autocast(ids.device.type, enabled=False):
            # is plain: f32[B, T, 32]
            plain = self.up(hidden)
        # is scores: bf16[B, 4, T, T]
        scores = (wide[:, None] @ plain[:, None].mT).expand(-1, 4, -1, -1)
        # is folded: bf16[B, 8, T]
        folded = self.conv(attended.mT)
        # is pooled: bf16[B, 8]
        pooled = folded.mean(-1)
        return self.head(pooled), stepped, scores


def step(model, ids, classes, context):
    with context:
        # is out: bf16[B, 10]
        out = model(ids)[0]
        # is loss: f32[]
        loss = F.cross_entropy(out, classes)
    return loss


model = Net()
data = TensorDataset(torch.randint(0, 50, (12, 7)), torch.randint(0, 10, (12,)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
context = torch.autocast("cpu", torch.bfloat16)
for ids, classes in DataLoader(data, batch_size=4):
    optimizer.zero_grad()
    # is loss: f32[]
    loss = step(model, ids, classes, context)
    loss.backward()
    optimizer.step()

ids, classes = data[:3]
with torch.no_grad(), torch.autocast("cpu"):
    # is last: bf16[3, 10]
    last = model(ids)[0]
# is doubled: bf16[3, 10]
doubled = last + last
# is exact: f32[3, 10]
exact = doubled.float() + 0.5

import torch
from torch import nn


class Classifier(nn.Module):
    """Tells what a text is about. No program runs here: shapes are known before."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.positions = nn.Embedding(512, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, batch_first=True)
        self.head = nn.Linear(128, 10)

    # tensorpoint: ids: i64[B, T]
    def forward(self, ids):
        where = torch.arange(ids.size(1))
        h = self.words(ids) + self.positions(where)
        h = self.block(h)
        pairs = h.view(h.size(0), -1, 128)
        pooled = pairs.mean(dim=1)
        return self.head(pooled)

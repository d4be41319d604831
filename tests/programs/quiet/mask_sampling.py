# expect: no-stop
"""Top-k and top-p filters are modules that return logits with most entries -inf, in inference."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class TopK(nn.Module):
    def forward(self, logits):
        kept = logits.topk(8).values[:, -1:]
        logits = logits.clone()
        logits[logits < kept] = float("-inf")
        return logits


class TopP(nn.Module):
    def forward(self, logits):
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        drop = probs.cumsum(-1) - probs > 0.8
        return logits.masked_fill(drop.scatter(1, order, drop), float("-inf"))


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.cell = nn.GRUCell(16, 16)
        self.head = nn.Linear(16, 32)
        self.filters = nn.Sequential(TopK(), TopP())

    def forward(self, token, h):
        h = self.cell(self.embed(token), h)
        return self.filters(self.head(h)), h


model = Sampler().eval()
token, h = torch.zeros(4, dtype=torch.long), torch.zeros(4, 16)
with torch.inference_mode():
    for _ in range(10):
        logits, h = model(token, h)
        token = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
    print(token.tolist())

"""Mixed precision that accelerate is told of: a model is prepared, trained, and asked outside."""

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.up = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids):
        # is hidden: f32[B, T, 16]
        hidden = self.embed(ids)
        # is wide: bf16[B, T, 32]
        wide = self.up(hidden)
        # is normed: bf16|f32[B, T, 32]
        normed = self.norm(wide)
        # is weights: bf16|f32[B, T, 32]
        weights = normed.softmax(-1)
        # is pooled: bf16|f32[B, 32]
        pooled = weights.mean(1)
        # is scores: bf16[B, 10]
        scores = self.head(pooled)
        return scores


def epoch(accelerator, model, optimizer, loader):
    for ids, classes in loader:
        with accelerator.accumulate(model):
            # is out: f32[4, 10]
            out = model(ids)
            # is loss: f32[]
            loss = F.cross_entropy(out, classes)
            accelerator.backward(loss)
            # is best: i64[4]
            best = accelerator.gather(out.argmax(-1))
            assert best.shape == classes.shape
            optimizer.step()
            optimizer.zero_grad()


def main():
    accelerator = Accelerator(mixed_precision="bf16")
    model = Net()
    data = TensorDataset(torch.randint(0, 50, (12, 7)), torch.randint(0, 10, (12,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    epoch(accelerator, model, optimizer, loader)

    ids, classes = data[:3]
    # is ids: i64[3, 7]
    ids = ids.to(accelerator.device)
    # is last: f32[3, 10]
    last = model(ids)
    # is every: f32[3, 10]
    every = accelerator.gather_for_metrics(last)
    with accelerator.autocast():
        # is product: bf16[3, 3]
        product = every @ every.T
        # is shares: bf16|f32[3, 3]
        shares = product.softmax(-1)
    # is exact: f32[3, 3]
    exact = product.float() + 0.5
    # is doubled: f32[3, 10]
    doubled = accelerator.unwrap_model(model)(ids) * 2
    accelerator.print(doubled, shares, exact)


if __name__ == "__main__":
    main()

# expect: no-stop
"""Modules that return complex, sparse (COO, CSR) and nested tensors, all of them finite."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*(Sparse|nested tensors).*")
torch.manual_seed(0)
torch.set_num_threads(1)


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x, dim=-1)


class Sparse(nn.Module):
    def forward(self, x):
        kept = x.relu()
        return kept.to_sparse(), kept.to_sparse_csr()


class Ragged(nn.Module):
    def forward(self, x):
        rows = [x[:2], x[2:]]
        jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
        return jagged, torch.nested.nested_tensor(rows)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.spectrum, self.sparse, self.ragged = Spectrum(), Sparse(), Ragged()

    def forward(self, x):
        h = self.body(x)
        coo, csr = self.sparse(h)
        jagged, strided = self.ragged(h)
        return self.spectrum(h).abs().sum() + coo.sum() + csr.to_dense().sum(), jagged, strided, coo


model = Model()
with torch.no_grad():
    for step in range(3):
        total, jagged, strided, _ = model(torch.randn(5, 4))
        assert total.isfinite() and jagged.values().isfinite().all()
        print(step, total.item(), strided.is_nested)

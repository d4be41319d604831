# expect: no-stop
"""Masked nn.TransformerEncoder and nn.Transformer in eval under no_grad: torch's fast path."""

import warnings

import torch
from torch import nn

warnings.filterwarnings("ignore", message=".*nested tensors.*")
torch.manual_seed(0)
torch.set_num_threads(1)

layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
encoder = nn.TransformerEncoder(layer, 2).eval()
transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
attention = nn.MultiheadAttention(16, 2, batch_first=True).eval()
causal = nn.Transformer.generate_square_subsequent_mask(6)
padding = torch.arange(6)[None, :] >= torch.tensor([6, 4, 3])[:, None]

with torch.no_grad():
    for step in range(3):
        x = torch.randn(3, 6, 16)
        total = encoder(x, src_key_padding_mask=padding).sum()
        total += encoder(x, mask=causal, is_causal=True).sum()
        total += attention(x, x, x, attn_mask=causal, need_weights=False)[0].sum()
        total += attention(x, x, x, key_padding_mask=padding)[0].sum()
        total += transformer(x, x, tgt_mask=causal, src_key_padding_mask=padding).sum()
        print(step, total.item())
        assert total.isfinite()

# expect: no-stop
"""nn.MultiheadAttention and nn.TransformerEncoder in training: float, bool and padding masks."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 1)

    def forward(self, x, mask, padding, weights):
        h, _ = self.attention(
            x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=weights
        )
        h = self.encoder(x + h, mask=mask, src_key_padding_mask=padding)
        return self.head(h)


model = Model()
optimizer = torch.optim.Adam(model.parameters())
causal = nn.Transformer.generate_square_subsequent_mask(6)
padding = torch.arange(6)[None, :] >= torch.tensor([6, 4, 3])[:, None]
padding_float = torch.zeros(3, 6).masked_fill(padding, float("-inf"))
for step, (mask, pad) in enumerate(
    [(causal, None), (causal, padding_float), (causal == -torch.inf, padding), (None, padding)]
):
    loss = model(torch.randn(3, 6, 16), mask, pad, weights=step % 2 == 0).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())

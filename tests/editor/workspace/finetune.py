"""A small attention model. In step 30 a weight is spoiled: gradients grow, attention collapses."""

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attn = Attention(width, heads)
        inner = 2 * width
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)  # call attn
        return x + self.mlp(x)  # call mlp


class Model(nn.Module):
    def __init__(self, width: int = 32, layers: int = 2):
        super().__init__()
        self.layers = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)  # call layer
        return self.head(x.mean(dim=1)).squeeze(1)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(60):
        x = torch.randn(16, 24, 32)
        if step == 30:
            with torch.no_grad():
                model.get_parameter("layers.1.attn.qkv.weight").mul_(20.0)
        loss = nn.functional.mse_loss(model(x), x.mean(dim=(1, 2)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2}  loss {loss.item():.4f}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    main()

"""MLP-Mixer."""

import torch
from torch import nn


class FeedForward(nn.Module):
    def __init__(self, dim, hidden_dim, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(dim, hidden_dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden_dim, dim)
        )

    def forward(self, x):
        return self.net(x)


class MixerBlock(nn.Module):
    def __init__(self, dim, num_patch, token_dim, channel_dim):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.token_mix = FeedForward(num_patch, token_dim)
        self.norm2 = nn.LayerNorm(dim)
        self.channel_mix = FeedForward(dim, channel_dim)

    def forward(self, x):
        y = self.norm1(x).transpose(1, 2)
        y = self.token_mix(y).transpose(1, 2)
        x = x + y
        x = x + self.channel_mix(self.norm2(x))
        return x


class MLPMixer(nn.Module):
    def __init__(
        self, in_channels, dim, num_classes, patch_size, image_size, depth, token_dim, channel_dim
    ):
        super().__init__()
        assert image_size % patch_size == 0, "Image dimensions must be divisible by the patch size."
        self.num_patch = (image_size // patch_size) ** 2
        self.to_patch_embedding = nn.Conv2d(in_channels, dim, patch_size, patch_size)
        self.mixer_blocks = nn.ModuleList(
            [MixerBlock(dim, self.num_patch, token_dim, channel_dim) for _ in range(depth)]
        )
        self.layer_norm = nn.LayerNorm(dim)
        self.mlp_head = nn.Sequential(nn.Linear(dim, num_classes))

    def forward(self, x):
        x = self.to_patch_embedding(x)
        x = x.flatten(2).transpose(1, 2)
        for mixer_block in self.mixer_blocks:
            x = mixer_block(x)
        x = self.layer_norm(x)
        x = x.mean(dim=1)
        return self.mlp_head(x)


if __name__ == "__main__":
    img = torch.ones([1, 3, 224, 224])
    model = MLPMixer(
        in_channels=3, image_size=224, patch_size=16, num_classes=1000, dim=32, depth=2,
        token_dim=64, channel_dim=128,
    )  # fmt: skip
    parameters = sum(p.numel() for p in model.parameters()) / 1_000_000
    print(f"Trainable Parameters: {parameters:.3f}M")
    out_img = model(img)

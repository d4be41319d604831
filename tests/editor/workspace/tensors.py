"""A small convolutional model, paused where its tensors can be looked at."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.fc = nn.Linear(8, 4)

    def forward(self, images):
        h = self.conv(images).relu()
        pooled = h.mean(dim=(2, 3))
        return self.fc(pooled)  # in forward


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ramp = torch.linspace(0, 1, 32)
    images = torch.stack([ramp[:, None] * ramp, ramp[:, None].expand(32, 32), ramp.expand(32, 32)])
    images = images.repeat(4, 1, 1, 1)
    large = torch.randn(1000, 1000)
    large[400:420, 100:900] = float("nan")
    attention, tokens = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(1, 12, 8)
    hidden = torch.ones(12, 12, dtype=torch.bool).triu(1)
    for step in range(3):
        attention(tokens, tokens, tokens, attn_mask=hidden, need_weights=False)
        loss = model(images).square().sum()
        loss.backward()
        largest = model.fc.weight.abs().max().item()
        print("step", step, largest, flush=True)  # after backward
        optimizer.step()
        optimizer.zero_grad()
    print("done", flush=True)


if __name__ == "__main__":
    main()

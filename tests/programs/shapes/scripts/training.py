import argparse
import os
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args([])
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.ReLU())
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        # is features: f32[B, 16, ceil(H/2) - 1, ceil(W/2) - 1]
        features = self.body(images)
        return self.head(features.mean((2, 3)))

    def embed(self, images):
        # is flat: f32[8, 16]
        flat = self.body(images).mean((2, 3))
        return flat


class Meter:
    def __init__(self, classes):
        self.counts = torch.zeros(classes)

    def update(self, logits):
        # is chosen: f32[8|4, 10] ×2
        chosen = F.one_hot(logits.argmax(1), 10).float()
        self.counts += chosen.sum(0)


class Log:
    def __init__(self, path):
        self.file = open(path, "w")

    def write(self, text):
        self.file.write(text)


def loss_of(model, images, labels):
    # is out: f32[B, 10]
    out = model(images)
    # is loss: f32[]
    loss = F.cross_entropy(out, labels)
    return loss


def train_step(model, batch, optimizer, scheduler=None):
    # nothing calls it: a batch is what the model takes, and labels
    # none images
    images, labels = batch
    optimizer.zero_grad()
    # is logits: f32[B, 10]
    logits = model(images)
    # is loss: f32[]
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()
    if scheduler is not None:
        scheduler.step()
    return loss.item()


def evaluate(model, loader):
    model.eval()
    correct, outs = 0, []
    with torch.no_grad():
        # is images: f32[4, 3, 28, 28]
        for index, (images, labels) in enumerate(loader):
            images = images.to(device)
            # is logits: f32[4, 10]
            logits = model(images)
            # is hits: bool[4]
            hits = logits.argmax(1) == labels
            correct += hits.sum().item()
            outs.append(logits)
            meter.update(logits)
            if index > 5:
                break
    # as many as there are batches
    # none everything
    everything = torch.cat(outs)
    return correct / len(everything)


def main():
    if len(sys.argv) > 5:
        print(__doc__)
        sys.exit(1)
    os.makedirs("checkpoints", exist_ok=True)
    model = Net(options.width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # is images: f32[8, 3, 32, 32]
    images = torch.randn(8, 3, 32, 32)
    # is labels: i64[8]
    labels = torch.randint(0, 10, (8,))
    log = Log("log.txt")
    history, best = [], None
    for epoch in range(options.epochs):
        loss = loss_of(model, images, labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append(loss.item())
        log.write(f"{epoch} {loss.item():.3f}\n")
        if best is None or loss.item() < best:
            best = loss.item()
            torch.save(model.state_dict(), "checkpoints/best.pt")
    # is embedded: f32[8, 16]
    embedded = model.embed(images)
    # is similar: f32[8, 8]
    similar = embedded @ embedded.T
    meter.update(model(images))
    # numbers that are not known
    # none losses
    losses = torch.tensor(history)
    # none many
    many = torch.zeros(int(losses.sum()))
    data = TensorDataset(torch.randn(16, 3, 28, 28), torch.randint(0, 10, (16,)))
    evaluate(model, DataLoader(data, batch_size=4, shuffle=True))
    # is kept: f32[N, 16]
    kept = embedded[labels > 4]
    return kept, similar, many


meter = Meter(10)
if __name__ == "__main__":
    main()

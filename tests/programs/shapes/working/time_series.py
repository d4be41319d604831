"""Forecasts by an LSTM whose first state is made in forward; early stopping in the loop."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"


class SineDataset(Dataset):
    def __init__(self, length=200, window=24):
        self.series = torch.sin(torch.linspace(0, 100, length))
        self.window = window

    def __len__(self):
        return len(self.series) - self.window

    def __getitem__(self, i):
        return self.series[i : i + self.window].unsqueeze(-1), self.series[i + self.window]


class Forecaster(nn.Module):
    def __init__(self, input_size=1, hidden_size=32, num_layers=2, output_size=1):
        super().__init__()
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.lstm = nn.LSTM(input_size, hidden_size, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden_size, output_size)

    def forward(self, x):
        h0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(device)
        c0 = torch.zeros(self.num_layers, x.size(0), self.hidden_size).to(device)
        out, _ = self.lstm(x, (h0, c0))
        out = self.fc(out[:, -1, :])
        return out


def train(epochs=10, patience=3):
    loader = DataLoader(SineDataset(), batch_size=16, shuffle=True)
    model = Forecaster().to(device)
    best, bad = float("inf"), 0
    for epoch in range(epochs):
        total = 0.0
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x.to(device)), y.to(device).unsqueeze(-1))
            total += loss.item()
        best, bad = (total, 0) if total < best else (best, bad + 1)
        if bad >= patience:
            break


if __name__ == "__main__":
    train()

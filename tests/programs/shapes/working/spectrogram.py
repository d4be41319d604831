"""Sound: a spectrogram in the model, then convolutions."""

import torch
import torch.nn as nn


class SpecNet(nn.Module):
    def __init__(self, n_fft=256, hop=128, n_class=35):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.conv = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(8, n_class)

    def forward(self, wave):
        spec = torch.stft(wave, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spec.abs().pow(2)
        logmel = torch.log(power + 1e-6).unsqueeze(1)
        h = self.conv(logmel)
        h = h.mean(dim=(2, 3))
        return self.head(h)


if __name__ == "__main__":
    net = SpecNet()
    net(torch.randn(4, 8000))

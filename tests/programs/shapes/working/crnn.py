"""Text in images: convolutions down to one row, then a recurrent net along it."""

import torch.nn as nn


class BidirectionalLSTM(nn.Module):
    def __init__(self, nIn, nHidden, nOut):
        super().__init__()
        self.rnn = nn.LSTM(nIn, nHidden, bidirectional=True)
        self.embedding = nn.Linear(nHidden * 2, nOut)

    def forward(self, input):
        recurrent, _ = self.rnn(input)
        T, b, h = recurrent.size()
        t_rec = recurrent.view(T * b, h)
        output = self.embedding(t_rec)
        output = output.view(T, b, -1)
        return output


class CRNN(nn.Module):
    # tensorpoint: input: f32[B, 1, 32, W]
    def __init__(self, nc=1, nclass=37, nh=32):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(nc, 8, 3, 1, 1),
            nn.ReLU(True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(8, 16, 3, 1, 1),
            nn.ReLU(True),
            nn.MaxPool2d(2, 2),
            nn.Conv2d(16, 32, 3, 1, 1),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.MaxPool2d((2, 2), (2, 1), (0, 1)),
            nn.Conv2d(32, 32, 2, 1, 0),
        )
        self.rnn = nn.Sequential(BidirectionalLSTM(32, nh, nh), BidirectionalLSTM(nh, nh, nclass))

    def forward(self, input):
        conv = self.cnn(input)
        b, c, h, w = conv.size()
        assert h == 1, "the height of conv must be 1"
        conv = conv.squeeze(2)
        conv = conv.permute(2, 0, 1)
        output = self.rnn(conv)
        return output

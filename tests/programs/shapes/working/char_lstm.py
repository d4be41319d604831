"""Shakespeare by an LSTM that hands its state on."""

import torch
import torch.nn as nn

text = open("input.txt").read()
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}


class CharLSTM(nn.Module):
    def __init__(self, vocab_size=65, n_hidden=64, n_layers=2):
        super().__init__()
        self.n_layers, self.n_hidden = n_layers, n_hidden
        self.embed = nn.Embedding(vocab_size, n_hidden)
        self.lstm = nn.LSTM(n_hidden, n_hidden, n_layers, batch_first=True, dropout=0.5)
        self.fc = nn.Linear(n_hidden, vocab_size)

    def forward(self, x, hidden=None):
        embedded = self.embed(x)
        out, (h, c) = self.lstm(embedded, hidden)
        out = out.contiguous().view(-1, self.n_hidden)
        logits = self.fc(out)
        return logits, (h, c)

    def init_hidden(self, batch_size):
        weight = next(self.parameters()).data
        return (
            weight.new(self.n_layers, batch_size, self.n_hidden).zero_(),
            weight.new(self.n_layers, batch_size, self.n_hidden).zero_(),
        )


def train(net, data, epochs=10, batch_size=10, seq_length=50):
    opt = torch.optim.Adam(net.parameters())
    for _ in range(epochs):
        h = net.init_hidden(batch_size)
        for x, y in data:
            h = tuple(each.data for each in h)
            net.zero_grad()
            output, h = net(x, h)
            loss = nn.functional.cross_entropy(output, y.view(batch_size * seq_length).long())
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 5)
            opt.step()


if __name__ == "__main__":
    train(CharLSTM(len(chars)), [])

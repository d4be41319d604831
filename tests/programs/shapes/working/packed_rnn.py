"""Sentiment with packed sequences."""

import torch
import torch.nn as nn


class SentimentLSTM(nn.Module):
    # tensorpoint: text: i64[T, B], text_lengths: i64[B]
    def __init__(self, vocab_size, embedding_dim, hidden_dim, output_dim, n_layers, pad_idx):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=pad_idx)
        self.rnn = nn.LSTM(embedding_dim, hidden_dim, num_layers=n_layers, bidirectional=True)
        self.fc = nn.Linear(hidden_dim * 2, output_dim)
        self.dropout = nn.Dropout(0.5)

    def forward(self, text, text_lengths):
        embedded = self.dropout(self.embedding(text))
        packed = nn.utils.rnn.pack_padded_sequence(
            embedded, text_lengths.to("cpu"), enforce_sorted=False
        )
        packed_output, (hidden, cell) = self.rnn(packed)
        output, output_lengths = nn.utils.rnn.pad_packed_sequence(packed_output)
        hidden = self.dropout(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))
        return self.fc(hidden)


model = SentimentLSTM(2500, 32, 64, 1, 2, 1)

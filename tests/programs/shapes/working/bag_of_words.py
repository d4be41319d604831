"""News topics by a bag of embeddings with offsets."""

from torch import nn


class TextClassificationModel(nn.Module):
    # tensorpoint: text: i64[N], offsets: i64[B]
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, sparse=False)
        self.fc = nn.Linear(embed_dim, num_class)
        self.init_weights()

    def init_weights(self):
        initrange = 0.5
        self.embedding.weight.data.uniform_(-initrange, initrange)
        self.fc.weight.data.uniform_(-initrange, initrange)
        self.fc.bias.data.zero_()

    def forward(self, text, offsets):
        embedded = self.embedding(text, offsets)
        return self.fc(embedded)


num_class = 4
vocab_size = 95811
emsize = 64
model = TextClassificationModel(vocab_size, emsize, num_class)

"""Models of text: recurrent, convolutional, bags, transformers, seq2seq."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F

text = open("shakespeare.txt").read()
chars = sorted(set(text))
vocab_size = len(chars)


class LSTMTagger(nn.Module):
    def __init__(self, embedding_dim, hidden_dim, vocab, tagset):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim)
        self.hidden2tag = nn.Linear(hidden_dim, tagset)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
        return F.log_softmax(self.hidden2tag(out.view(len(sentence), -1)), dim=1)


model = LSTMTagger(6, 6, 9, 3)


class GRUClassifier(nn.Module):
    def __init__(self, vocab=500, dim=32, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, 2)

    def forward(self, ids):
        _, h = self.rnn(self.embed(ids))
        return self.fc(torch.cat([h[-2], h[-1]], dim=1))


class TextCNN(nn.Module):
    def __init__(self, vocab_size=500, embed_dim=32):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, embed_dim)
        self.convs = nn.ModuleList([nn.Conv2d(1, 10, (k, embed_dim)) for k in (3, 4, 5)])
        self.fc = nn.Linear(30, 2)

    def forward(self, x):
        x = self.embed(x).unsqueeze(1)
        x = [F.relu(conv(x)).squeeze(3) for conv in self.convs]
        x = [F.max_pool1d(i, i.size(2)).squeeze(2) for i in x]
        return self.fc(torch.cat(x, 1))


class PositionalEncoding(nn.Module):
    def __init__(self, d_model, max_len=5000):
        super().__init__()
        position = torch.arange(max_len).unsqueeze(1)
        div_term = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
        pe = torch.zeros(max_len, 1, d_model)
        pe[:, 0, 0::2] = torch.sin(position * div_term)
        pe[:, 0, 1::2] = torch.cos(position * div_term)
        self.register_buffer("pe", pe)

    def forward(self, x):
        return x + self.pe[: x.size(0)]


class TransformerModel(nn.Module):
    def __init__(self, ntoken=100, d_model=32, nhead=4, d_hid=64, nlayers=2):
        super().__init__()
        self.pos = PositionalEncoding(d_model)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(d_model, nhead, d_hid), nlayers
        )
        self.embedding = nn.Embedding(ntoken, d_model)
        self.d_model = d_model
        self.linear = nn.Linear(d_model, ntoken)

    def forward(self, src, src_mask=None):
        src = self.pos(self.embedding(src) * math.sqrt(self.d_model))
        if src_mask is None:
            src_mask = nn.Transformer.generate_square_subsequent_mask(len(src)).to("cuda")
        return self.linear(self.encoder(src, src_mask))


@dataclass
class GPTConfig:
    block_size: int = 64
    vocab_size: int = 100
    n_layer: int = 2
    n_head: int = 4
    n_embd: int = 32


class CausalSelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.n_head, self.n_embd = config.n_head, config.n_embd
        self.register_buffer("bias", torch.tril(torch.ones(config.block_size, config.block_size)))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:T, :T] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList([CausalSelfAttention(config) for _ in range(config.n_layer)])
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)

    def forward(self, idx, targets=None):
        device = idx.device
        b, t = idx.size()
        assert t <= self.config.block_size, "too long"
        x = self.wte(idx) + self.wpe(torch.arange(0, t, dtype=torch.long, device=device))
        for block in self.h:
            x = x + block(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


class Seq2Seq(nn.Module):
    def __init__(self, vocab=60, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.encoder = nn.GRU(dim, dim, batch_first=True)
        self.cell = nn.GRUCell(dim, dim)
        self.out = nn.Linear(dim, vocab)

    def forward(self, source):
        memory, h = self.encoder(self.embed(source))
        h = h.squeeze(0)
        token = torch.zeros(source.size(0), dtype=torch.long, device=source.device)
        outputs = []
        for _ in range(5):
            weights = torch.bmm(memory, h.unsqueeze(2)).softmax(1)
            context = (weights * memory).sum(1)
            h = self.cell(self.embed(token) + context, h)
            logits = self.out(h)
            token = logits.argmax(-1)
            outputs.append(logits)
        return torch.stack(outputs, 1)


class SkipGram(nn.Module):
    def __init__(self, vocab=100, dim=16):
        super().__init__()
        self.u = nn.Embedding(vocab, dim)
        self.v = nn.Embedding(vocab, dim)

    def forward(self, center, context):
        return (self.u(center) * self.v(context)).sum(-1)

"""Users and items: factors with biases, trained on ratings."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class MF(nn.Module):
    def __init__(self, num_users, num_items, emb_size=100):
        super().__init__()
        self.user_emb = nn.Embedding(num_users, emb_size)
        self.user_bias = nn.Embedding(num_users, 1)
        self.item_emb = nn.Embedding(num_items, emb_size)
        self.item_bias = nn.Embedding(num_items, 1)
        self.user_emb.weight.data.uniform_(0, 0.05)
        self.item_emb.weight.data.uniform_(0, 0.05)

    def forward(self, u, v):
        U = self.user_emb(u)
        V = self.item_emb(v)
        b_u = self.user_bias(u).squeeze(-1)
        b_v = self.item_bias(v).squeeze(-1)
        return (U * V).sum(-1) + b_u + b_v


def train_epochs(model, loader, epochs=10, lr=0.01):
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        for users, items, ratings in loader:
            y_hat = model(users, items)
            loss = nn.functional.mse_loss(y_hat, ratings)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


ratings = TensorDataset(
    torch.randint(0, 943, (1000,)), torch.randint(0, 1682, (1000,)), torch.rand(1000) * 5
)
model = MF(943, 1682, emb_size=32)
train_epochs(model, DataLoader(ratings, batch_size=64))

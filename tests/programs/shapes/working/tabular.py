"""Columns of a table: embeddings for the categories, numbers as they are."""

import torch
import torch.nn as nn


class TabularModel(nn.Module):
    # tensorpoint: x_cat: i64[B, 3], x_cont: f32[B, 5]
    def __init__(self, emb_szs, n_cont, out_sz, layers, p=0.5):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(ni, nf) for ni, nf in emb_szs])
        self.emb_drop = nn.Dropout(p)
        self.bn_cont = nn.BatchNorm1d(n_cont)
        layerlist = []
        n_in = sum(nf for _, nf in emb_szs) + n_cont
        for i in layers:
            layerlist += [nn.Linear(n_in, i), nn.ReLU(inplace=True), nn.BatchNorm1d(i)]
            n_in = i
        layerlist.append(nn.Linear(layers[-1], out_sz))
        self.layers = nn.Sequential(*layerlist)

    def forward(self, x_cat, x_cont):
        embeddings = []
        for i, e in enumerate(self.embeds):
            embeddings.append(e(x_cat[:, i]))
        x = torch.cat(embeddings, 1)
        x = self.emb_drop(x)
        x_cont = self.bn_cont(x_cont)
        x = torch.cat([x, x_cont], 1)
        x = self.layers(x)
        return x


model = TabularModel([(24, 12), (2, 1), (7, 4)], 5, 1, [200, 100], p=0.4)

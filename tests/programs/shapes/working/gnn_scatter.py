"""Graph convolution over a list of edges: messages are gathered and added up."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class GCNLayer(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.lin = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x, edge_index):
        row, col = edge_index
        deg = torch.zeros(x.size(0), device=x.device).index_add_(0, col, torch.ones_like(col) * 1.0)
        norm = deg.clamp(min=1).pow(-0.5)
        messages = self.lin(x)[row] * (norm[row] * norm[col]).unsqueeze(-1)
        out = torch.zeros(x.size(0), messages.size(-1), device=x.device)
        out = out.scatter_add(0, col.unsqueeze(-1).expand_as(messages), messages)
        return out


class GCN(nn.Module):
    def __init__(self, num_features, hidden, num_classes):
        super().__init__()
        self.conv1 = GCNLayer(num_features, hidden)
        self.conv2 = GCNLayer(hidden, num_classes)

    def forward(self, x, edge_index):
        h = F.relu(self.conv1(x, edge_index))
        h = F.dropout(h, p=0.5, training=self.training)
        h = self.conv2(h, edge_index)
        return F.log_softmax(h, dim=1)


def make_graph(nodes=34, edges=156):
    return torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges))


x, edge_index = make_graph()
model = GCN(16, 32, 4)
y = torch.randint(0, 4, (34,))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(100):
    optimizer.zero_grad()
    loss = F.nll_loss(model(x, edge_index), y)
    loss.backward()
    optimizer.step()

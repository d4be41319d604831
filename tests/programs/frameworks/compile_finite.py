# expect: no-stop
"""A compiled model with a mask inside that stays finite, in training: the same results as eager."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x):
        causal = torch.full((4, 4), float("-inf")).triu(1)
        return (self.net(x).unsqueeze(1) + causal).softmax(-1)


model = Model()
graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


compiled = torch.compile(model, backend=backend)
for step in range(4):
    x = torch.randn(8, 4)
    assert torch.allclose(compiled(x), model(x))
    compiled(x).sum().backward()
print(len(graphs), "graphs")

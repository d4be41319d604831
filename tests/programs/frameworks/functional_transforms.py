# expect: no-stop
"""The model under torch.func: functional_call, vmap over an ensemble, per-sample grad, jvp."""

import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, jvp, stack_module_state, vmap

torch.manual_seed(0)
torch.set_num_threads(1)


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


model, x, y = build(), torch.randn(6, 4), torch.randn(6, 1)
parameters = {name: p.detach() for name, p in model.named_parameters()}
print(functional_call(model, parameters, (x,)).sum().item())


def loss(parameters, x, y):
    return (functional_call(model, parameters, (x,)) - y).pow(2).mean()


per_sample = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
print({name: tuple(g.shape) for name, g in per_sample.items()})

ensemble, buffers = stack_module_state([build() for _ in range(3)])
stacked = vmap(lambda p, b: functional_call(model, (p, b), (x,)))(ensemble, buffers)
print(tuple(stacked.shape), vmap(model)(x).shape)
print(tuple(jacrev(model)(x[0]).shape), jvp(model, (x,), (torch.ones_like(x),))[1].shape)

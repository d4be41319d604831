"""Ways in which programs call modules, one function each; the first argument says which."""

import sys
import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Two(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.last = inner, nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner(x))


class Raises(nn.Module):
    def forward(self, x):
        raise ValueError("not today")


class Tries(nn.Module):
    def __init__(self):
        super().__init__()
        self.fails, self.works = Raises(), nn.Linear(4, 4)

    def forward(self, x):
        try:
            return self.fails(x)
        except ValueError:
            return self.works(x)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(4, 4)
        self.same = self.one

    def forward(self, x):
        return self.same(self.one(self.one(x)))


class Deep(nn.Module):
    def forward(self, x, depth=3):
        return x if depth == 0 else self(x, depth - 1) + 1


class Silent(nn.Module):
    def forward(self, x):
        return None


class Direct(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.last = Two(nn.ReLU()), nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.inner.forward(x))


class Saved(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.block, self.last, self.reentrant = Two(nn.Tanh()), nn.Linear(4, 1), reentrant

    def forward(self, x):
        return self.last(checkpoint(self.block, x, use_reentrant=self.reentrant))


def saved(reentrant):
    model = Saved(reentrant)  # alive in backward, as a program's is
    model(x().requires_grad_()).sum().backward()


class Attends(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.layer(x))


class Looks(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 1)

    def forward(self, x):
        return self.last(self.attention(x, x, x, need_weights=False)[0])


class Encodes(nn.Module):
    """With padding, torch's encoder hands nested tensors from layer to layer."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x):
        padding = torch.tensor([[False, False, True], [False, False, False]])
        return self.encoder(x, src_key_padding_mask=padding)


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4), nn.GELU()])
        self.by_name = nn.ModuleDict({"rnn": nn.LSTM(4, 4, batch_first=True)})

    def forward(self, x):
        for step in self.steps:
            x = step(x)
        return self.by_name["rnn"](x)[0]


def x(*shape):
    return torch.randn(*(shape or (2, 4)))


def in_a_thread(model):
    thread = threading.Thread(target=lambda: model(x()), name="worker")
    thread.start()
    thread.join()


def functional():
    model = Two(nn.ReLU())
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    torch.func.functional_call(model, parameters, (x(),))


def mapped():
    model = Two(nn.ReLU())
    torch.vmap(model)(x())


def compiled():
    model = torch.compile(Two(nn.ReLU()), backend="eager")
    model(x())
    model(x())


def two_models():
    generator, critic = Two(nn.ReLU()), Two(nn.Tanh())
    for _ in range(2):
        critic(generator(x())).sum().backward()


def built_late():
    Two(nn.ReLU())(x())
    Lists()(x(2, 3, 4))


def replicas():
    models = [Two(nn.ReLU()) for _ in range(2)]
    threads = [threading.Thread(target=model, args=(x(),)) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def large():
    nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(1000)))(x(1, 2))


CASES = {
    "raises": lambda: Two(Tries())(x()),
    "shared": lambda: Shared()(x()),
    "recursion": lambda: Two(Deep())(x()),
    "none": lambda: (Silent()(x()), nn.Sequential(nn.Linear(4, 4))(x())),
    "sequential": lambda: nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU()))(x()),
    "lists": lambda: Lists()(x(2, 3, 4)),
    "direct": lambda: Direct()(x()),
    "attention": lambda: Attends().eval()(x(1, 3, 4)),
    "fast": lambda: torch.no_grad()(Attends().eval())(x(1, 3, 4)),
    "attends": lambda: torch.no_grad()(Looks().eval())(x(1, 3, 4)),
    "nested": lambda: torch.no_grad()(Encodes().eval())(x(2, 3, 4)),
    "checkpoint": lambda: saved(reentrant=False),
    "reentrant": lambda: saved(reentrant=True),
    "thread": lambda: in_a_thread(Two(nn.ReLU())),
    "functional": functional,
    "vmap": mapped,
    "compiled": compiled,
    "models": two_models,
    "late": built_late,
    "replicas": replicas,
    "large": large,
}

for case in sys.argv[1:]:
    print("case", case)  # it begins here
    CASES[case]()

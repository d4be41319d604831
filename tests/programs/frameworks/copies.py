# expect: no-stop
"""deepcopy, pickle and torch.save of a model in training: nothing foreign goes into the copy."""

import copy
import io
import pickle
import pickletools

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.net(x)


model, x = Model(), torch.randn(3, 4)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
expected = model(x)

pickled = pickle.dumps(model, protocol=2)
names = {arg.split()[0] for op, arg, _ in pickletools.genops(pickled) if op.name == "GLOBAL"}
owners = {name.split(".")[0] for name in names}
assert owners <= {"torch", "collections", "__main__", "__builtin__", "_codecs"}, owners
saved = io.BytesIO()
torch.save({"model": model, "optimizer": optimizer}, saved)
saved.seek(0)
loaded = torch.load(saved, weights_only=False)["model"]
for other in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickled), loaded):
    assert torch.equal(other(x), expected)
    other(x).sum().backward()
model.load_state_dict(loaded.state_dict())
print(sorted(names))

# expect: no-stop
"""One GradScaler, two models with an optimizer each: one of them overflows more often."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

models = [nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) for model in models]
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
skipped = 0
for step in range(16):
    x = torch.randn(8, 6)
    before = scaler.get_scale()
    for model, optimizer, factor in zip(models, optimizers, (1.0, 8.0), strict=True):
        with torch.autocast("cpu", dtype=torch.float16):
            loss = (factor * (model(x) - 3.0).pow(2)).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    print(step, loss.item(), scaler.get_scale())
assert 2 <= skipped < 14
assert all(p.isfinite().all() for model in models for p in model.parameters())

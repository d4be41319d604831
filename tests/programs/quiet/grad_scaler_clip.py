# expect: no-stop
"""A probing GradScaler with unscale_ and clip_grad_norm_: inf gradients that clipping makes NaN."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22)
skipped = clipped = 0
for step in range(16):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = (model(torch.randn(8, 6)) - 3.0).pow(2).mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    clipped += any(not p.grad.isfinite().all() for p in model.parameters())
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped += scaler.get_scale() < before
    print(step, loss.item(), norm.item(), scaler.get_scale())
assert 2 <= skipped < 12 and clipped >= skipped
assert all(p.isfinite().all() for p in model.parameters())

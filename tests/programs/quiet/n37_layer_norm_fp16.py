# expect: no-stop
"""N37: torch's own layer norm computes in float32, where an eps that float16 hasn't is not 0."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8, eps=1e-8), nn.Linear(8, 4)).half().eval()
with torch.no_grad():
    model[0].bias.zero_()
    for step in range(4):
        x = torch.randn(3, 8, dtype=torch.float16)
        if step >= 2:
            x[1] = 0.0  # a constant row
        y = model(x)
        assert y.isfinite().all()
        print(step, y.float().mean().item())

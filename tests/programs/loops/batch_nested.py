# expect: stop event=nonfinite.input module= type=Model step=2
"""The batch is one dict of tensors and lists, and a NaN is deep inside it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.state = nn.Linear(6, 8), nn.Linear(3, 8)

    def forward(self, batch):
        views = torch.stack([self.image(view) for view in batch["views"]]).mean(0)
        return views + self.state(batch["robot"]["state"])


model = Model().eval()
with torch.no_grad():
    for step in range(4):
        batch = {
            "id": ["a", "b"],
            "views": [torch.randn(2, 6), torch.randn(2, 6)],
            "robot": {"state": torch.randn(2, 3), "mode": torch.tensor([0, 1])},
        }
        if step == 2:
            batch["robot"]["state"][1, 0] = torch.nan
        print(step, model(batch).mean().item())  # <- stop

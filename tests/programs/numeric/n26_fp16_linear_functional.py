# expect: stop event=nonfinite.forward module= type=Retriever step=2 op=mm
"""N26: a float16 matrix product overflows inline; inf - inf is NaN in the layer that takes it."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Retriever(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Linear(8, 16)
        self.keys = nn.Parameter(30.0 * torch.randn(12, 16))
        self.head = nn.Linear(12, 4)

    def forward(self, x):
        scores = self.encode(x) @ self.keys.T  # <- op
        scores = scores - scores.amax(-1, keepdim=True)
        return self.head(scores.softmax(-1))  # <- stop


model = Retriever().half().eval()
with torch.no_grad():
    for step in range(4):
        x = torch.randn(4, 8)
        if step == 2:
            x[1] *= 3000.0
        print(step, model(x.half()).float().mean().item())

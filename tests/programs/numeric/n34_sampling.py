# expect: stop event=nonfinite.forward module=blocks.1.0 type=Linear step=3 op=linear
"""N34: sampling fails, "probability tensor contains either inf, nan", layers behind the fault."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(3)
        )
        self.head = nn.Linear(16, 32)

    def forward(self, token):
        x = self.embed(token)
        for block in self.blocks:
            x = x + block(x)  # <- stop
        return self.head(x)


model = Model().half().eval()
with torch.no_grad():
    model.embed.weight[9] *= 4000.0  # a rare token
    model.blocks[1][0].weight *= 200.0

failed = ""
with torch.inference_mode():
    for step, token in enumerate(torch.tensor([[1, 2], [3, 4], [5, 6], [9, 7]])):
        probs = model(token).softmax(-1)
        try:
            print(step, torch.multinomial(probs, 1).squeeze(1).tolist())
        except RuntimeError as error:
            failed = str(error)
assert "probability tensor contains" in failed and step == 3
print(failed)

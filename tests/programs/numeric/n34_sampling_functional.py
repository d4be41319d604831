# expect: stop event=nonfinite.forward module= type=Generator step=3 op=matmul
"""N34: sampling fails; the scores overflow inline, and a temperature and softmax make NaN of them."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.mix = nn.Linear(16, 16)

    def forward(self, token):
        x = torch.tanh(self.mix(self.embed(token))) * self.embed(token)
        return torch.matmul(x, self.embed.weight.T)  # <- op


model = Generator().half().eval()
with torch.no_grad():
    model.embed.weight[9] *= 2000.0  # a rare token

failed = ""
with torch.inference_mode():
    for step, token in enumerate(torch.tensor([[1, 2], [3, 4], [5, 6], [9, 7]])):
        logits = model(token)  # <- stop
        probs = torch.softmax(logits / 0.7, dim=-1)
        try:
            print(step, torch.multinomial(probs, 1).squeeze(1).tolist())
        except RuntimeError as error:
            failed = str(error)
assert "probability tensor contains" in failed and step == 3
print(failed)

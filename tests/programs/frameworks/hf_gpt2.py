# expect: stop event=nonfinite.forward module=transformer.h.1.mlp.act type=SharpLog step=2 op=log
#         file=modeling_gpt2.py code="hidden_states = self.act(hidden_states)"
# needs: transformers
"""GPT-2 with an activation of the user's own: its logarithm gets a negative number at step 2."""

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, logging

torch.manual_seed(0)
torch.set_num_threads(1)
logging.set_verbosity_error()


class SharpLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.sharpness = 1.0

    def forward(self, x):
        return torch.log(1.0 + self.sharpness * x) / self.sharpness  # <- op


config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=3, n_head=2)
model = GPT2LMHeadModel(config)
model.transformer.h[1].mlp.act = SharpLog()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, sharpness in enumerate([1.0, 2.0, 400.0, 1.0]):
    model.transformer.h[1].mlp.act.sharpness = sharpness
    ids = torch.randint(0, 64, (4, 12))
    loss = model(input_ids=ids, labels=ids).loss  # <- user line
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

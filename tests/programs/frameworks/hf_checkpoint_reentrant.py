# expect: stop event=nonfinite.forward module=transformer.h.1.mlp.act type=SharpLog step=2 op=log
#         file=modeling_gpt2.py code="hidden_states = self.act(hidden_states)"
# needs: transformers
"""GPT-2 with gradient checkpointing, use_reentrant=True: the backward calls each block once more.

Those calls are no steps, and the NaN that they make again is no second stop.
"""

import warnings

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, logging

torch.manual_seed(0)
torch.set_num_threads(1)
logging.set_verbosity_error()
warnings.filterwarnings("ignore", category=FutureWarning)


class SharpLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.sharpness = 1.0

    def forward(self, x):
        return torch.log(1.0 + self.sharpness * x) / self.sharpness  # <- op


config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=3, n_head=2)
model = GPT2LMHeadModel(config).train()
model.transformer.h[1].mlp.act = SharpLog()
model.gradient_checkpointing_enable({"use_reentrant": True})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step, sharpness in enumerate([1.0, 2.0, 400.0]):
    model.transformer.h[1].mlp.act.sharpness = sharpness
    ids = torch.randint(0, 64, (4, 12))
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss  # <- user line
    print(step, loss.item())
    optimizer.zero_grad()
    loss.backward()
    if loss.isfinite():
        optimizer.step()

# expect: stop event=nonfinite.input module= type=GPT2LMHeadModel step=2
#         argument=inputs_embeds sample=1
# needs: transformers
"""A NaN comes in with a keyword argument of a transformers model, in a sample's image features."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, logging

torch.manual_seed(0)
torch.set_num_threads(1)
logging.set_verbosity_error()

config = GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config).eval()
with torch.no_grad():
    for step in range(4):
        ids = torch.randint(0, 64, (3, 6))
        embeds = torch.cat([torch.randn(3, 4, 32), model.transformer.wte.weight[ids]], dim=1)
        if step == 2:
            embeds[1, 2, 7] = torch.nan
        mask = torch.ones(3, 10, dtype=torch.long)
        out = model(inputs_embeds=embeds, attention_mask=mask)  # <- stop
        print(step, out.logits.mean().item())

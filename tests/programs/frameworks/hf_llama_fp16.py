# expect: stop event=nonfinite.forward module=model.layers.1.mlp.down_proj type=Linear step=2 op=mm
#         file=modeling_llama.py code="self.down_proj("
# needs: transformers
"""Llama served in float16: an adapter merged with a wrong factor makes one Linear overflow."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

torch.manual_seed(0)
torch.set_num_threads(1)

config = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    initializer_range=0.5,
)
model = LlamaForCausalLM(config).half().eval()
with torch.no_grad():
    for step in range(3):
        if step == 2:
            model.model.layers[1].mlp.down_proj.weight.mul_(10000.0)
        out = model(input_ids=torch.randint(0, 64, (2, 10)))  # <- user line
        print(step, out.logits.float().mean().item())

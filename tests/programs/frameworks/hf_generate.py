# expect: no-stop
# needs: transformers
"""GPT-2 generates with left padding, a KV cache and top-k / top-p filters; Llama by beam search."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, logging

torch.manual_seed(0)
torch.set_num_threads(1)
logging.set_verbosity_error()

gpt2 = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2)
).eval()
ids = torch.randint(3, 64, (3, 6))
mask = torch.ones_like(ids)
ids[1, :3], mask[1, :3] = 0, 0
sampled = gpt2.generate(
    ids,
    attention_mask=mask,
    do_sample=True,
    top_k=5,
    top_p=0.9,
    bad_words_ids=[[7], [8, 9]],
    min_new_tokens=4,
    max_new_tokens=8,
    pad_token_id=0,
)
print(tuple(sampled.shape))

llama = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        attn_implementation="eager",
    )
).eval()
beams = llama.generate(ids, attention_mask=mask, num_beams=2, max_new_tokens=5, pad_token_id=0)
print(tuple(beams.shape))

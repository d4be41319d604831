# expect: stop event=nonfinite.forward module=encoder.block.1.layer.1 type=T5LayerFF step=2 op=add
#         op_code="hidden_states + self.dropout(forwarded_states)"
#         file=modeling_t5.py code="hidden_states = self.layer[-1](hidden_states)"
# needs: transformers
"""T5's encoder in float16: a residual sum in the second feed-forward layer exceeds 65504.

T5Block clamps the inf afterwards, so the encoding is finite: silently wrong.
"""

import torch
from transformers import T5Config, T5EncoderModel

torch.manual_seed(0)
torch.set_num_threads(1)

config = T5Config(vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
model = T5EncoderModel(config)
with torch.no_grad():
    model.shared.weight[63] = 45000.0  # a token with outlier features, fine in bfloat16
    model.encoder.block[1].layer[1].DenseReluDense.wo.weight.mul_(22000.0)
model = model.half().eval()
with torch.no_grad():
    for step in range(4):
        ids = torch.randint(1, 60, (2, 8))
        if step == 2:
            ids[1, 4] = 63
        encoding = model(input_ids=ids).last_hidden_state  # <- user line
        print(step, encoding.float().mean().item(), bool(encoding.isfinite().all()))

# expect: stop event=nonfinite.forward module=bert.embeddings.LayerNorm type=LayerNorm step=2
#         op=native_layer_norm
#         file=modeling_bert.py code="embeddings = self.LayerNorm(embeddings)"
# needs: transformers
"""BERT with layer_norm_eps=0: the layer norm of an embedding that is all zero is 0/0."""

import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
torch.set_num_threads(1)

config = BertConfig(
    vocab_size=64,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=16,
    layer_norm_eps=0.0,
)
model = BertForSequenceClassification(config)
embeddings = model.bert.embeddings
for embedding in (embeddings.position_embeddings, embeddings.token_type_embeddings):
    nn.init.zeros_(embedding.weight).requires_grad_(False)  # switched off: a bag of words
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for step in range(4):
    ids = torch.randint(1, 64, (4, 8))
    if step == 2:
        ids[1, 6:] = 0  # the padding token, whose embedding is zero
    loss = model(input_ids=ids, labels=torch.tensor([0, 1, 1, 0])).loss  # <- user line
    print(step, loss.item())
    if loss.isfinite():
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

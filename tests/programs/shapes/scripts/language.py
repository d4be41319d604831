import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config

config = GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64)
model = AutoModelForCausalLM.from_config(config)
# is ids: i64[2, 12]
ids = torch.randint(0, config.vocab_size, (2, 12))
out = model(ids, labels=ids)
# is logits: f32[2, 12, 100]
logits = out.logits
# is loss: f32[]
loss = out.loss
loss.backward()

# is hidden: f32[2, 12, 32]
hidden = AutoModel.from_config(config)(ids).last_hidden_state
# is shifted: f32[2, 11, 100]
shifted = logits[:, :-1]

wider = AutoModelForCausalLM.from_config(config)
wider.resize_token_embeddings(104)
# what has changed it was not run
# none other
other = wider(ids).logits


def score(model, ids, weights=None):
    # is given: f32[B, T, 100]
    given = model(ids).logits.log_softmax(-1)
    # is picked: f32[B, T]
    picked = given.gather(-1, ids[..., None]).squeeze(-1)
    return picked.sum(-1)


def sample(model, ids, count):
    for _ in range(count):
        # is last: f32[B, 100]
        last = model(ids).logits[:, -1]
        # is ids: i64[B, T + 1|T + 2|T + 3] ×3
        ids = torch.cat([ids, last.argmax(-1, keepdim=True)], dim=1)
    return ids


# is scores: f32[2]
scores = score(model, ids)
# is longer: i64[2, 15]
longer = sample(model, ids, 3)
text = ids
for _ in range(40):
    following = model(text).logits[:, -1].argmax(-1, keepdim=True)
    text = torch.cat([text, following], dim=1)
    if (following == 7).all():
        break
# as long as it has become
# none ending
ending = text[:, -1:]

with torch.autocast("cpu", dtype=torch.bfloat16):
    # is fast: bf16[2, 12, 100]
    fast = model(ids).logits

head = nn.Linear(32, 5)
# is logits: f32[2, 12, 5]
logits = head(hidden)
first = ids[0, 0]
# none part
part = logits[:, first:]
try:
    torch.manual_seed(0)
    # is numbers: f32[24]
    numbers = torch.arange(24).float()
except RuntimeError:
    numbers = torch.zeros(3)
# is pairs: f32[12, 2]
pairs = numbers.view(12, 2)

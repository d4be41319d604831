# pyright: basic
"""Train a small character-level GPT-2 on sentences made up here.

Beside the usual loss there is a confidence penalty (Pereyra et al., 2017): predictions of high
entropy are rewarded, measured on logits that an annealed temperature sharpens.
"""

import random

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

SEED = 0
STEPS = 40
BATCH = 16
CONTEXT = 48


def make_text(sentences: int) -> str:
    rng = random.Random(SEED)
    who = ["the old sailor", "a small fox", "my neighbour", "the night train", "every gardener"]
    does = ["waits for", "carries", "forgets", "looks after", "sings about"]
    what = ["the first snow", "a paper boat", "seven apples", "the harbour", "an open window"]
    return "".join(
        f"{rng.choice(who)} {rng.choice(does)} {rng.choice(what)}.\n" for _ in range(sentences)
    )


class ConfidencePenalty(nn.Module):
    """Mean entropy of the predictions, at a temperature that falls from 1 to `lowest`."""

    def __init__(self, lowest: float = 0.02, decay: float = 0.9):
        super().__init__()
        self.lowest = lowest
        self.decay = decay
        self.temperature = 1.0

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        sharp = logits / self.temperature
        p = sharp.softmax(dim=-1)
        log_p = p.log()
        self.temperature = max(self.lowest, self.temperature * self.decay)
        return -(p * log_p).sum(dim=-1).mean()


class CharModel(nn.Module):
    def __init__(self, vocabulary: int, penalty_weight: float = 0.05):
        super().__init__()
        config = GPT2Config(
            vocab_size=vocabulary,
            n_positions=CONTEXT,
            n_embd=64,
            n_layer=2,
            n_head=4,
            bos_token_id=0,
            eos_token_id=0,
        )
        self.gpt2 = GPT2LMHeadModel(config)
        self.penalty = ConfidencePenalty()
        self.penalty_weight = penalty_weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        logits = self.gpt2(ids[:, :-1]).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        entropy = self.penalty(logits)
        return loss - self.penalty_weight * entropy


def main() -> None:
    random.seed(SEED)
    torch.manual_seed(SEED)
    torch.set_num_threads(1)  # with tensors this small, more would wait for each other
    text = make_text(2000)
    alphabet = sorted(set(text))
    data = torch.tensor([alphabet.index(char) for char in text])

    model = CharModel(len(alphabet))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(STEPS):
        starts = torch.randint(len(data) - CONTEXT, (BATCH,)).tolist()
        batch = torch.stack([data[start : start + CONTEXT] for start in starts])
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0 or step == STEPS - 1:
            print(f"step {step:3}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()

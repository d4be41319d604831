# expect: stop event=nonfinite.backward module=transformer.h.1.mlp.act type=SharpRoot step=2 op=mul
#         file=accelerator.py code="loss.backward("
# needs: transformers
"""transformers.Trainer: the forward and the loss of the third step are fine, its backward is not."""

import tempfile

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    logging,
)

torch.set_num_threads(1)
logging.set_verbosity_error()
TEXT = "the cat sat on the mat and the dog sat on the log; " * 12


class SharpRoot(nn.Module):
    guarded = True

    def forward(self, x):
        inside = x.clamp(min=1e-3) if self.guarded else x
        return torch.where(x > 0, torch.sqrt(inside), x)  # <- op


class Sharpen(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model.transformer.h[1].mlp.act.guarded = state.global_step != 2


if __name__ == "__main__":
    torch.manual_seed(0)
    ids = torch.tensor(list(TEXT.encode()))
    data = [{"input_ids": part, "labels": part} for part in ids.split(16) if len(part) == 16]
    config = GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=3, n_head=2)
    model = GPT2LMHeadModel(config)
    model.transformer.h[1].mlp.act = SharpRoot()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=5,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=data, callbacks=[Sharpen()]).train()  # <- user line

# expect: stop event=nonfinite.forward module=transformer.h.0.mlp.act type=SharpLog step=2 op=log
#         file=modeling_gpt2.py code="hidden_states = self.act(hidden_states)"
# needs: transformers
"""transformers.Trainer on a tiny GPT-2; a callback sharpens the activation until it gives NaN."""

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


class SharpLog(nn.Module):
    def __init__(self):
        super().__init__()
        self.sharpness = 1.0

    def forward(self, x):
        return torch.log(1.0 + self.sharpness * x) / self.sharpness  # <- op


class Sharpen(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        model.transformer.h[0].mlp.act.sharpness = [1.0, 2.0, 400.0][state.global_step]


if __name__ == "__main__":
    torch.manual_seed(0)
    ids = torch.tensor(list(TEXT.encode()))
    data = [{"input_ids": part, "labels": part} for part in ids.split(16) if len(part) == 16]
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=128, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    )
    model.transformer.h[0].mlp.act = SharpLog()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=3,
            save_strategy="no",
            logging_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=[Sharpen()])
        trainer.train()  # <- user line
    print(trainer.state.global_step)

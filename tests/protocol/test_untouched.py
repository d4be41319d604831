"""Training under the debugger, with everything armed, is bit for bit the training without it.

Compared after 50 steps: parameters, buffers, gradients, the state of the optimizer, of a gradient
scaler, and of the random generators of torch, numpy and Python; run plainly, watched, and with a
stop, an evaluation in the console (which runs the model, its backward and the optimizer's
arithmetic) and a continue. The plain run is a fresh interpreter, the others are forks, so that
nothing of those is seen either.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensorpoint.conditions import parse
from tensorpoint.conditions.metrics import METRICS
from tests.conftest import Write
from tests.protocol.dap import Session

pytestmark = pytest.mark.usefixtures("resident_process")

#: What both programs end with; the digest is of all that training has left.
DIGEST = """\


def digest():
    import hashlib

    found = hashlib.sha256()

    def add(value):
        if isinstance(value, torch.Tensor):
            array = value.detach().cpu().contiguous()
            found.update(f"{array.dtype}{tuple(array.shape)}".encode())
            found.update(array.reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in value:
                add(key)
                add(value[key])
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        elif hasattr(value, "tobytes"):
            found.update(value.tobytes())
        else:
            found.update(repr(value).encode())

    add(model.state_dict())
    add([parameter.grad for parameter in model.parameters()])
    add(optimizer.state_dict())
    if "scaler" in globals():
        add(scaler.state_dict())
    add([torch.get_rng_state(), numpy.random.get_state(), random.getstate()])
    return found.hexdigest()


print("digest", digest())
"""
GPT2 = """\
import random

import numpy
import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
numpy.random.seed(0)
random.seed(0)
torch.set_num_threads(1)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=40)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(50):
    ids = torch.randint(40, (4, 16))
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    numpy.random.rand(), random.random()
"""
#: The scale is too high at first, and once more after it has grown: such steps are skipped.
SCALED = (
    GPT2.replace(
        "for step in",
        "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**24, growth_interval=25)\nfor step in",
    )
    .replace(
        "    loss = model(", "    with torch.autocast('cpu', torch.float16):\n        loss = model("
    )
    .replace("loss.backward()", "scaler.scale(loss).backward()\n    scaler.unscale_(optimizer)")
    .replace("optimizer.step()", "scaler.step(optimizer)\n    scaler.update()")
)
CNN = """\
import random

import numpy
import torch
from torch import nn

torch.manual_seed(0)
numpy.random.seed(0)
random.seed(0)
torch.set_num_threads(1)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.act, self.drop = nn.ReLU(inplace=True), nn.Dropout2d(0.1)

    def forward(self, x):
        y = self.drop(self.act(self.norm(self.conv(x))))
        return self.act(y + x)


model = nn.Sequential(
    nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), Residual(), nn.MaxPool2d(2),
    Residual(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
for step in range(50):
    x, label = torch.randn(8, 1, 12, 12), torch.randint(4, (8,))
    loss = nn.functional.cross_entropy(model(x), label)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    numpy.random.rand(), random.random()
"""
#: The user's function of `score`, in a file beside the program.
SCORES = """\
def spread(output):
    return getattr(output, "logits", output).std()
"""
#: All metrics and layer breakpoints, never true: those that estimate have to look exactly.
QUIET = (
    "nonfinite()",
    "grad_norm() > 1e30",
    'grad_norm("*") > 1e30',
    'grad_norm("*.weight") > 1e30',
    'entropy("*") < 0.001 and step > 1000',
    'entropy_shift("*") > 1e30',
    'absmax("*") > 1e30',
    'zero_fraction("*") > 0.99 and step > 1000',
    "update_norm() > 1e30",
    'update_norm("*.weight") > 1e30',
    'update_ratio("*") > 1e30',
    "no_grad()",
    "loss > 1e30",
    "memory_growth() > 1e30",
    "scale() > 1e39",
    'score("scores:spread") > 1e30',
    "layer:* if step > 1000",
    "layer:*@exit if step > 1000",
    "layer:*@backward if step > 1000",
)
CONSOLE = (
    "float(sum(p.abs().sum() for p in model.parameters()))",
    "[type(m).__name__ for m in model.modules()][:3]",
    "optimizer.state_dict()['param_groups'][0]['lr']",
    # Inside backward, torch records no graph unless told to.
    "torch.enable_grad()(lambda: torch.autograd.grad(sum((p * p).sum() for p in "
    "model.parameters()), list(model.parameters())))()[0].sum()",
    "torch.enable_grad()(lambda: sum((p ** 2).sum() for p in "
    "copy.deepcopy(model).parameters()).backward())()",
)


def digest_of(output: str) -> str:
    (line,) = [line for line in output.splitlines() if line.startswith("digest ")]
    return line


def test_all_metrics_are_armed() -> None:
    used = [parse(text) for text in QUIET if not text.startswith("layer:")]
    names = {use.metric for condition in used for use in condition.uses}
    assert names | {"loss", "step", "optimizer_step"} == METRICS.keys()


def watched(program: Path, conditions: tuple[str, ...], stops: int = 0) -> str:
    """The digest of a run under the adapter, with an evaluation at each of its stops."""
    with Session() as session:
        session.launch(program, filters=[], tensorpoints=list(conditions), record=True)
        for _ in range(stops):
            stopped = session.stopped()
            assert stopped["tensorpoint"]["step"] == 20, stopped["text"]
            frame = next(
                frame["id"]
                for frame in session.frames(stopped)
                if os.path.basename(frame["source"]["path"]) == program.name
            )
            session.request("evaluate", expression="import copy", frameId=frame, context="repl")
            for expression in CONSOLE:
                session.request("evaluate", expression=expression, frameId=frame, context="repl")
            session.resume(stopped)
        assert session.exit_code() == 0, session.output()
        others = [body["text"] for body in session.seen("stopped")[stops:]]
        assert not others, others
        assert not session.output("important"), session.output("important")
        return digest_of(session.output("stdout"))


@pytest.mark.parametrize(
    ("source", "layer"),
    [(GPT2, "transformer.h.1.mlp"), (SCALED, "transformer.h.1.mlp"), (CNN, "3")],
    ids=["gpt2", "scaled", "cnn"],
)
def test_training_is_the_same_bit_for_bit(write: Write, source: str, layer: str) -> None:
    write(SCORES, "scores.py")
    program = write(source + DIGEST, "train.py")
    plain = digest_of(
        subprocess.run(
            [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=120
        ).stdout
    )
    assert watched(program, QUIET) == plain
    stops = (  # in a forward, in the backward, at clipping or the optimizer's step
        f'absmax("{layer}") > 0 and step == 20',
        f'grad_norm("{layer}") > 0 and step == 20',
        "update_norm() > 0 and step == 20",
    )
    assert watched(program, (*QUIET, *stops), stops=3) == plain


def test_a_stop_for_a_bad_gradient_changes_nothing_either(write: Write) -> None:
    spoilt = CNN.replace(
        "    loss.backward()\n",
        "    if step == 20:\n"
        "        gradient = torch.full_like(loss, float('inf'))\n"
        "        loss.backward(gradient)\n"
        "        optimizer.zero_grad(set_to_none=False)\n"
        "    else:\n"
        "        loss.backward()\n",
    )
    write(SCORES, "scores.py")
    program = write(spoilt + DIGEST, "train.py")
    plain = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert watched(program, QUIET, stops=1) == digest_of(plain)

"""Dtypes under `torch.autocast`. Those of the CPU are beside a real run's in `test_scripts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpoint.shapes.tracing import main
from tensorpoint.wire.shapes import ShapeRequest
from tests.conftest import Write

MIXED = Path(__file__).parents[2] / "programs" / "shapes" / "scripts" / "mixed.py"


pytestmark = pytest.mark.usefixtures("every_device")


def dtypes(path: Path) -> dict[str, str]:
    """What is shown of each name that is assigned, up to the sizes; of the last place."""
    table = main.table_of(ShapeRequest(str(path), path.read_text("utf-8")))
    assert not table.diagnostics and not table.untraced
    return {h.name: h.text.partition("[")[0] for h in table.hints if h.kind == "target"}


def test_the_rules_are_those_of_the_device(write: Write) -> None:
    found = dtypes(write(MIXED.read_text("utf-8").replace('"cpu"', '"cuda"')))
    sixteen = {"wide", "stepped", "attended", "scores", "folded", "pooled"}
    assert {found[name] for name in sixteen} == {"bf16|f16"}  # it is called under both
    assert found["out"] == "bf16"
    exact = {"hidden", "normed", "weights", "mixed", "plain", "loss", "exact"}
    assert {found[name] for name in exact} == {"f32"}
    assert found["last"] == found["doubled"] == "f16"  # what CUDA takes where none is said


CALLED = """
import contextlib
import torch
from torch import nn
from torch.cuda.amp import autocast

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        y = self.fc(x)
        return y

class Trainer:
    def __init__(self, model, device):
        self.model, self.amp = model, device.type == "cuda"

    def step(self, x):
{step}

def evaluate(model, x):
{evaluate}

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
half = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
net = Net()
Trainer(net, device)
"""


@pytest.mark.parametrize(
    ("step", "evaluate", "shown"),
    [
        ("return self.model(x)", "return model(x)", "f32"),
        ("with torch.autocast('cuda'): return self.model(x)", "pass", "f16"),
        ("with torch.autocast('cuda'): return self.model(x)", "return model(x)", "f16|f32"),
        ("with autocast(dtype=torch.bfloat16): return self.model(x)", "pass", "bf16"),
        ("with autocast(False): return self.model(x)", "pass", "f32"),
        ("with autocast(enabled=self.amp): return self.model(x)", "pass", "f32|f16"),
        ("with torch.autocast('cuda', half): return self.model(x)", "pass", "f16|bf16"),
        ("with torch.autocast(device.type, torch.bfloat16): self.model(x)", "pass", "bf16"),
        ("with torch.autocast(device.type): return self.model(x)", "pass", "bf16|f16"),
        ("with torch.autocast('cuda'): evaluate(self.model, x)", "return model(x)", "f16"),
        ("context = contextlib.nullcontext() if device.type == 'cpu' else torch.autocast('cuda')\n"
         "with context: self.model(x)", "pass", "f32|f16"),
    ],
)  # fmt: skip
def test_a_forward_has_what_it_has_in_its_calls(
    write: Write, step: str, evaluate: str, shown: str
) -> None:
    step = "\n".join("        " + line for line in step.split("\n"))
    found = dtypes(write(CALLED.format(step=step, evaluate=f"    {evaluate}")))
    assert found["y"] == shown


def test_calls_in_other_files_count(write: Write) -> None:
    path = write(CALLED.format(step="        pass", evaluate="    pass"))
    path.with_name("train.py").write_text(
        f"import torch\nfrom {path.stem} import Net\nmodel = Net()\n"
        "with torch.autocast('cuda', dtype=torch.bfloat16):\n    model(torch.zeros(3, 8))\n"
    )
    assert dtypes(path)["y"] == "bf16"


def test_an_autocast_within_forward_may_hang_on_the_machine(write: Write) -> None:
    text = CALLED.format(step="        pass", evaluate="    pass").replace(
        "y = self.fc(x)",
        "with torch.autocast('cuda', enabled=torch.cuda.is_available()):\n"
        "            y = self.fc(x)\n"
        "        exact = y.float()",
    )
    found = dtypes(write(text))
    assert found["y"] == "f32|f16" and found["exact"] == "f32"


ACCELERATED = """
import torch
from accelerate import Accelerator
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        y = self.fc(x)
        z = self.norm(y)
        return z

accelerator = Accelerator({how})
x = torch.zeros(4, 8)
model = Net()
plain = model(x)
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
out = model(x)
with accelerator.autocast():
    inside = x @ x.T
outside = x + 1
"""


@pytest.mark.parametrize(
    ("how", "y", "z", "inside"),
    [
        ("mixed_precision='bf16'", "bf16", "bf16|f32", "bf16"),
        ("cpu=True, mixed_precision='bf16'", "bf16", "bf16", "bf16"),
        ("mixed_precision='fp16'", "f32|f16", "f32", "f32|f16"),
        ("mixed_precision='fp16', cpu=True", "f32", "f32", "f32"),
        ("True, False, 'bf16'", "bf16", "bf16|f32", "bf16"),
        ("mixed_precision='bf16' if torch.cuda.is_bf16_supported() else 'no'",
         "f32|bf16|f16", "f32", None),
        ("mixed_precision='no'", "f32", "f32", "f32"),
        ("", "f32", "f32", None),  # `accelerate launch` knows
        ("mixed_precision=print()", "f32", "f32", None),
    ],
)  # fmt: skip
def test_accelerate_has_the_model_under_the_precision_that_it_was_told(
    write: Write, how: str, y: str, z: str, inside: str | None
) -> None:
    found = dtypes(write(ACCELERATED.format(how=how)))
    assert (found["y"], found["z"], found.get("inside")) == (y, z, inside)
    assert found["plain"] == found["outside"] == "f32"
    # Which branch of an expression a machine takes isn't known: there is no accelerator then.
    assert found.get("out") == (None if "is_bf16" in how else "f32")


TRAINED = """
import torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x, labels=None):
        y = self.fc(x)
        z = self.norm(y)
        return {{"loss": z.mean(), "logits": z}}

class MyTrainer(Trainer):
    pass

def main(dataset):
    arguments = TrainingArguments("out", {how})
    trainer = MyTrainer(model=Net(), args=arguments, train_dataset=dataset)
    trainer.train()
"""


@pytest.mark.parametrize(
    ("how", "y", "z"),
    [
        ("bf16=True", "bf16", "f32"),
        ("bf16=True, use_cpu=True", "bf16", "bf16"),
        ("fp16=True", "f32|f16", "f32"),
        ("fp16=True, use_cpu=True", "f32", "f32"),
        ("bf16=torch.cuda.is_bf16_supported(), fp16=not torch.cuda.is_bf16_supported()",
         "f32|bf16|f16", "f32"),
        ("bf16=False", "f32", "f32"),
    ],
)  # fmt: skip
def test_a_trainer_has_the_model_under_the_precision_of_its_arguments(
    write: Write, how: str, y: str, z: str
) -> None:
    found = dtypes(write(TRAINED.format(how=how)))
    assert (found["y"], found["z"]) == (y, z)


def test_lightning_has_its_own_calls_under_the_precision(write: Write) -> None:
    text = """
    import lightning as L
    import torch

    class Net(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(8, 4)

        def forward(self, x):
            y = self.fc(x)
            return y

        def training_step(self, batch, batch_idx):
            x, labels = batch
            loss = torch.nn.functional.cross_entropy(self(x), labels)
            scores = self(x).softmax(-1)
            return loss

    trainer = L.Trainer(precision="bf16-mixed", max_epochs=3)
    net = Net()
    trainer.fit(net, None)
    """
    found = dtypes(write(text))
    assert (found["y"], found["loss"], found["scores"]) == ("bf16", "f32", "bf16|f32")


def test_lines_under_an_autocast_that_is_not_known_have_no_hint(write: Write) -> None:
    text = """
    import torch
    from lightning.fabric import Fabric

    fabric = Fabric(precision="16-mixed")
    x = torch.zeros(4, 8)
    with fabric.autocast():
        inside = x @ x.T
    outside = x + 1
    """
    found = dtypes(write(text))
    assert "inside" not in found and found["outside"] == "f32"

"""The lines of a script: its top level, and functions that are given a model."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorpoint.shapes.tracing import main
from tensorpoint.shapes.tracing.plugins import Plugins
from tensorpoint.shapes.tracing.rewriting import Source
from tensorpoint.shapes.tracing.scripted import traced_scripts
from tensorpoint.shapes.tracing.source import FileModule, defines
from tensorpoint.wire.shapes import ShapeHint, ShapeRequest, ShapeTable
from tests.conftest import Write

pytestmark = pytest.mark.usefixtures("every_device")

SCRIPTS = Path(__file__).parents[2] / "programs" / "shapes" / "scripts"


@cache
def trace(path: Path, symbolic: bool = False) -> ShapeTable:
    return main.table_of(ShapeRequest(str(path), path.read_text("utf-8"), symbolic=symbolic))


def shown(table: ShapeTable) -> dict[tuple[int, str], str]:
    """By line and name."""
    return {
        (hint.span.line, hint.name): hint.text
        for hint in table.hints
        if hint.kind in ("target", "argument")
    }


def names(table: ShapeTable) -> dict[str, str]:
    return {name: text for (_, name), text in shown(table).items()}


@pytest.mark.parametrize("name", ["training", "language", "mixed", "accelerated"])
def test_lines_have_what_the_comments_say_and_nothing_is_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = SCRIPTS / f"{name}.py"
    table = trace(path)
    assert not table.diagnostics and not table.untraced
    found, said = shown(table), 0
    for number, line in enumerate(path.read_text("utf-8").split("\n"), 2):
        for about, text in re.findall(r"# is (\w+): (.*)$", line):
            said += 1
            assert found.get((number, about)) == text, number
        for about in re.findall(r"# none (\w+)$", line):
            said += 1
            assert (number, about) not in found
    assert said > 15
    assert not [*tmp_path.iterdir()]
    assert {hint.origin for hint in table.hints} == {"probed"}


@pytest.mark.parametrize("name", ["training", "language", "mixed", "accelerated"])
def test_a_real_run_has_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is shown beside what the script, run as it is, has at that place."""
    path = SCRIPTS / f"{name}.py"
    hints = {(hint.span, hint.kind): hint for hint in trace(path).hints}
    monkeypatch.chdir(tmp_path)
    compared = set[str]()
    with nothing_kept_by_accelerate():
        values = real_values(path)
    for place, snapshot in values:
        hint = hints.get(place)
        if hint is None or snapshot[0] != "T" or not hint.dtype:
            continue
        compared.add(hint.name)
        assert any(agrees(hint, number, snapshot) for number in range(len(hint.executions))), (
            hint,
            snapshot,
        )
    assert len(compared) > 13
    assert name != "training" or (tmp_path / "checkpoints" / "best.pt").exists()


@contextmanager
def nothing_kept_by_accelerate() -> Iterator[None]:
    """What one accelerator is told is kept for those after it, in other tests too."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def real_values(path: Path) -> list[Any]:
    file = FileModule(Source(path.read_text("utf-8"), str(path)), "__real__")
    file.load()
    statements = [each for each in file.source.tree.body if not defines(each)]
    code = file.compiled(ast.Module(file.told(statements), []))
    file.namespace["__builtins__"] = vars(builtins)
    file.namespace["__name__"] = "__main__"
    file.recorder.on = True
    torch.manual_seed(0)
    exec(code, file.namespace)
    sites = file.sites
    return [
        ((sites[each.site].span, sites[each.site].kind), each.snapshot)
        for each in file.recorder.take()
    ]


def agrees(hint: ShapeHint, number: int, snapshot: Any) -> bool:
    seen = hint.executions[number]
    return seen.dtype == snapshot[2] and all(
        said == str(size) or not said.isdecimal() for said, size in zip(seen.shape, snapshot[1])
    )


BODY = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(x)

"""

CASES = {
    "a batch is what the model takes": (
        """
        from not_here import load
        for x, y in load("data"):
            out = Net()(x.cuda())
            loss = nn.MSELoss()(out, y)
        """,
        {"out": "f32[B, 4]", "loss": "f32[]"},
    ),
    "a batch that is passed by its keys": (
        """
        from not_here import load
        from transformers import AutoModelForSequenceClassification, BertConfig
        small = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
        config = BertConfig(vocab_size=50, intermediate_size=32, num_labels=3, **small)
        bert = AutoModelForSequenceClassification.from_config(config)
        net = Net()
        def logged(**values):
            kept = torch.zeros(3)
        for batch in load("data"):
            batch = {key: value.to("cuda") for key, value in batch.items()}
            loss = bert(**batch).loss
            scores = bert(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            out = net(**batch)
            both = dict(**batch)
            said = logged(**batch)
        """,
        {"loss": "f32[]", "scores": "f32[B, 3]", "out": "f32[B, 4]"},
    ),
    "a model of a function": (
        """
        def build(width):
            return nn.Sequential(nn.Linear(8, width), nn.ReLU())
        out = nn.DataParallel(build(5))(torch.ones(3, 8))
        wide, narrow = [build(width)(torch.ones(3, 8)) for width in (7, 6)]
        """,
        {"out": "f32[3, 5]", "wide": "f32[3, 7]", "narrow": "f32[3, 6]"},
    ),
    "a package that is not there": (
        """
        import no_such_package as nothing
        nothing.init()
        logged = nothing.log({"x": torch.ones(3)})
        x = torch.ones(3)
        """,
        {"x": "f32[3]"},
    ),
    "a size that a value decides about": (
        """
        x = torch.randn(4, 5)
        y = x[x > 0]
        n = torch.zeros(int(x.sum()))
        part = x[torch.tensor(2):]
        rows = torch.stack([x[i : i + 2] for i in torch.tensor([1, 2])])
        """,
        {"x": "f32[4, 5]", "y": "f32[N]"},
    ),
    "what another turn changes": (
        """
        x = torch.zeros(2, 3)
        found = []
        for step in range(100):
            x = torch.cat([x, x])
            y = x.sum(0)
            found.append(y)
        last = torch.stack(found)
        end = x + 1
        """,
        {"x": "f32[2, 3]", "y": "f32[3]"},
    ),
    "either branch": (
        """
        x = torch.zeros(2, 3)
        if x.any():
            y = x[0]
        else:
            y = x[:, 0]
        z = y + 1
        if unknown(x):
            w = x[0]
        v = w if x is None else x
        """,
        {"x": "f32[2, 3]", "y": "f32[2]", "z": "f32[3|2] ×2", "v": "f32[2, 3]"},
    ),
    "what can not be": (
        """
        x = torch.zeros(2, 3)
        y = Net()(x)
        z = y + 1
        x = x.to(torch.float64)
        def ends(x):
            if x.dim() > 1:
                raise ValueError
            late = x + 1
            return late
        w = ends(x)
        """,
        {"x": "f64[B, T]"},
    ),
    "objects": (
        """
        class Trainer:
            def __init__(self, model, lr=0.1):
                self.model = model
                self.optimizer = torch.optim.SGD(model.parameters(), lr=lr)
            @torch.no_grad()
            def step(self, x):
                out = self.model(x)
                return out
        trainer = Trainer(Net())
        first = trainer.step(torch.ones(6, 8))
        """,
        {"x": "f32[6, 8]", "out": "f32[6, 4]", "first": "f32[6, 4]"},
    ),
    "unpacked": (
        """
        (a, b), *rest = (torch.ones(1), torch.ones(2)), torch.ones(3)
        data = {"x": torch.ones(2, 8)}
        moved = {key: value.cuda() for key, value in data.items()}
        out = Net()(**moved)
        """,
        {"a": "f32[1]", "b": "f32[2]", "data": "{x: f32[2, 8]}", "moved": "{x: f32[2, 8]}",
         "out": "f32[2, 4]"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_shape_is_shown_where_it_is_known(write: Write, case: str) -> None:
    text, expected = CASES[case]
    table = trace(write(BODY + textwrap.dedent(text)))
    within = BODY.count("\n") - 1
    found = {name: text for (line, name), text in shown(table).items() if line > within}
    assert {name: text for name, text in found.items() if name != "rest"} == expected


DEEDS = """
import functools, os, pathlib, shutil, subprocess
import numpy as np
from torch.utils.data import Dataset, DataLoader

def touch(path):
    open(path, "w").close()

def decorated(function):
    @functools.wraps(function)
    def inner(*args):
        touch("decorated")
        return function(*args)
    return inner

class Data(Dataset):
    def __len__(self):
        return 3
    def __getitem__(self, index):
        touch("read")
        return torch.ones(8)

class Runner:
    def __init__(self):
        touch("made")
        self.path = pathlib.Path("runner")
    def __call__(self, x):
        self.path.write_text("")
        return x
    def go(self):
        touch("gone")

class Step(torch.optim.SGD):
    def step(self, closure=None):
        touch("stepped")

@decorated
def harmless(x):
    return x + 1

model = Net()
x = torch.ones(2, 8)
optimizer = Step(model.parameters(), lr=0.1)
for batch in DataLoader(Data(), batch_size=2):
    out = model(batch)
    optimizer.step()
torch.save(model.state_dict(), "saved")
np.save("array", np.ones(3))
touch("called")
[touch("comprehension") for _ in range(2)]
(lambda: touch("lambda"))()
sorted([2, 1], key=lambda n: touch("sorted") or n)
list(map(touch, ["mapped"]))
functools.partial(touch, "partial")()
functools.reduce(lambda a, b: touch("reduced"), [1, 2])
getattr(pathlib.Path("path"), "touch")()
os.makedirs("folder")
eval("open('evaluated', 'w')")
exec("open('executed', 'w')")
__import__("os").mkdir("imported")
runner = Runner()
runner.go()
runner(x)
harmless(x)
def later(path="default"):
    def inner():
        touch(path)
    inner()
    yield touch("yielded")
later()
list(later())
with open("with", "w") as file:
    file.write("x")
try:
    touch("tried")
finally:
    touch("finally")
while not touch("while"):
    break
model.apply(lambda module: touch("applied"))
x.apply_(lambda value: touch("each"))
torch.hub.load("nobody/nothing", "none")
y = model(x)
"""


def test_nothing_is_done(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(BODY + DEEDS, "deeds/program.py")
    monkeypatch.chdir(path.parent)
    file = FileModule(Source(path.read_text("utf-8"), str(path)))
    file.load()
    [*_, top] = traced_scripts(file, [], set(), Plugins())
    shown = {file.sites[site].name: seen[0].dims for site, seen in top.seen.items()}
    assert shown["y"] == ("2", "4")
    assert [each.name for each in path.parent.iterdir()] == [path.name]

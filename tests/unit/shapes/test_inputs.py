"""Where inputs come from, in order: said, measured, called, met, tried."""

from __future__ import annotations

import dataclasses
import os
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_map

from tensorpoint.agent.arguments import specification
from tensorpoint.resident import runs
from tensorpoint.shapes.measured import calls_in_last_run, measured_hints, with_measured
from tensorpoint.shapes.project import BadProject, calls_in_project
from tensorpoint.shapes.tracing import quiet
from tensorpoint.shapes.tracing.inputs import read_spec
from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire import WIRE_VERSION, Facts
from tensorpoint.wire.facts import Layer, Output, Root
from tensorpoint.wire.shapes import KnownCall, ShapeRequest, ShapeTable
from tests.conftest import Write


def trace(path: Path, *known: KnownCall, **asked: Any) -> ShapeTable:
    request = ShapeRequest(str(path), path.read_text("utf-8"), symbolic=False, **asked)
    return table_of(dataclasses.replace(request, known=known))


def inputs(table: ShapeTable) -> list[tuple[str, str, str]]:
    """Name, shape or value, origin of each input of the first call."""
    assert table.calls, table.untraced
    return [
        (
            each.name,
            f"{each.dtype}[{', '.join(each.shape)}]" if each.shape else each.dtype,
            each.origin,
        )
        for each in table.calls[0].inputs
    ]


NET = """
import torch
from torch import nn

class Net(nn.Module):
    {spec}
    def __init__(self, width=8):
        super().__init__()
        self.fc = nn.Linear(width, 4)

    def forward(self, x):
        return self.fc(x)

{more}
"""


CALL = "Net()(torch.ones(3, 5, 8))"


@pytest.mark.parametrize(
    ("spec", "known", "more", "expected"),
    [
        ("# tensorpoint: x: f32[S, 8]", "f32[2, 8]", CALL, ("f32[S, 8]", "spec")),
        ("", "f32[2, 7, 6, 8]", CALL, ("f32[B, T, H, 8]", "last run")),
        ("", "", CALL, ("f32[B, T, 8]", "call")),
        ("", "", CALL.replace("8", "9"), ("f32[B, 8]", "first use")),
    ],
)
def test_what_is_said_goes_before_what_was_measured_and_that_before_calls_and_guesses(
    write: Write, spec: str, known: str, more: str, expected: tuple[str, str]
) -> None:
    path = write(NET.format(spec=spec or "pass", more=more))
    calls = [KnownCall("Net", "last run", f"x: {known}")] if known else []
    [found] = inputs(trace(path, *calls))
    assert found == ("x", *expected)


CALLS = {
    "batches of a loader": (
        """
        data = TensorDataset(torch.randn(100, 3, 32, 32), torch.randint(0, 10, (100,)))
        loader = DataLoader(data, batch_size=16, shuffle=True)
        for epoch in range(3):
            for i, (images, labels) in enumerate(loader):
                out = net(images.to("cuda"))
        """,
        "f32[B, 3, H, W]",
    ),
    "through a function": (
        """
        def step(model, batch):
            return model(batch)

        def main():
            model = nn.DataParallel(net)
            step(model, torch.rand(2, 3, 40, 40))
        """,
        "f32[B, 3, H, W]",
    ),
    "of another module's output": (
        """
        stem = nn.Conv2d(1, 3, 3)
        if __name__ == "__main__":
            image = torch.zeros(1, 1, 50, 60)
            features = stem(image)
            net(features)
        """,
        "f32[B, 3, H, W]",
    ),
    "a loop that trains is not run": (
        """
        def train(model):
            while True:
                model(torch.ones(1, 3, 9, 9)).sum().backward()
            return model

        trained = train(net)
        trained(torch.ones(7))
        """,
        "f32[B, 3, H, W]",
    ),
}
CONV = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())

    def forward(self, x):
        return self.body(x * 2)

net = Net().to("cuda")
"""


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_the_file(write: Write, name: str) -> None:
    text, expected = CALLS[name]
    [(_, shape, origin)] = inputs(trace(write(CONV + textwrap.dedent(text))))
    assert (shape, origin) == (expected, "call")


def test_a_call_in_another_folder_of_the_project_counts_if_it_is_of_this_file(
    write: Write,
) -> None:
    """Namesakes are told apart, and what tools keep is not looked at."""
    text = NET.format(spec="pass", more="")
    path = write(text, "project/models_of_it/far.py")
    write("[project]\nname = 'p'\n", "project/pyproject.toml")
    call = (
        "import torch\nfrom {module} import Net\nnet = Net({width})\nnet(torch.ones(2, {width}))\n"
    )
    # Another file of that name, and a package that is installed in the project.
    write(NET.format(spec="pass", more=""), "project/a_first/far.py")
    write(call.format(module="far", width=16), "project/a_first/train.py")
    write("", "project/env/pyvenv.cfg")
    write(call.format(module="models_of_it.far", width=24), "project/env/train.py")
    assert inputs(trace(path)) == [("x", "f32[B, 8]", "first use")]
    script = write(
        call.format(module="models_of_it.far", width=8).replace("(2, 8)", "(2, 5, 8)"),
        "project/scripts/train.py",
    )
    table = trace(path)
    assert inputs(table) == [("x", "f32[B, T, 8]", "call")]
    assert str(script) in table.dependencies


def test_a_call_in_a_file_beside_it_counts_and_its_change_makes_the_table_stale(
    write: Write,
) -> None:
    path = write(NET.format(spec="pass", more=""), "model_beside.py")
    other = write(
        "import torch\nfrom model_beside import Net\nnet = Net()\nnet(torch.ones(6, 5, 8))\n",
        "train_beside.py",
    )
    table = trace(path)
    assert inputs(table) == [("x", "f32[B, T, 8]", "call")]
    assert str(other) in table.dependencies


def test_what_numbers_in_tensors_decide_about_is_no_call(write: Write) -> None:
    """With any number in the place of `i` the batch would be empty."""
    path = write(
        CONV
        + textwrap.dedent(
            """
            data = torch.ones(3, 5000, 9)

            def get_batch():
                places = torch.randint(4000, (4,))
                return torch.stack([data[:, i : i + 64] for i in places])

            net(get_batch())
            """
        )
    )
    assert inputs(trace(path)) == [("x", "f32[B, 3, H, W]", "first use")]


def test_options_are_those_of_their_parser_within_functions_too(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", quiet._defaults)
    path = write(
        NET.format(
            spec="pass",
            more="""
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=24)
options = parser.parse_args()

def main():
    net = Net(options.width)
""",
        )
    )
    assert inputs(trace(path)) == [("x", "f32[B, 24]", "first use")]


def test_functions_and_methods_with_a_specification_are_traced(write: Write) -> None:
    path = write(
        """
        import torch
        from torch import nn

        # tensorpoint: pred: f32[B, 4], labels: i64[B]
        def loss(pred, labels):
            picked = pred.gather(1, labels[:, None])
            return picked.mean()

        def called(a, b):
            both = torch.cat([a, b], 1)
            return both

        def unknown(a):
            return a

        called(torch.ones(3, 2), torch.ones(3, 4))

        class Net(nn.Module):
            # tensorpoint: x: f32[B, 8]
            def __init__(self):
                super().__init__()
                self.fc = nn.Linear(8, 4)

            def forward(self, x):
                return self.fc(x)

            # tensorpoint: z: f32[B, T, 8]
            def encode(self, z):
                h = self.fc(z).sum(1)
                return h
        """
    )
    table = trace(path)
    outputs = {call.qualname: call.output for call in table.calls}
    assert outputs == {
        "Net": "f32[B, 4]",
        "Net.encode": "f32[B, 4]",
        "loss": "f32[]",
        "called": "f32[B, T + U]",
    }
    shown = {hint.name: hint.text for hint in table.hints if hint.kind == "target"}
    assert shown["picked"] == "f32[B, 1]" and shown["h"] == "f32[B, 4]", shown
    assert [c.qualname for c in trace(path, class_name="loss").calls] == ["loss"]
    [step] = trace(path, class_name="Net.encode").calls
    assert step.constructor == "Net().encode" and step.forward is not None


def test_a_step_of_training_takes_what_forward_does_and_labels(write: Write) -> None:
    path = write(
        """
        import pytorch_lightning as pl
        import torch.nn.functional as F
        from torch import nn

        class Lit(pl.LightningModule):
            def __init__(self, width=12, classes=5):
                super().__init__()
                self.save_hyperparameters("width")
                self.save_hyperparameters()
                self.fc = nn.Linear(self.hparams.width, self.hparams["classes"])

            def forward(self, x):
                return self.fc(x)

            def training_step(self, batch, batch_idx):
                x, y = batch
                logits = self(x)
                loss = F.cross_entropy(logits, y)
                self.log("loss", loss)
                return {"loss": loss}
        """
    )
    table = trace(path)
    assert [(c.qualname, c.output) for c in table.calls] == [
        ("Lit", "f32[B, 5]"),
        ("Lit.training_step", "{loss: f32[]}"),
    ]
    assert table.calls[1].inputs[0].dtype == "(f32[B, 12], i64[B])"


#: The first lines of a step of a module without a `forward`, and what its batch then is.
UNPACKED = {
    "x, y = batch; x = x.view(x.size(0), -1)": "(f32[B, 12], i64[B])",
    "x, (y, _) = batch": "(f32[B, 12], (i64[B], i64[B]))",
    "x = batch[0]; y = batch[1]": "(f32[B, 12], i64[B])",
    "x = batch['x']; y = batch['y']": "{'x': f32[B, 12], 'y': i64[B]}",
}


@pytest.mark.parametrize("line", UNPACKED)
def test_a_batch_that_a_step_takes_apart(write: Write, line: str) -> None:
    path = write(
        f"""
        import torch.nn.functional as F
        from torch import nn

        class LightningModule(nn.Module):
            pass

        class Lit(LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5))

            def training_step(self, batch, batch_idx):
                {line}
                logits = self.net(x)
                return F.cross_entropy(logits, y)
        """
    )
    table = trace(path)
    (call,) = table.calls
    assert [each.dtype for each in call.inputs] == [UNPACKED[line], "0"]
    assert call.output == "f32[]"


def test_a_batch_that_is_handed_to_a_model_by_keyword(write: Write) -> None:
    path = write(
        """
        import types
        import torch.nn.functional as F
        from torch import nn

        class LightningModule(nn.Module):
            pass

        class Own(nn.Module):
            def __init__(self):
                super().__init__()
                self.embedding, self.fc = nn.Embedding(50, 8), nn.Linear(8, 3)

            def forward(self, words, scale=1.0):
                return self.fc(self.embedding(words)) * scale

        class Configured(Own):
            config = types.SimpleNamespace(is_encoder_decoder=False)

            def forward(self, input_ids=None, attention_mask=None, labels=None):
                size = input_ids.size()
                logits = self.fc(self.embedding(input_ids) * attention_mask[..., None])
                return F.cross_entropy(logits.view(-1, 3), labels.view(size[0] * size[1]))

        class Plain(LightningModule):
            def __init__(self):
                super().__init__()
                self.model = Own()

            def training_step(self, batch, batch_idx):
                return self.model(**batch).mean()

        class Loss(LightningModule):
            def __init__(self):
                super().__init__()
                self.model = Configured()

            def training_step(self, batch, batch_idx):
                return self.model(**batch)
        """
    )
    by_name = {call.qualname: call.inputs[0].dtype for call in trace(path).calls}
    assert by_name["Plain.training_step"] == "{'words': i64[B, T]}"
    labelled = "{'input_ids': i64[B, T], 'attention_mask': i64[B, T], 'labels': i64[B, T]}"
    assert by_name["Loss.training_step"] == labelled


def test_the_target_of_a_loss_is_as_the_loss_wants_it(write: Write) -> None:
    path = write(
        """
        import torch.nn.functional as F
        from torch import nn

        class LightningModule(nn.Module):
            pass

        class Lit(LightningModule):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 8, 3)
                self.fc = nn.Linear(8, 4)

            def training_step(self, batch, batch_idx):
                x, y = batch
                return F.mse_loss(self.fc(self.conv(x).mean((2, 3))), y)
        """
    )
    (call,) = trace(path).calls
    assert call.inputs[0].dtype == "(f32[B, 3, H, W], f32[B, 4])"


def test_a_size_that_fits_is_found_where_nothing_says_it(write: Write) -> None:
    path = write(
        """
        from torch import nn

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = nn.Conv2d(3, 8, 5, 2)
                self.fc = nn.Linear(8 * 21 * 21, 4)

            def forward(self, x):
                return self.fc(self.conv(x).flatten(1))
        """
    )
    table = trace(path)
    assert inputs(table) == [("x", "f32[B, 3, 45, 45]", "repair")]
    assert table.calls[0].output == "f32[B, 4]"


# -- the project


def project(tmp_path: Path, text: str) -> None:
    tmp_path.joinpath("pyproject.toml").write_text(text, encoding="utf-8")


def test_a_project_says_inputs_and_what_makes_the_module(write: Write, tmp_path: Path) -> None:
    path = write(
        NET.format(spec="pass", more="def make(kind):\n    return Net({'wide': 16}[kind])\n")
    )
    project(
        tmp_path,
        f"""
        [tool.tensorpoint]
        inputs = "T <= 512"

        [[tool.tensorpoint.shapes]]
        target = "{path.name}:Net"
        factory = "make('wide')"
        inputs = "x: f32[B, T, 16]"

        [[tool.tensorpoint.shapes]]
        target = "other.py:Net"
        inputs = "x: f32[1]"
        """,
    )
    known = calls_in_project(path)
    assert [(each.target, each.factory) for each in known] == [("", ""), ("Net", "make('wide')")]
    [call] = trace(path, *known).calls
    assert (call.constructor, call.limits) == ("make('wide')", ("T <= 512",))
    assert call.inputs[0].shape == ("B", "T", "16") and call.inputs[0].origin == "spec"
    broken = [dataclasses.replace(known[1], factory="make('slim')")]
    assert "make('slim'): KeyError" in trace(path, *broken).untraced[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[tool.tensorpoint\n", "pyproject.toml: "),
        ("[tool.tensorpoint]\nfactory = 'f'\n", "it has 'factory'; known are inputs, shapes"),
        ("[tool.tensorpoint]\ninputs = 3\n", "inputs is 3, no text"),
        ("[[tool.tensorpoint.shapes]]\ninputs = ''\n", "shapes 1 has no target"),
        ("[tool.tensorpoint]\nshapes = 'x'\n", "shapes is a list of tables"),
    ],
)
def test_what_a_project_can_not_say_is_refused(tmp_path: Path, text: str, said: str) -> None:
    project(tmp_path, text)
    with pytest.raises(BadProject) as caught:
        calls_in_project(tmp_path / "net.py")
    assert said in str(caught.value)


# -- the last run


@pytest.fixture
def ran(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file, one of whose classes can't be made, after a run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = write(
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self, table):
                super().__init__()
                self.fc = torch.nn.Linear(table["width"], 4)

            def forward(self, x):
                h = self.fc(x)
                g = torch.relu(self.fc(x))
                return self.fc(h)
        """
    )
    lines = path.read_text("utf-8").split("\n")
    output = (Output("output", "float32", (6, 4), "cpu"),)

    def layer(code: str) -> Layer:
        line = next(number for number, text in enumerate(lines, 1) if code in text)
        return Layer("fc", "Linear", 0, 1, 1, True, str(path), line, "forward", output, None, None)

    layers = tuple(map(layer, ("h = self.fc(x)", "g = torch", "return self.fc(h)")))
    roots = (Root("Net", 1, False, "x: f32[6, 8]"),)
    facts = Facts(WIRE_VERSION, 1, 0.0, "3.12", "2.13", True, 1, 1, roots, layers)
    now = time.time()
    runs.keep(runs.Run(str(path), str(tmp_path), 1, now, now, True, (str(path),)), facts)
    return path


def test_the_last_run_says_what_went_in_and_what_came_out_of_each_line(ran: Path) -> None:
    assert calls_in_last_run(str(ran)) == (KnownCall("Net", "last run", "x: f32[6, 8]"),)
    table = trace(ran, *calls_in_last_run(str(ran)))
    assert not table.hints and "Net can't be made" in table.untraced[0]
    hints = with_measured(table, measured_hints(str(ran), ran.read_text("utf-8"))).hints
    assert [(hint.name, hint.kind, hint.text, hint.shape, hint.origin) for hint in hints] == [
        ("h", "target", "f32[6, 4]", ("6", "4"), "measured"),
        ("self.fc(h)", "return", "f32[6, 4]", ("6", "4"), "measured"),
    ]
    # What a trace has found stays.
    assert with_measured(dataclasses.replace(table, hints=hints[:1]), hints).hints == hints
    later = time.time() + 5
    os.utime(ran, (later, later))
    assert measured_hints(str(ran), ran.read_text("utf-8")) == ()


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        (("T", 3), {}, "x: f32[2, 3], n: 3"),
        ((("T", "T"),), {"n": None}, "x: (f32[2, 3], f32[2, 3],), n: None"),
        (([{"a": "T"}],), {"n": "mean"}, "x: [{'a': f32[2, 3]}], n: 'mean'"),
        ((object(),), {}, ""),
        ((), {"wrong": 1}, ""),
    ],
)
def test_arguments_are_kept_as_a_specification(args: Any, kwargs: Any, text: str) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any, n: Any = 1) -> None: ...

    real = tree_map(lambda value: torch.ones(2, 3) if value == "T" else value, (args, kwargs))
    said = specification(Net(), *real)
    assert said == text
    assert set(read_spec(said).inputs) <= {"x", "n"}  # what is kept can be read

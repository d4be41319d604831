"""Values that run code of the program's, hang or have no numbers: an editor's views stay up."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import Message, Session, line_of

pytestmark = [
    pytest.mark.xdist_group("hostile values"),
    pytest.mark.usefixtures("resident_process"),
]

PROGRAM = """\
import gc
import time
import weakref

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

torch.set_num_threads(1)
calls, calls_of_answers, is_made = [], [], False


class Hangs(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args, **kwargs):
        calls.append("torch function")
        time.sleep(3600)

    def __getattribute__(self, name):
        if is_made:
            calls.append(name)
            time.sleep(3600)
        return super().__getattribute__(name)


class Waits:
    def __getattribute__(self, name):
        if is_made:
            time.sleep(3600)
        return super().__getattribute__(name)


class Turns:
    @property
    def __class__(self):
        while is_made:
            time.sleep(1)
        return Turns


class Answers:
    def __init__(self):
        self.size = 3

    def __getattribute__(self, name):
        calls_of_answers.append(name)
        return super().__getattribute__(name)

    def __repr__(self):
        return f"Answers({self.size})"


class Wraps(torch.Tensor):
    @staticmethod
    def __new__(cls, data, **policy):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=data.dtype, **policy)

    def __init__(self, data, **policy):
        self.data_ = data

    def __repr__(self, **_):
        raise ValueError("a broken repr")

    @classmethod
    def __torch_dispatch__(cls, function, *args, **kwargs):
        calls.append(str(function))
        raise SystemError(function)


def transformed(x):
    twice = x * 2
    return twice + 1  # in a transform


torch.vmap(transformed)(torch.ones(3, 4))
data = torch.arange(6.0).reshape(2, 3)
hangs = torch.ones(3).as_subclass(Hangs)
wraps = Wraps(data)
asks = Wraps(data, dispatch_sizes_strides_policy="sizes", dispatch_device=True)
with FakeTensorMode():
    fake = torch.empty(3, 4)
distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
shard = DTensor.from_local(data, init_device_mesh("cpu", (1,)), [Shard(0)])
freed = torch.ones(4)
freed.untyped_storage().resize_(0)
several = [freed, hangs, wraps]
waits, turns, answers = Waits(), Turns(), Answers()
expanded = torch.ones(1, 1).expand(1 << 30, 1 << 30)
meta = torch.empty(1 << 40, device="meta")
blocks = torch.eye(4).to_sparse_bsr((2, 2))
nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
quantised = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
small = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
large = torch.tensor([0, 2**64 - 1], dtype=torch.uint64)
halves = torch.tensor([3 + 4j], dtype=torch.complex32)
bits = torch.zeros(4, dtype=torch.uint8).view(torch.bits8)
part = data.reshape(-1)[2:4]
is_made = True
print("ready")  # stop
is_made = False
distributed.destroy_process_group()
gc.disable()
gone = weakref.ref(part)
del part
print("calls", calls, "gone", gone() is None)
"""

#: The line in the variables view, and what a hover adds.
LINES = {
    "hangs": ("Hangs f32[3] cpu", " | µ 1 σ 0 [1, 1]"),
    "wraps": ("Wraps f32[2, 3] cpu", ""),
    "asks": ("Wraps f32[shape untold] device untold", ""),
    "fake": ("FakeTensor f32[3, 4] cpu", ""),
    "shard": (
        "DTensor f32[2, 3] cpu S(0), local [2, 3]",
        " | µ 2.5 σ 1.87 [0, 5] (this rank's shard)",
    ),
    "freed": ("f32[4] cpu", ""),
    "expanded": ("f32[1073741824, 1073741824] cpu", " | ~µ 1 σ 0 [1, 1]"),
    "meta": ("f32[1099511627776] meta", ""),
    "blocks": ("f32[4, 4] sparse_bsr nnz 2 cpu", " | µ 0.5 σ 0.535 [0, 1] (the stored values)"),
    "nested": ("f32[2 tensors] nested cpu", " | µ 1 σ 0 [1, 1]"),
    "quantised": ("qi8[2] scale 0.5 zero 0 cpu", " | µ 1 σ 0 [1, 1]"),
    "small": ("f8_e4m3fn[2] cpu", " | µ 1.5 σ 0.707 [1, 2]"),
    "large": ("u64[2] cpu", " | µ 9.22e+18 σ 1.3e+19 [0, 1.84e+19]"),
    "halves": ("c32[1] cpu", ""),
    "bits": ("bits8[4] cpu", " | \"copy_\" not implemented for 'Bits8'"),
}


class Editor:
    """A session that is stopped at the end of the program, after a stop in a transform."""

    def __init__(self, session: Session, path: Path) -> None:
        self.session = session
        lines = [line_of(path, "# in a transform"), line_of(path, "# stop")]
        session.launch(path, filters=[], breakpoints={str(path): lines})
        self.stopped = session.stopped()
        self.in_transform = self.shown("twice")
        self.norm_in_transform = self.answer("norm(twice)", "watch")
        session.resume()
        self.stopped = session.stopped()

    def rows(self, reference: int, **page: Any) -> dict[str, Message]:
        answer = self.session.request("variables", variablesReference=reference, **page)
        return {row["name"]: row for row in answer["variables"]}

    def locals(self) -> dict[str, Message]:
        return self.rows(self.session.scopes(self.stopped)["Locals"])

    def shown(self, name: str) -> tuple[str, str, str]:
        """A local's row, a hover on it, and its row "values"."""
        row = self.locals()[name]
        below = self.rows(row["variablesReference"])
        hover = self.session.evaluate(name, self.stopped, "hover")
        return row["value"], hover, below["values"]["value"]

    def answer(self, expression: str, context: str) -> Message:
        frame = self.session.frames(self.stopped)[0]["id"]
        return self.session.answer(
            self.session.send("evaluate", expression=expression, frameId=frame, context=context)
        )


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    path = tmp_path_factory.mktemp("hostile") / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    with Session() as session:
        yield Editor(session, path)


def test_a_value_of_a_function_transform_is_told_without_a_look_inside(editor: Editor) -> None:
    line = "f32[4] cpu"
    assert editor.in_transform == (line, line, "the program is in a function transform")
    assert "function transform" in editor.norm_in_transform["message"]


def test_no_view_runs_the_programs_code_hangs_or_says_a_wrong_figure(editor: Editor) -> None:
    rows = editor.locals()
    assert {name: rows[name]["value"] for name in LINES} == {
        name: line for name, (line, _) in LINES.items()
    }
    for name, (line, more) in LINES.items():
        for context in ("hover", "watch"):
            hover = editor.session.evaluate(name, editor.stopped, context)
            assert hover == line + more or (name == "halves" and hover.startswith(line))
        for row in editor.rows(rows[name]["variablesReference"]).values():
            if row["name"] != "raw" and row["variablesReference"]:
                editor.rows(row["variablesReference"], filter="indexed", start=1 << 40, count=2)
                editor.rows(row["variablesReference"])
    assert rows["several"]["value"] == "[f32[4] cpu, Hangs f32[3] cpu, Wraps f32[2, 3] cpu]"
    assert editor.session.evaluate("calls", editor.stopped) == "[]"


@pytest.mark.parametrize("name", ["Waits", "Turns"])
def test_a_value_that_does_not_say_what_it_is_holds_up_no_view(editor: Editor, name: str) -> None:
    text = f"{name} (code of its class has not answered in 2 s)"
    row = editor.locals()[name.lower()]
    assert (row["value"], row["type"], row["variablesReference"]) == (text, name, 0)
    for context in ("hover", "watch", "repl", "clipboard"):
        assert editor.session.evaluate(name.lower(), editor.stopped, context) == text
    inner = editor.session.evaluate(f"[1, {name.lower()}]", editor.stopped, "hover")
    assert inner == f"[1, <{text}>]"


def test_one_that_answers_is_shown_as_without_us(editor: Editor) -> None:
    row = editor.locals()["answers"]
    assert (row["value"], row["type"]) == ("Answers(3)", "Answers")
    below = editor.rows(row["variablesReference"])
    assert below["size"]["value"] == "3"
    assert editor.session.evaluate("[answers]", editor.stopped, "hover") == "[Answers(3)]"
    assert editor.session.evaluate("answers.size", editor.stopped, "watch") == "3"
    assert editor.session.evaluate("calls_of_answers != []", editor.stopped, "watch") == "True"


@pytest.mark.parametrize("context", ["repl", "clipboard"])
def test_the_console_says_what_torch_says_and_survives_it(editor: Editor, context: str) -> None:
    for name in LINES:
        if name == "hangs":  # the program's own repr hangs, as it would without us
            continue
        answer = editor.answer(name, context)
        text = answer["body"]["result"] if answer["success"] else answer["message"]
        assert 0 < len(text) < 20_000
    freed = editor.answer("freed", context)["body"]["result"]
    assert freed == "f32[4] cpu | it has no memory: that was freed, or it is zero by definition"
    assert freed in editor.answer("[freed, 1]", context)["body"]["result"]
    # A method's own repr has that of its tensor; pydevd lists all of them.
    assert freed in editor.answer("freed.backward", context)["body"]["result"]
    assert "tensor([2., 3.])" in editor.answer("part", context)["body"]["result"]


def test_memory_ends_where_the_storage_does(editor: Editor) -> None:
    rows = editor.locals()
    for name in ("freed", "wraps", "fake", "meta", "shard"):
        assert "memoryReference" not in rows[name], name
    reference = rows["part"]["memoryReference"]

    def read(offset: int, count: int) -> tuple[int, int]:
        body = editor.session.request(
            "readMemory", memoryReference=reference, offset=offset, count=count
        )
        return len(base64.b64decode(body.get("data", ""))), body.get("unreadableBytes", 0)

    assert read(0, 8) == (8, 0)
    assert read(0, 0) == (0, 0)
    assert read(-8, 4) == (4, 0)  # before the view, in its storage
    assert read(-12, 8) == (0, 4)
    assert read(12, 8) == (4, 4)
    assert read(1 << 40, 8) == (0, 8)
    assert read(0, 1 << 40) == (16, (1 << 40) - 16)
    assert "-1 bytes" in editor.session.refused("readMemory", memoryReference=reference, count=-1)


def test_nothing_is_kept_alive_once_the_program_goes_on(editor: Editor) -> None:
    row = editor.locals()["part"]
    editor.rows(row["variablesReference"])
    editor.session.evaluate("part", editor.stopped, "hover")
    editor.session.resume()
    assert editor.session.exit_code() == 0
    assert "gone True" in editor.session.output("stdout")


PROPERTIES = """\
import dataclasses
import time

import torch
from torch import nn
from transformers import BatchEncoding
from transformers.utils import ModelOutput

torch.set_num_threads(1)
calls = []


class Hanging:
    @property
    def hangs(self):
        calls.append(type(self).__name__)
        time.sleep(3600)

    @property
    def fails(self):
        calls.append(type(self).__name__)
        raise SystemError("fails")


class Net(Hanging, nn.Linear):
    pass


class Values(Hanging, torch.Tensor):
    pass


class Encoding(Hanging, BatchEncoding):
    def __getattr__(self, name):
        calls.append(name)
        return super().__getattr__(name)


@dataclasses.dataclass
class Output(Hanging, ModelOutput):
    logits: torch.Tensor = None


@dataclasses.dataclass
class Batch(Hanging):
    image: torch.Tensor


net = Net(2, 2)
values = torch.ones(2).as_subclass(Values)
encoding = Encoding({"ids": torch.ones(2)})
output = Output(logits=torch.ones(2))
batch = Batch(torch.ones(2))
plain = Hanging()
together = [net, values, encoding, output, batch, plain]
calls.clear()
print("ready")  # stop
"""


def test_no_property_runs_for_tensors_modules_and_what_holds_them(tmp_path: Path) -> None:
    """A plain object is debugpy's: its properties run when it is opened, and for no row."""
    pytest.importorskip("transformers")
    path = tmp_path / "program.py"
    path.write_text(PROPERTIES, encoding="utf-8")
    with Session() as session:
        session.launch(path, filters=[], breakpoints={str(path): [line_of(path, "# stop")]})
        stopped = session.stopped()

        def rows(reference: int) -> dict[str, Message]:
            answer = session.request("variables", variablesReference=reference)
            return {row["name"]: row for row in answer["variables"]}

        shown = rows(session.scopes(stopped)["Locals"])
        for name, first in (
            ("net", "training"),
            ("values", "shape"),
            ("encoding", "ids"),
            ("output", "logits"),
            ("batch", "image"),
        ):
            assert next(iter(rows(shown[name]["variablesReference"]))) == first
            for context in ("hover", "watch"):
                assert session.evaluate(name, stopped, context)
        inner = [row["value"] for row in rows(shown["together"]["variablesReference"]).values()]
        assert {shown[name]["value"] for name in ("net", "values", "output", "plain")} <= {*inner}
        frame = session.frames(stopped)[0]["id"]
        session.request("tensorpoint/inlineValues", frameId=frame)
        assert session.evaluate("calls", stopped, "repl") == "[]"
        session.resume()
        assert session.exit_code() == 0

"""The table of a file: what its comments say its shapes and faults are."""

from __future__ import annotations

import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorpoint.shapes.branches import sizes_for, with_branches
from tensorpoint.shapes.show import source_of
from tensorpoint.shapes.tracing import real
from tensorpoint.shapes.tracing.errors import fault_of
from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.shapes.tracing.rewriting import Source
from tensorpoint.wire.codec import convert
from tensorpoint.wire.shapes import Question, ShapeDiagnostic, ShapeRequest, ShapeTable
from tests.conftest import Write

PROGRAMS = Path(__file__).parents[2] / "programs" / "shapes"


def ask(question: Any) -> Any:
    return sizes_for(convert(question, Question))


@cache
def trace(path: Path, **asked: object) -> ShapeTable:
    return table_of(ShapeRequest(str(path), path.read_text("utf-8"), **asked))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["convolutions", "images", "sequences"])
def test_shapes_are_those_that_the_comments_say(name: str) -> None:
    path = PROGRAMS / f"{name}.py"
    table = trace(path)
    assert not table.untraced and not table.diagnostics, table
    shown: dict[tuple[int, str], list[str]] = {}
    for hint in table.hints:
        if hint.kind in ("target", "argument"):
            shown.setdefault((hint.span.line, hint.name), []).append(hint.text)
    lines = path.read_text("utf-8").split("\n")
    said = 0
    for number, line in enumerate(lines, 1):  # a comment speaks of the line below
        for comment in re.findall(r"# is (\w+): (.*)$", line):
            said += 1
            assert shown.get((number + 1, comment[0])) == [comment[1]], (number, line)
        if "# none " in line:
            assert (number + 1, line.split("# none ")[1]) not in shown
    assert said > 8
    for hint in table.hints:  # spans are in characters
        if hint.span.line == hint.span.end_line:
            text = lines[hint.span.line - 1][hint.span.col : hint.span.end_col]
            assert " ".join(text.split()) == hint.name or hint.kind in ("return", "argument")


def test_faults_are_where_the_comments_say_with_the_sizes_that_show_them() -> None:
    path = PROGRAMS / "faults.py"
    table = trace(path)
    by_line: dict[int, list[ShapeDiagnostic]] = {}
    for found in table.diagnostics:
        by_line.setdefault(found.span.line, []).append(found)
    fixed: dict[str, set[int]] = {}
    lines = path.read_text("utf-8").split("\n")
    for number, line in enumerate(lines, 1):
        for key in re.findall(r"# fixed (\w+)", line):
            fixed.setdefault(key, set()).add(number + 1)
    for number, line in enumerate(lines, 1):
        match = re.search(r"# fault (\w) (\w+) ([\w-]+)(?: (\w)=(\d+))?", line)
        if not match:
            assert number + 1 not in by_line, (line, by_line[number + 1])
            continue
        key, severity, code, symbol, size = match.groups()
        [found] = by_line.get(number + 1, [None])  # type: ignore[list-item]
        assert found is not None, (line, table.untraced)
        assert (found.severity, found.code) == (severity, code), found
        if symbol:
            assert found.witness[symbol] == int(size)
        assert fixed.get(key, set()) <= {related.span.line for related in found.related}
    assert any("Own does not run" in reason for reason in table.untraced)


def test_a_message_names_the_rule_and_the_operands() -> None:
    table = trace(PROGRAMS / "faults.py")
    messages = {found.span.line: found.message for found in table.diagnostics}
    text = "\n".join(messages.values())
    assert "fails when T > 512 (T = 513)" in text
    assert "needs H % 2 == 0 (fails at H = 193)" in text
    assert "needs T % 4 == 0" in text
    assert "h: f32[3, 20]" in text and "self.second.weight: f32[5, 30]" in text


def test_a_limit_that_is_declared_is_kept(write: Write) -> None:
    text = (PROGRAMS / "faults.py").read_text("utf-8")
    path = write(text.replace("x: i64[B, T]", "x: i64[B, T], T <= 512"))
    table = trace(path, class_name="Positions")
    assert [call.qualname for call in table.calls] == ["Positions"]
    assert not table.diagnostics


def test_a_guessed_input_is_not_blamed(write: Write) -> None:
    text = (PROGRAMS / "faults.py").read_text("utf-8")
    path = write(text.replace("# tensorpoint: x: i64[B, T]", "#"))
    table = trace(path, class_name="Positions")
    assert not table.diagnostics
    assert table.calls[0].assumptions == ("T <= 512",)


def test_constants_have_names_and_calls_have_costs() -> None:
    table = trace(PROGRAMS / "sequences.py")
    [embedded] = [h for h in table.hints if h.name == "self.embed(ids)"]
    assert embedded.constants == ("48 = hidden_size",)
    assert embedded.parameters == 100 * 48
    sizes = table.calls[0].sizes
    assert embedded.bytes == 4 * sizes["B"] * sizes["T"] * 48
    [projected] = [h for h in table.hints if h.name == "self.qkv(x)"]
    assert projected.flops == 2 * sizes["B"] * sizes["T"] * 48 * 144
    assert projected.count == 3
    assert projected.executions[0].call_path.startswith("Model.forward:")
    assert " > Attention.forward:" in projected.executions[0].call_path


def test_what_can_not_be_traced_says_why(write: Write) -> None:
    broken = trace(write("def f(:\n", "broken.py"))
    assert not broken.hints and "line 1" in broken.untraced[0]
    path = write(
        "import torch\nclass N(torch.nn.Module):\n    # tensorpoint: x: f31[B]\n    pass\n"
    )
    assert "line 3: 'f31' is no dtype" in trace(path).untraced[0]
    path = write("import torch\n", "empty.py")
    assert "no module or function 'N'" in trace(path, class_name="N").untraced[0]


def test_symbols_and_probes_agree_on_most_shapes() -> None:
    hints = [h for n in ("convolutions", "sequences") for h in trace(PROGRAMS / f"{n}.py").hints]
    symbolic = [hint for hint in hints if hint.origin == "symbolic"]
    assert len(symbolic) > 0.7 * len(hints), [h for h in hints if h.origin == "probed"]


NET = """
import torch
import torch.nn as nn

class Net(nn.Module):
    # tensorpoint: {spec}
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x{more}):
        y = self.fc(x)
        return y if x.shape[1] > 100 else -y
"""


def test_what_needs_long_inputs_is_not_taken_to_need_multiples(write: Write) -> None:
    path = write(
        """
        import torch

        class Wave(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv1d(1, 32, 80, 16)
                self.pool = torch.nn.MaxPool1d(4)

            def forward(self, x):
                return self.pool(self.conv(x))
        """
    )
    [call] = trace(path).calls
    assert (call.output, call.assumptions) == ("f32[B, 32, T//64 - 1]", ("T >= 128",)), call


def test_real_tensors_have_a_deadline_too(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """
        import torch

        class Slow(torch.nn.Module):
            # tensorpoint: x: f32[B, 8]
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(8, 8)

            def forward(self, x):
                for _ in range(100):
                    x = self.fc(x)
                return x.double() @ self.fc.weight
        """
    path = write(text)
    [fault] = trace(path).diagnostics
    assert fault.code == "dtype-mismatch"
    monkeypatch.setattr(real, "_SECONDS", 0)
    assert not table_of(ShapeRequest(str(path), path.read_text("utf-8"))).diagnostics


def test_a_limit_is_read_without_spaces_too(write: Write) -> None:
    table = trace(write(NET.format(spec="x: f32[B,T,8],T%04<=2;T<512", more="")))
    assert table.calls[0].limits == ("T % 4 <= 2", "T < 512")
    assert table.calls[0].limits_smt == ("(<= (mod T 4) 2)", "(< T 512)")


def test_a_limit_of_a_size_that_a_call_does_not_have_is_not_its(write: Write) -> None:
    table = trace(write(NET.format(spec="x: f32[B, T, 8]", more="")), specs=("U <= 5, T <= 90",))
    assert table.calls[0].limits == ("T <= 90",)
    [dead] = with_branches(table).diagnostics
    assert "for T <= 90" in dead.message


@pytest.mark.parametrize(
    ("spec", "more", "said"),
    [
        ("x: f32[B, T, 8], T % 0 == 0", "", "line 6: 'T % 0 == 0' divides by 0"),
        ("x: {f(): f32[B, 8]}", "", "line 6: a key of a dict"),
        (
            "x: f32[B, T - 9999, 8]",
            "",
            "Net does not run with x: f32[B, T - 9999, 8], as specified",
        ),
        (
            "x: f32[B, T - 9999, 8]",
            ", z",
            "Net does not run with the inputs that were guessed: Run",
        ),
    ],
)
def test_a_specification_that_can_not_be_is_refused(
    write: Write, spec: str, more: str, said: str
) -> None:
    table = trace(write(NET.format(spec=spec, more=more)))
    assert not table.calls and table.untraced[0].startswith(said), table.untraced


WINDOW = """
import torch

class Net(torch.nn.Module):
    # tensorpoint: x: f32[B, T, 8], mask: bool[B, T]
    def forward(self, x, mask):
        hidden = x.shape[1]
        if not mask.all() or hidden > 64:
            window = torch.ones(x.shape[0], {rows}, x.shape[1])
        return x
"""


@pytest.mark.parametrize(
    ("rows", "shown"),
    [("x.shape[1]", ["f32[B, T, T]"]), ("7 if mask.all() else x.shape[1]", ["f32[B, 7|T, T] ×2"])],
)
def test_what_is_there_in_long_runs_only_is_told_by_the_other_truth_value(
    write: Write, rows: str, shown: list[str]
) -> None:
    table = trace(write(WINDOW.format(rows=rows)), symbolic=False)
    assert [hint.text for hint in table.hints if hint.name == "window"] == shown


BLOCKS = """
import torch
from torch.nn import functional as F

class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = torch.nn.Conv2d(width // 2, width, 3, 2, 1)

    def forward(self, x):
        x = self.conv(x)
        if x.shape[3] % 4:
            padded = F.pad(x, (0, 0, 0, 5))
        return x

class Net(torch.nn.Module):
    # tensorpoint: x: f32[B, 4, H, W]
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(8), Block(16), Block(32))

    def forward(self, x):
        return self.blocks(x)

class Window(torch.nn.Module):
    # tensorpoint: x: f32[B, T, 8]
    def forward(self, x):
        kept = x[:, -60:]
        masks = {"all": x, "window": x[:, 60:] if x.shape[1] > 60 else None}
        return kept
"""


def test_what_a_condition_leaves_out_in_some_calls_of_a_run_has_a_shape(write: Write) -> None:
    hints = trace(write(BLOCKS), symbolic=False).hints
    [padded] = [hint.text for hint in hints if hint.name == "padded"]
    high, wide = "ceil(H/2) + 5|ceil(H/4) + 5|ceil(H/8) + 5", "ceil(W/2)|ceil(W/4)|ceil(W/8)"
    assert padded == f"f32[B, 8|16|32, {high}, {wide}] ×3"


def test_what_is_so_in_long_runs_only_is_met_by_longer_ones(write: Write) -> None:
    found = {h.name: h.text for h in trace(write(BLOCKS), symbolic=False).hints}
    assert found["kept"] == "f32[B, min(T, 60), 8]"
    assert (
        found["masks"] == "{all: f32[B, T, 8]} | {all: f32[B, T, 8], window: f32[B, T - 60, 8]} ×2"
    )


def test_lists_of_values_have_as_many_as_there_are(write: Write) -> None:
    path = write(
        """
        import torch

        class Net(torch.nn.Module):
            # tensorpoint: x: f32[B, T, 8], lengths: i64[B]
            def __init__(self, depth=3):
                super().__init__()
                rates = torch.linspace(0, 0.5, depth).tolist()
                self.drops = torch.nn.ModuleList(torch.nn.Dropout(rate) for rate in rates)

            def forward(self, x, lengths):
                for drop in self.drops:
                    x = drop(x)
                firsts = torch.stack([row[length] for row, length in zip(x, lengths.tolist())])
                return firsts
        """
    )
    table = trace(path, symbolic=False)
    assert not table.untraced
    [hint] = [hint for hint in table.hints if (hint.name, hint.kind) == ("firsts", "target")]
    assert hint.text == "f32[B, 8]"
    [dropped] = [hint for hint in table.hints if hint.name == "drop(x)"]
    assert dropped.count == 3


REPEATED = """
import torch
import torch.nn as nn

class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, kept):
        inner = self.fc(x)
        kept.append(inner)
        return inner

class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleList([Inner() for _ in range(2)])

    def forward(self, x):
        for each in self.inner:
            kept = []
            x = each(x, kept)
            outer = kept[0]
        return x

class Other(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        other = self.inner(x, [])
        return other

class Net(nn.Module):
    # tensorpoint: x: f32[B, 8]
    def __init__(self):
        super().__init__()
        self.outer = nn.ModuleList([Outer() for _ in range(3)])
        self.other = nn.ModuleList([Other() for _ in range(2)])

    def forward(self, x):
        for each in self.outer:
            x = each(x)
        for each in self.other:
            x = each(x)
            last = x.squeeze(0)
            x.unsqueeze_(0).squeeze_(0)
        first = self.other[0](x)
        first.unsqueeze_(1)
        second = self.other[1](x)
        return second
"""


def test_equal_layers_count_as_often_as_they_are_called(write: Write) -> None:
    table = trace(write(REPEATED))
    counts = {hint.name: hint.count for hint in table.hints if hint.kind == "target"}
    assert (counts["outer"], counts["other"], counts["inner"]) == (6, 4, 10), counts


def test_a_result_that_was_changed_in_place_is_not_that_of_the_next_equal_layer(
    write: Write,
) -> None:
    table = trace(write(REPEATED))
    shown = {hint.name: hint.text for hint in table.hints if hint.kind == "target"}
    assert shown["second"] == "f32[B, 8]", shown


@pytest.mark.parametrize("asked", ["", "not "])
def test_a_size_without_a_rule_in_one_branch_is_not_shown(write: Write, asked: str) -> None:
    path = write(
        f"""
        import torch

        class Net(torch.nn.Module):
            # tensorpoint: x: f32[B, T]
            def forward(self, x):
                n = x.shape[1]
                if {asked}(x > 0).all():
                    n = n**3 % 97 + n % 11
                y = torch.zeros(n)
                z = x + 1
                return z
        """
    )
    shown = {hint.name: hint.text for hint in trace(path).hints if hint.kind == "target"}
    assert "y" not in shown and shown["z"] == "f32[B, T]", shown


def test_a_call_in_a_loop_over_a_size_has_its_costs(write: Write) -> None:
    path = write(
        """
        import torch

        class Net(torch.nn.Module):
            # tensorpoint: x: f32[B, T, 8]
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(8, 4)

            def forward(self, x):
                for t in range(x.shape[1]):
                    y = self.fc(x[:, t])
                return y
        """
    )
    [hint] = [hint for hint in trace(path).hints if hint.name == "self.fc(x[:, t])"]
    assert hint.parameters == 8 * 4 + 4


def test_annotations_are_left_for_later_where_the_file_asks_for_that(write: Write) -> None:
    path = write(
        """
        from __future__ import annotations, division
        from __future__ import annotations, unknown
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(8, 4)

            def copied(self, other: Net | Missing) -> Net: ...

            def forward(self, x: torch.Tensor):
                return self.fc(x)
        """
    )
    assert [call.output for call in trace(path).calls] == ["f32[B, 4]"]


def test_a_grouped_convolution_has_all_channels_of_its_input(write: Write) -> None:
    path = write(
        """
        import torch

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = torch.nn.Conv3d(4, 4, 3, padding=1, groups=2)

            def forward(self, x):
                return self.conv(x)
        """
    )
    assert [call.output for call in trace(path).calls] == ["f32[B, 4, D, H, W]"]


SIZES = "The size of tensor a (3) must match the size of tensor b (4) at dimension 1"
DEVICES = "Expected all tensors to be on the same device (the size is 3), cpu and meta"


@pytest.mark.parametrize(
    ("folder", "said", "blamed"),
    [("/nn", SIZES, True), ("vision", SIZES, False), ("/nn", DEVICES, False)],
)
def test_only_what_torch_itself_says_of_sizes_is_a_fault(
    folder: str, said: str, blamed: bool
) -> None:
    source = Source("def f(g):\n    g()\n", "/file.py")
    names: dict[str, Any] = {}
    exec(compile(source.text, source.path, "exec"), names)
    raising = f"def g(): raise RuntimeError({said!r})"
    exec(compile(raising, f"{torch.__path__[0]}{folder}/x.py", "exec"), names)
    with pytest.raises(RuntimeError) as caught:
        names["f"](names["g"])
    assert (fault_of(caught.value, source) is not None) is blamed


def test_files_beside_the_traced_one_are_its_dependencies_wherever_python_is(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helper = write("SIZE = 8\n", "beside_the_traced.py")
    path = write(
        """
        import torch
        from beside_the_traced import SIZE

        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(SIZE, 4)

            def forward(self, x):
                return self.fc(x)
        """
    )
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert trace(path, symbolic=False).dependencies == (str(helper),)


def test_a_class_that_can_not_be_defined_says_why(write: Write) -> None:
    path = write(
        """
        import torch

        class Net(torch.nn.Module):
            size = missing
            def forward(self, x):
                return x
        """
    )
    [said] = trace(path).untraced
    assert said.startswith("Net: line 4 failed: NameError") and "missing" in said


def test_a_file_of_a_package_has_its_relative_imports(write: Write) -> None:
    write("", "pack_of_two/__init__.py")
    write(
        "from torch import nn\nclass Narrow(nn.Linear):\n"
        "    def __init__(self): super().__init__(8, 4)\n",
        "pack_of_two/layers/narrow.py",
    )
    path = write(
        """
import torch.nn as nn
from ..layers.narrow import Narrow
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Narrow()
    def forward(self, x):
        return self.inner(x)
""",
        "pack_of_two/nets/net.py",
    )
    table = trace(path)
    assert not table.untraced and [call.output for call in table.calls] == ["f32[B, 4]"]


@pytest.mark.parametrize(
    "head", [b"# -*- coding: latin-1 -*-\nWORD = '\xe4'\n", b"\xef\xbb\xbf# ours\n"]
)
def test_a_file_is_read_in_the_encoding_that_it_says(tmp_path: Path, head: bytes) -> None:
    path = tmp_path / "encoded.py"
    path.write_bytes(head + b"import torch\n")
    assert source_of(str(path)).splitlines()[1:] in (
        ["WORD = '\u00e4'", "import torch"],
        ["import torch"],
    )


def test_a_file_that_takes_long_has_hints_and_says_what_was_left_out(
    write: Write,
) -> None:
    path = write(BLOCKS)
    table = table_of(ShapeRequest(str(path), path.read_text("utf-8")), seconds=0)
    assert {hint.name for hint in table.hints} >= {"kept", "padded"}
    assert table.untraced == (
        "faults were not looked for in Net, Window: the file takes more than 0 s",
    )

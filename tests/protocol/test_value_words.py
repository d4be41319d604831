"""Metrics in the program's own expressions, log points, completions, and setting elements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.measures import Measures
from tensorpoint.conditions.metrics import ON_VALUES
from tests.protocol.dap import Message, Session, eventually, line_of

pytestmark = [
    pytest.mark.xdist_group("value words"),
    pytest.mark.usefixtures("resident_process"),
]

PROGRAM = """\
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
fc = nn.Linear(4, 4)
kept = torch.zeros(2)
for step in range(6):
    kept.data.fill_(step)  # of which no version counter knows
    x = torch.ones(2, 4) * step
    fc(x).sum().backward()
    att = torch.softmax(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]) * step * 4, -1)
    print("step", step)  # loop


def absmax(value):
    return "mine"


grid = torch.arange(6.0).reshape(2, 3)
whole = torch.tensor([1, 2, 3])
flags = torch.tensor([True, False])
h = fc(x)
spread = torch.ones(1, 3).expand(2, 3)
with torch.inference_mode():
    inferred = torch.ones(2)
print("end")  # end
"""


LOG = "x is {x} in {step}, {grad_norm(fc.weight) > 3}, {kept}"


class Editor:
    """A session with breakpoints of all kinds, stopped at the end of the program."""

    def __init__(self, session: Session, path: Path) -> None:
        self.session, self.path = session, path
        loop, end = line_of(path, "# loop"), line_of(path, "# end")
        session.start("launch", program=str(path), console="internalConsole")
        answer = session.request(
            "setBreakpoints",
            source={"path": str(path)},
            breakpoints=[
                {"line": loop, "condition": "absmax(x) >= 3 and entropy(att) < 0.2"},
                {"line": loop - 1, "logMessage": LOG},
                {"line": end},
            ],
        )
        assert all(item["verified"] for item in answer["breakpoints"])
        session.configure(filters=[])
        self.first = session.stopped()
        self.first_step = self.ask("step", self.first)
        self.gradient = self.ask("grad_norm(fc.weight) > 3", self.first, "watch")
        self.bad = self.ask("nonfinite(x), nonfinite(x / 0 * 0), no_grad(fc)", self.first)
        self.nothing = session.answer(
            session.send(
                "evaluate",
                expression="absmax(3)",
                frameId=session.frames(self.first)[0]["id"],
                context="watch",
            )
        )["message"]
        session.request("setBreakpoints", source={"path": str(path)}, breakpoints=[{"line": end}])
        session.resume()
        self.stopped = session.stopped()
        self.frame = session.frames(self.stopped)[0]["id"]

    def ask(self, expression: str, stopped: Message, context: str = "repl") -> str:
        return self.session.evaluate(expression, stopped, context)

    def now(self, expression: str) -> str:
        return self.ask(expression, self.stopped)

    def row(self, *names: str) -> Message:
        reference = self.session.scopes(self.stopped)["Locals"]
        row: Message = {}
        for name in names:
            answer = self.session.request("variables", variablesReference=reference)
            row = next(item for item in answer["variables"] if item["name"] == name)
            reference = row["variablesReference"]
        return row

    def set(self, value: str, *names: str) -> Message:
        reference = self.row(*names[:-1])["variablesReference"]
        return self.session.answer(
            self.session.send(
                "setVariable", variablesReference=reference, name=names[-1], value=value
            )
        )

    def set_expression(self, expression: str, value: str) -> Message:
        return self.session.answer(
            self.session.send(
                "setExpression", expression=expression, value=value, frameId=self.frame
            )
        )


@pytest.fixture(scope="module")
def editor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    path = tmp_path_factory.mktemp("words") / "program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    with Session() as session:
        yield Editor(session, path)


def test_the_documented_words_are_those_that_work() -> None:
    assert list(Measures(Known()).functions) == list(ON_VALUES)


def test_a_line_breakpoint_with_a_tensor_condition(editor: Editor) -> None:
    assert editor.first_step == "3"  # the first where both hold
    assert editor.gradient == "True"
    assert editor.bad == "(False, True, False)"
    assert "no tensor in this int" in editor.nothing


def test_a_log_point_writes_tensors_by_their_summary(editor: Editor) -> None:
    expected = "x is f32[2, 4] cpu | µ 2 σ 0 [2, 2] in 2, True, f32[2] cpu | µ 2 σ 0 [2, 2]"
    eventually(lambda: expected in editor.session.output(), "the log point")
    expected = "x is f32[2, 4] cpu | µ 0 σ 0 [0, 0] in 0, False, f32[2] cpu | µ 0 σ 0 [0, 0]"
    assert expected in editor.session.output()


def test_a_name_of_the_users_shadows_ours(editor: Editor) -> None:
    assert editor.now("absmax(x)") == "'mine'"
    assert editor.now("'nonfinite' in globals(), hasattr(__import__('builtins'), 'norm')") == (
        "(False, False)"
    )
    assert editor.now("[norm(item) for item in [x]]") == "[14.142135620117188]"


def test_the_console_completes_our_words(editor: Editor) -> None:
    def labels(text: str) -> list[str]:
        answer = editor.session.request(
            "completions", frameId=editor.frame, text=text, column=len(text) + 1
        )
        return [item["label"] for item in answer["targets"]]

    assert "grad_norm" in labels("y = grad_n") and "grad_norm" not in labels("fc.grad_n")
    assert "record" in labels("tp rec")


def test_an_element_is_set_from_the_variables_view(editor: Editor) -> None:
    answer = editor.set("7.5", "grid", "values", "[1]", "[2]")
    assert answer["success"] and answer["body"]["value"] == "7.5"
    assert editor.now("grid[1, 2].item()") == "7.5"
    assert editor.row("grid", "values", "[1]", "[2]")["value"] == "7.5"
    assert editor.set_expression("grid[0, 1]", "step * 2.0")["success"]
    assert editor.set_expression("grid[1][0]", "9")["success"]
    assert editor.now("grid.tolist()") == "[[0.0, 10.0, 2.0], [9.0, 4.0, 7.5]]"


def test_what_setting_means_for_autograd_is_said(editor: Editor) -> None:
    assert editor.set_expression("fc.weight[0, 0]", "2")["success"]
    assert editor.now("fc.weight[0, 0].item(), fc.weight.requires_grad") == "(2.0, True)"
    eventually(
        lambda: "fc.weight requires a gradient: it was set" in editor.session.output(), "a note"
    )
    row = ("fc", "bias", "values", "[1]")
    assert editor.set("0.5", *row)["body"]["value"] == "0.5"
    assert editor.now("fc.bias[1].item(), fc.bias._version") == "(0.5, 2)"
    note = (
        "it was set without recording that, and its version is 2 now. A backward through a graph "
        "that has used it and needs the old value raises."
    )
    eventually(lambda: f"fc.bias requires a gradient: {note}" in editor.session.output(), "a note")
    assert editor.set_expression("h[0, 0]", "1")["success"]
    assert editor.now("h[0, 0].item(), h.grad_fn is not None") == "(1.0, True)"


@pytest.mark.parametrize("rows", [("[0]",), ("[1]", "[2]")])
def test_a_row_of_data_is_not_set_past_autograd(editor: Editor, rows: tuple[str, ...]) -> None:
    tensor = "fc", ("weight" if len(rows) > 1 else "bias")
    answer = editor.set("7", *tensor, "raw", "attributes", "data", "values", *rows)
    assert not answer["success"]
    assert f"Set {'.'.join(tensor)} itself" in answer["message"]
    assert editor.now(f"7 in {'.'.join(tensor)}") == "False"


@pytest.mark.parametrize(
    ("expression", "value", "reason"),
    [
        ("whole[0]", "2.5", "2.5 is no value of i64"),
        ("whole[0]", "2**70", "out of the range of i64"),
        ("flags[0]", "3", "3 is no value of bool"),
        ("grid[0, 0]", "'a'", "neither a number nor a tensor"),
        ("grid[0]", "torch.ones(2)", "the value has shape [2], the place [3]"),
        ("grid[0]", "torch.ones(3, dtype=torch.float64)", "the value is f64, the tensor f32"),
        ("grid[5, 0]", "1", "out of bounds"),
        ("spread[0, 0]", "1", "expanded"),
        ("inferred[0]", "1", "inference tensor"),
        ("grid[[0, 1]]", "1", "whole numbers and slices"),
        ("grid[True]", "1", "whole numbers and slices"),
        ("grid[0, 0]", "10 ** 400", "out of the range of f32"),
    ],
)
def test_what_would_corrupt_is_refused_with_the_reason(
    editor: Editor, expression: str, value: str, reason: str
) -> None:
    before = editor.now("grid.tolist(), whole.tolist(), flags.tolist(), spread.tolist()")
    answer = editor.set_expression(expression, value)
    assert not answer["success"] and reason in answer["message"], answer
    assert editor.now("grid.tolist(), whole.tolist(), flags.tolist(), spread.tolist()") == before


def test_other_variables_are_set_as_before(editor: Editor) -> None:
    reference = editor.session.scopes(editor.stopped)["Locals"]
    editor.session.request("setVariable", variablesReference=reference, name="step", value="41 + 1")
    assert editor.now("step") == "42"
    answer = editor.set("3", "fc", "weight")
    assert not answer["success"] and "cannot assign" in answer["message"]


def attributes(row: Any) -> list[str]:
    return row.get("presentationHint", {}).get("attributes", [])


def test_rows_that_cannot_be_set_say_so(editor: Editor) -> None:
    assert "readOnly" in attributes(editor.row("grid", "shape"))
    assert "readOnly" not in attributes(editor.row("grid", "values", "[0]", "[0]"))

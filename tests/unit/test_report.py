"""The report of a stop: what it says, and that it survives any program and any terminal."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.report import JSON_KEYS, print_stop, report_console, stop_as_json
from tensorpoint.wire import Stop
from tensorpoint.wire.operation import OperationReport

SOURCE = """\
class Block:
    def forward(self, hidden):
        # In two steps.

        hidden = self.norm(hidden)
        hidden = self.act(hidden)
        return hidden
"""


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(SOURCE, encoding="utf-8")
    return path


def make_stop(file: str | Path, line: int = 6, **changes: Any) -> Stop:
    fields: dict[str, Any] = {
        "tensorpoint": 1_000_001,
        "condition": 'nonfinite("*")',
        "event": "nonfinite.forward",
        "module": "h.1.act",
        "module_type": "Act",
        "file": str(file),
        "line": line,
        "function": "forward",
        "user_file": str(file),
        "user_line": line,
        "step": 7,
        "optimizer_step": 6,
        "value": 12,
        "description": "Paused on NaN in the output of h.1.act (Act)",
        "text": "output: 12 of 4096 elements not finite",
    }
    return Stop(**{**fields, **changes})


def report(stop: Stop, *, width: int | None = None, terminal: bool = False, **named: Any) -> str:
    stream = Terminal() if terminal else io.StringIO()
    print_stop(report_console(stream, width=width), stop, **named)
    return stream.getvalue()


def test_says_what_where_and_when(source: Path) -> None:
    text = report(make_stop(source), number=2)
    assert "tensorpoint stop 2: Paused on NaN in the output of h.1.act (Act)" in text
    assert "output: 12 of 4096 elements not finite" in text
    assert f"{source}:6 in forward" in text
    assert "> 6 | hidden = self.act(hidden)" in text
    assert "  3 | # In two steps.\n  4 |\n  5 | hidden = self.norm(hidden)" in text
    assert "7, after 6 optimizer steps" in text
    assert 'nonfinite("*")' in text


def test_has_no_colours_where_there_is_no_terminal(source: Path) -> None:
    assert "\x1b" not in report(make_stop(source))
    assert "\x1b[" in report(make_stop(source), terminal=True)


def test_a_log_keeps_one_line_a_line(source: Path) -> None:
    long = "x" * 30 + " " + "y" * 300
    source.write_text(SOURCE.replace("self.act(hidden)", f"act({long!r})"), encoding="utf-8")
    lines = report(make_stop(source, text=long)).splitlines()
    assert long in lines
    assert f"> 6 | hidden = act({long!r})" in lines


@pytest.mark.parametrize("width", [1, 12, 40])
def test_fits_a_narrow_terminal(source: Path, width: int) -> None:
    text = report(make_stop(source), width=width, terminal=True)
    assert "act" in text or width == 1


def test_names_the_users_line_where_the_stop_is_in_a_library(source: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import model\n\nmodel.forward(1, 2)\n", encoding="utf-8")
    text = report(make_stop(source, user_file=str(script), user_line=3))
    assert f"{script}:3 called from your code" in text
    assert "> 3 | model.forward(1, 2)" in text
    assert "called from your code" not in report(make_stop(source))


def test_shows_the_operation_first_where_the_stop_is_elsewhere(
    source: Path, tmp_path: Path
) -> None:
    loss = tmp_path / "loss.py"
    loss.write_text("def penalty(x):\n    return x.sqrt()\n", encoding="utf-8")
    operation = OperationReport("aten.log.default", str(loss), 2, "penalty")
    text = report(make_stop(source, operation=operation))
    made, _, stopped = text.partition(f"{source}:6 in forward")
    assert f"{loss}:2 the operation, in penalty\n" in made and stopped
    assert "> 2 |     return x.sqrt()\n" in made

    of_forward = replace(
        operation, node="SqrtBackward0", forward_file=str(loss), forward_line=2, function=None
    )
    assert f"{loss}:2 the forward of the operation\n" in report(
        make_stop(source, operation=of_forward)
    )
    # Once is enough: it stands there, or is the line of the user's that is shown anyway.
    there = make_stop(loss, 2, operation=operation)
    for stop in (there, make_stop(source, operation=operation, user_file=str(loss), user_line=2)):
        assert "the operation" not in report(stop)
    nowhere = replace(operation, file=None, line=None)
    assert "the operation" not in report(make_stop(source, operation=nowhere))


def test_works_without_a_user_frame(source: Path) -> None:
    assert "> 6 |" in report(make_stop(source, user_file=None, user_line=None))


@pytest.mark.parametrize("line", [0, 8, 10_000])
def test_a_line_that_the_file_does_not_have(source: Path, line: int) -> None:
    assert "not there to show" in report(make_stop(source, line=line))


@pytest.mark.parametrize("file", ["/nowhere/model.py", "<string>", "", "a\0b", "/"])
def test_a_source_that_is_not_there(file: str) -> None:
    assert "not there to show" in report(make_stop(file, user_file=None, user_line=None))


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe\x00 not text\n" * 6,
        b"# coding: no-such-codec\n" * 6,
        b"# coding: latin-1\n\n\n\n\nname = '\xe9'\n",
        b"\n\n\n\n\nx = 1\n",
        b"x = '''\n" * 6,
        b"def (:\n" * 6,
        b"a = 1\r\n" * 6,
        b"a\x0cb = 1\n" * 6,
        b"",
    ],
)
def test_any_source_file(source: Path, content: bytes) -> None:
    source.write_bytes(content)
    text = report(make_stop(source))
    assert ("> 6 |" in text) is bool(content)


def test_lines_keep_their_numbers_in_a_file_that_begins_blank(source: Path) -> None:
    source.write_text("\n\n\n" + SOURCE, encoding="utf-8")
    assert ">  9 | hidden = self.act(hidden)" in report(make_stop(source, line=9))


def test_texts_of_the_program_are_not_markup_and_not_control_sequences(tmp_path: Path) -> None:
    path = tmp_path / "[red]model[-red].py"
    path.write_text("\n\nx = '[bold]:warning:[/bold]'\n", encoding="utf-8")
    text = report(
        make_stop(
            path,
            line=3,
            module="[blink]a[/blink]",
            text="\x1b]0;owned\x07 [link=x]:smile:[/link] \x9b31m",
            condition="[/]",
        )
    )
    assert f"{path}:3" in text
    assert "> 3 | x = '[bold]:warning:[/bold]'" in text
    assert "[blink]a[/blink]" in text
    assert r"\x1b]0;owned\x07 [link=x]:smile:[/link] \x9b31m" in text


def test_undecodable_names_do_not_stop_the_report() -> None:
    stop = make_stop("/tmp/\udcff.py", user_file=None)
    assert r"\udcff.py:6" in report(stop)
    assert json.loads(stop_as_json(stop))["file"] == "/tmp/\udcff.py"


def test_names_the_process_of_a_child(source: Path) -> None:
    assert "stop 1 [Subprocess 42]" in report(make_stop(source), number=1, process="Subprocess 42")


def test_json_has_exactly_the_promised_keys(source: Path) -> None:
    line = stop_as_json(make_stop(source))
    assert "\n" not in line
    fields = json.loads(line)
    assert tuple(fields) == JSON_KEYS
    assert fields["op"] is fields["cause"] is None
    assert fields["value"] == 12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_is_json_whatever_the_value(source: Path, value: float) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    fields = json.loads(stop_as_json(make_stop(source, value=value)), parse_constant=refuse)
    assert fields["value"] is None


class _Gone(io.StringIO):
    def write(self, _: str, /) -> int:
        raise BrokenPipeError


def test_a_reader_that_has_left_does_not_end_us(source: Path) -> None:
    """rich would exit with status 1; `tensorpoint run` says that a tensorpoint fired."""
    with pytest.raises(BrokenPipeError):
        print_stop(report_console(_Gone()), make_stop(source))

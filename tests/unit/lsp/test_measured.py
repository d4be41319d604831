"""Hovers have what the last run measured, as long as its lines are those of the text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tensorpoint.lsp.measured import measured_at
from tensorpoint.lsp.sources import Part, Source, lines_of
from tensorpoint.resident import runs
from tensorpoint.resident.client import Run
from tensorpoint.wire import WIRE_VERSION, Facts
from tensorpoint.wire.facts import Layer, Output, Statistics
from tests.unit.lsp.documents import NET, span


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """NET after a run that called its convolution."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "net.py"
    path.write_text(NET, encoding="utf-8")
    line = span(NET, "x = self.conv(x)").line
    output = Output("output", "bfloat16", (4, 64, 8, 8), "cuda:0")
    numbers = Statistics(9, 16384, 2048, True, 0.25, 1.5, -4.0, None, 0.5, 0.0)
    layer = Layer(
        *("conv", "Conv2d", 0, 9, 1, True, str(path), line, "forward", (output,), numbers, None)
    )
    facts = Facts(WIRE_VERSION, 1, 0.0, "3.12", "2.13", True, 9, 9, (), (layer,))
    now = time.time()
    runs.keep(Run(str(path), str(tmp_path), 1, now, now, True, (str(path),), 0, 2), facts)
    return path


def at(path: Path, text: str, line_with: str) -> str:
    source = Source("file:///x", str(path), (Part("file:///x", 1, 0, lines_of(text)),))
    return measured_at(source, span(text, line_with).line)


def test_shapes_and_statistics_of_the_line(file: Path) -> None:
    text = at(file, NET, "x = self.conv(x)")
    assert text.startswith("**Measured** in the last run, 20")
    assert text.split("\n")[0].endswith(", rank 0 of 2:")
    assert (
        "- `conv` → `bf16[4, 64, 8, 8] cuda:0` · mean 0.25 · std 1.5 · min -4 · 50.0% zero · step 9"
        in text
    )
    assert at(file, NET, "x = torch.relu(x)") == ""


def test_lines_move_with_unsaved_edits_and_changed_ones_say_nothing(file: Path) -> None:
    assert "bf16[4, 64, 8, 8]" in at(file, "\n\n" + NET, "x = self.conv(x)")
    changed = NET.replace("self.conv(x)", "self.conv(x * 2)")
    assert at(file, changed, "x = self.conv") == ""


def test_a_file_that_was_changed_since_says_nothing(file: Path) -> None:
    later = time.time() + 5
    os.utime(file, (later, later))
    assert at(file, NET, "x = self.conv(x)") == ""

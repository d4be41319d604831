"""Views that do not come out even, and calls that fail: what is said of them."""

from __future__ import annotations

import pytest

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.shapes import ShapeRequest, ShapeTable
from tests.conftest import Write

ATTENTION = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, hidden=770, heads=12):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden)

    def forward(self, x):{spec}
        batch, length, width = x.shape
        q = self.query(x)
        return {view}
{call}
"""
SPEC = "  # tensorpoint: x: f32[B, T, 770]"


def trace(write: Write, **parts: str) -> ShapeTable:
    path = write(ATTENTION.format(**{"spec": "", "call": "", **parts}))
    return table_of(ShapeRequest(str(path), path.read_text("utf-8"), symbolic=False))


@pytest.mark.parametrize(
    ("view", "said"),
    [
        ("q.view(batch, length, self.heads, width // self.heads)", "heads 12 does not divide 770"),
        ("q.reshape((batch, length, -1, self.heads))", "heads 12 does not divide 770"),
        ("self.query(x).view(batch, length, self.heads, -1)", "heads 12 does not divide 770"),
        ("q.unflatten(-1, (self.heads, -1))", "heads 12 does not divide 770"),
        ("q.view(batch, length, 11, 71)", "11 * 71 is 781, not 770"),
        ("q.view(batch, -1, 12, 64)", "12 * 64 is 768, not 770"),
        ("q.view(batch, length, 9, -1)", "9 does not divide 770"),
        ("q.view(batch, length, 769)", "769 in place of 770"),
        ("q.view(*[batch, length], 1, 769)", "769 does not divide 770"),
        ("x.view(torch.Size([2, 3, 4]))", "2 * 3 * 4 is 24, not 43890"),
    ],
)
def test_the_number_that_does_not_divide_is_named(write: Write, view: str, said: str) -> None:
    (found,) = trace(write, spec=SPEC, view=view).diagnostics
    assert found.message.startswith(f"{said}: ")
    places = [related.message for related in found.related]
    assert ("self.heads is 12: made here" in places) == said.startswith("heads")


def test_a_call_that_fails_is_told_with_what_it_passes(write: Write) -> None:
    """It is no error of the file: who runs it sees it, and it may be meant to."""
    call = "\n\ndef main():\n    model = Attention()\n    model(torch.randn(2, 5, 770))\n"
    table = trace(write, view="q.view(batch, length, self.heads, -1)", call=call)
    (told,) = table.untraced
    assert told.startswith(
        "Attention does not run with x: f32[2, 5, 770], as it is called: line 14: "
        "RuntimeError: heads 12 does not divide 770: "
    )
    assert not table.diagnostics


def test_of_what_was_guessed_that_is_told_which_came_furthest(write: Write) -> None:
    (told,) = trace(write, view="q.view(batch, length, self.heads, -1)").untraced
    assert "line 14: RuntimeError: heads 12 does not divide 770" in told
    assert told.endswith("in the place of # tensorpoint: x: f32[B, T, 770]")

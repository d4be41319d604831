"""Completion inside `# tensorpoint:` comments, and nowhere else."""

from __future__ import annotations

import pytest
from lsprotocol import types

from tensorpoint.lsp.features.completion import completions
from tests.unit.lsp.documents import NET, net_table, view


def offered(comment: str, text: str = NET) -> list[str]:
    """Labels at the end of a comment above `forward`."""
    text = text.replace("    def forward", f"    {comment}\n    def forward")
    line = text.split("\n").index(f"    {comment}")
    place = types.Position(line, len(comment) + 4)
    return [item.label for item in completions(view(net_table(text), text), place)]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# ten", ["tensorpoint: "]),
        ("# tensorpoint:", ["x"]),
        ("# tensorpoint: x", ["x"]),
        ("# tensorpoint: x: f32[B, 3], ", []),
        ("# note", []),
        ("x = 1", []),
        ("#", []),
    ],
)
def test_words(comment: str, expected: list[str]) -> None:
    assert offered(comment) == expected


def test_dtypes_and_dims() -> None:
    assert {"f32", "bf16", "i64", "bool"} <= set(offered("# tensorpoint: x: "))
    assert {"B", "H", "W", "T"} <= set(offered("# tensorpoint: x: f32[B, "))
    assert "f32" not in offered("# tensorpoint: x: f32[B, ")


def test_several_arguments_in_any_dress() -> None:
    text = NET.replace(
        "(self, x):", '(self, x: Float[Tensor, "B T"], *, mask=None, scale: float = 1.0):'
    )
    assert offered("# tensorpoint: ", text) == ["x", "mask", "scale"]
    assert offered("# tensorpoint: x: f32[B, T], ", text) == ["mask", "scale"]
    assert {"f32"} <= set(offered("# tensorpoint: x: f32[B, T], mask: ", text))


def test_arguments_may_be_in_several_lines() -> None:
    text = NET.replace("(self, x):", "(self, x: Tensor,\n        mask=None,\n    ):")
    assert offered("# tensorpoint: ", text) == ["x", "mask"]

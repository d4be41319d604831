"""Counts and memory in words."""

from __future__ import annotations

import pytest

from tensorpoint.shapes.amounts import amount, memory


@pytest.mark.parametrize(
    ("number", "text"),
    [
        *((25_557_032, "25.6 M"), (999, "999"), (8.03e9, "8.03 G"), (1000, "1 k")),
        *((999_499, "999 k"), (999_500, "1 M"), (5e15, "5000 T")),
    ],
)
def test_amounts_have_three_digits(number: float, text: str) -> None:
    assert amount(number) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(1023, "1023 bytes"), (1 << 10, "1 KiB"), (1000 << 10, "1000 KiB"), (3 << 29, "1.5 GiB")],
)
def test_memory_is_in_the_units_it_is_bought_in(size: int, text: str) -> None:
    assert memory(size) == text

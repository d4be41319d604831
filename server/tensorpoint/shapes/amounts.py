"""Counts and sizes of memory in words."""

from __future__ import annotations


def amount(number: float, unit: str = "") -> str:
    """A count with three digits: `25.6 M`, `8.2 G` with `unit` behind it."""
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        # What rounds up to a thousand of a prefix is one of the next.
        if number >= factor * 0.9995 and number >= 1000:
            return f"{_digits(number / factor)} {prefix}{unit}"
    return f"{number:g} {unit}".rstrip()


def memory(size: float) -> str:
    """Bytes, in the units that memory is bought in."""
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{_digits(size / factor)} {unit}"
    return f"{size:g} bytes"


def _digits(number: float) -> str:
    """Three digits, or all before the point: `.3g` has thousands as `1e+03`."""
    return f"{number:.0f}" if number >= 999.5 else f"{number:.3g}"

"""Quantiles, and pairs of measurements that were taken one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median and the quartiles around it."""

    median: float
    low: float
    high: float


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, interpolated."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = int(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread(values: Sequence[float]) -> Spread:
    """Median and interquartile range."""
    return Spread(quantile(values, 0.5), quantile(values, 0.25), quantile(values, 0.75))


def paired_ratio(values: Sequence[float], base: Sequence[float]) -> Spread:
    """The ratio to the base of the same round: what slows both down for a while cancels out."""
    return spread([value / plain for value, plain in zip(values, base)])

"""Figures in words: `µ 0.013 σ 1.02 [-4.1, 4.3] | 3 NaN`."""

from __future__ import annotations

from collections.abc import Sequence

from .devices import Unavailable
from .figures import Figures
from .plain import number

_BARS = "▁▂▃▄▅▆▇█"


def in_short(found: Figures | Unavailable) -> str:
    """The figures for a line; `~` marks those of a sample."""
    if isinstance(found, Unavailable):
        return found.reason
    about = "~" if found.sampled else ""
    parts: list[str] = []
    if found.finite:
        deviation = "" if found.finite == 1 else f" σ {number(found.std)}"
        span = f" [{number(found.low)}, {number(found.high)}]"
        of = f" ({found.of})" if found.of else ""
        parts.append(f"{about}µ {number(found.mean)}{deviation}{span}{of}")
    bad = counts(found)
    if bad:
        parts.append(about + bad)
    return " | ".join(parts)


def counts(found: Figures) -> str:
    """`3 NaN, 1 +Inf`; nothing where all are finite."""
    named = (("NaN", found.nan), ("+Inf", found.posinf), ("-Inf", found.neginf))
    return ", ".join(f"{count:,} {name}" for name, count in named if count)


def sparkline(histogram: Sequence[int]) -> str:
    """A histogram in one line of text. What isn't empty is never the lowest bar's gap."""
    top = max(histogram, default=0)
    if not top:
        return ""
    bars = [_BARS[(count * (len(_BARS) - 1) + top - 1) // top] for count in histogram]
    return "".join(bars)

"""The line of a value, by what it is for.

`variables` (and inline values) show metadata: no kernel, no wait. A hover or a watch adds figures,
on the CPU those of a sample where it is large; on a device only what was recorded, since a hover
comes without being asked for. The console and the clipboard are left to torch's own `repr`.
"""

from __future__ import annotations

import math
from typing import Any

from ...wire.dtypes import short_dtype
from ..tensors import norm_of, unseen, within
from . import figures, words
from .cache import Cache
from .devices import Unavailable
from .kinds import is_array, line_of
from .known import Known
from .pages import as_tensor
from .plain import (
    NO_MEMORY,
    elements_of,
    gradient_of,
    is_hollow,
    is_module,
    is_on_cpu,
    is_parameter,
    is_tensor,
    number,
    read,
    why_hollow,
)
from .walks import parameters_in

#: Norms of larger gradients are estimated: a whole one takes 1 ms for 10 MB.
_WHOLE_NORM = 1 << 23


class Summaries:
    """Lines of values, cached until the program goes on."""

    def __init__(self, known: Known, cache: Cache) -> None:
        self._known, self._cache = known, cache

    def short(self, value: Any) -> str | None:
        """Metadata; None for what isn't ours."""
        if is_module(value):  # a walk over all modules
            return self._cache.get("line", value, line_of)
        return line_of(value)

    def full(self, value: Any) -> str | None:
        """Metadata and figures; None for what isn't ours."""
        line = self.short(value)
        if line is None:
            return None
        if is_module(value):
            return f"{line} | {self._of_module(value)}"
        tensor = value if is_tensor(value) else as_tensor(value) if is_array(value) else None
        if tensor is None:
            return line
        return self._cache.get("full", value, lambda _: _joined(line, *self._of_tensor(tensor)))

    def without_memory(self, value: Any) -> str | None:
        """Of a tensor without memory, which torch's own `repr` would read: that ends a program."""
        if not is_tensor(value) or why_hollow(value) != NO_MEMORY:
            return None
        return f"{self.short(value)} | {NO_MEMORY}"

    def _of_tensor(self, tensor: Any) -> list[str]:
        parts: list[str] = []
        here = within(tensor)
        if is_on_cpu(here) and elements_of(tensor) != 1:
            parts.append(words.in_short(figures.figures_of(tensor)))
        elif not is_on_cpu(here) and not is_hollow(here) and not read(here, "is_meta"):
            parts.append(self._of_device(tensor))
        if is_parameter(tensor):
            parts.append(self._gradient(tensor))
        elif read(tensor, "is_leaf"):
            parts.append(_norm_in_words(gradient_of(tensor)))
        return parts

    def _of_device(self, tensor: Any) -> str:
        """For what is on a device: nothing is computed for a hover."""
        return "" if is_parameter(tensor) else "statistics on request"

    def _gradient(self, parameter: Any) -> str:
        """Norm as it is now, or as recorded where it is gone or on a device; ratio and age."""
        gradient, fact = gradient_of(parameter), self._known.parameter(parameter)
        now = _norm_in_words(gradient)
        if fact is None or (fact.gradient_norm is None and fact.gradient_finite is None):
            if gradient is not None:
                return now or "gradient not recorded"
            return "no gradient" if read(parameter, "requires_grad") else ""
        norm = "not finite" if fact.gradient_norm is None else number(fact.gradient_norm)
        parts = [now or f"‖grad‖ {norm} in step {fact.step}"]
        if gradient is None:
            parts.append("no gradient now")
        if fact.update_ratio is not None:
            parts.append(f"update ratio {number(fact.update_ratio)}")
        if fact.age:
            parts.append(f"gradient {fact.age} step{'s' if fact.age > 1 else ''} old")
        return " | ".join(parts)

    def _of_module(self, module: Any) -> str:
        fact = self._known.layer(module)
        if fact is None:
            return "output and gradient norm not recorded"
        shapes = ", ".join(
            f"{short_dtype(item.dtype)}[{', '.join(map(str, item.shape))}]"
            for item in fact.outputs[:3]
        )
        parts = [f"output {shapes or 'not a tensor'} in step {fact.step}"]
        statistics = fact.statistics
        if statistics is not None and statistics.mean is not None:
            then = "" if statistics.step == fact.step else f" in step {statistics.step}"
            parts.append(f"µ {number(statistics.mean)} σ {number(statistics.std or 0.0)}{then}")
        norms = [
            found.gradient_norm
            for parameter in parameters_in(module)
            if (found := self._known.parameter(parameter)) is not None
            and found.gradient_norm is not None
        ]
        if norms:
            parts.append(f"‖grad‖ {number(math.hypot(*norms))}")
        return " | ".join(parts)


def _joined(*parts: str) -> str:
    return " | ".join(part for part in parts if part)


@unseen
def _norm_in_words(gradient: Any) -> str:
    if gradient is None or not is_on_cpu(gradient):
        return ""
    if elements_of(gradient) <= _WHOLE_NORM:
        norm = norm_of(gradient)
        return "" if norm is None else f"‖grad‖ {number(norm)}"
    found = figures.figures_of(gradient)
    if isinstance(found, Unavailable):
        return ""
    if found.nonfinite:
        return "‖grad‖ not finite"
    square = found.std**2 + found.mean**2
    return f"‖grad‖ ~{number(math.sqrt(square * found.elements))}"

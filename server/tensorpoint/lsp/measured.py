"""What the last run measured at a line: shapes and statistics of the layers that it called."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from ..resident.client import measured
from ..resident.runs import stamp
from ..shapes.measured import measured_hints
from ..wire.dtypes import short_dtype
from ..wire.facts import Layer, Parameter
from ..wire.shapes import ShapeHint, ShapeTable
from .shift import moved, shift
from .sources import Source, lines_of

#: Layers of one line that are listed: a loop over blocks calls many.
_LISTED = 6


def measured_at(source: Source, line: int) -> str:
    """Markdown about a line of a source as it is in the editor; "" if nothing is known."""
    if len(source.parts) != 1:  # cells of a notebook have no lines of a file
        return ""
    found = measured(source.path)
    # A file that has changed since has other lines; one that is being edited, only moved ones.
    if found is None or found.edited:
        return ""
    try:
        disk = lines_of(Path(source.path).read_text(encoding="utf-8"))
    except (OSError, UnicodeError):
        return ""
    current = source.lines
    there = line if disk == current else moved(current, disk).get(line)
    layers = found.lines.get(there or 0, ())
    if not layers:
        return ""
    gradients = found.parameters
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.run.read))
    rank = "" if found.run.rank is None else f", rank {found.run.rank} of {found.run.ranks}"
    lines = [f"**Measured** in the last run, {when}{rank}:", ""]
    lines += [
        _layer(layer, gradients.get((layer.root, layer.module), ())) for layer in layers[:_LISTED]
    ]
    if len(layers) > _LISTED:
        lines.append(f"- and {len(layers) - _LISTED} more layers")
    return "\n".join(lines)


def _layer(layer: Layer, parameters: Sequence[Parameter]) -> str:
    outputs = ", ".join(
        f"{short_dtype(output.dtype)}{list(output.shape)} {output.device}"
        for output in layer.outputs
    )
    parts = [f"- `{layer.module or layer.module_type}` → `{outputs or 'no tensors'}`"]
    numbers = layer.statistics
    if numbers is not None:
        known = {
            "mean": numbers.mean,
            "std": numbers.std,
            "min": numbers.min,
            "max": numbers.max,
        }
        parts += [f"{name} {value:.3g}" for name, value in known.items() if value is not None]
        if numbers.zero_fraction:
            parts.append(f"{numbers.zero_fraction:.1%} zero")
        if numbers.nonfinite_fraction:
            parts.append(f"{numbers.nonfinite_fraction:.1%} non-finite")
    if layer.step is not None:
        parts.append(f"step {layer.step}")
    gradients = [text for each in parameters if (text := _gradient(each))]
    if gradients:
        parts.append(f"gradient norms: {', '.join(gradients)}")
    return " · ".join(parts)


def _gradient(parameter: Parameter) -> str:
    """The newest gradient of a parameter, and how long it has had none."""
    if parameter.gradient_norm is None and parameter.gradient_finite is not False:
        return ""
    name = parameter.parameter.rpartition(".")[2]
    norm = "non-finite" if parameter.gradient_finite is False else f"{parameter.gradient_norm:.3g}"
    ratio = f", update {parameter.update_ratio:.1e}" if parameter.update_ratio else ""
    age = f", {parameter.age} steps old" if parameter.age else ""
    return f"{name} {norm}{ratio}{age}"


class MeasuredHints:
    """Hints of the last run for a source as it is in the editor; the newest answer is kept."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[tuple[int, tuple[str, ...]], tuple[ShapeHint, ...]]] = {}

    def hints(self, source: Source) -> tuple[ShapeHint, ...]:
        """Reads the disk where a run or the text has changed."""
        now = stamp(), source.lines
        kept = self._kept.get(source.key)
        if kept is None or kept[0] != now:
            kept = self._kept[source.key] = now, _hints(source)
        return kept[1]


def _hints(source: Source) -> tuple[ShapeHint, ...]:
    if len(source.parts) != 1:
        return ()
    try:
        text = Path(source.path).read_text(encoding="utf-8")
    except (OSError, UnicodeError):
        return ()
    hints = measured_hints(source.path, text)
    disk = lines_of(text)
    if not hints or disk == source.lines:
        return hints
    return shift(ShapeTable(source.path, hints=hints), moved(disk, source.lines)).hints

"""What the last run measured at a line: shapes and statistics of the layers that it called."""

from __future__ import annotations

import time
from pathlib import Path

from ..resident.client import measured
from ..wire.facts import Layer
from .shift import moved
from .sources import Source, lines_of

#: Layers of one line that are listed: a loop over blocks calls many.
_LISTED = 6
_SHORT = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}


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
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(found.run.read))
    lines = [f"**Measured** in the last run, {when}:", ""]
    lines += [_layer(layer) for layer in layers[:_LISTED]]
    if len(layers) > _LISTED:
        lines.append(f"- and {len(layers) - _LISTED} more layers")
    return "\n".join(lines)


def _layer(layer: Layer) -> str:
    outputs = ", ".join(
        f"{_dtype(output.dtype)}{list(output.shape)} {output.device}" for output in layer.outputs
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
    return " · ".join(parts)


def _dtype(name: str) -> str:
    """`float32` as it is in hints: `f32`."""
    letters = name.rstrip("0123456789")
    return f"{_SHORT.get(letters, letters)}{name[len(letters) :]}"

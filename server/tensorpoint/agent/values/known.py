"""What is known of a value besides what is in it: facts that were recorded, names, operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ...wire.facts import Layer, Parameter
from ..ops.operation import Line
from .owners import Owners


def _nothing(_: Any) -> None:
    return None


@dataclass
class Known:
    """How to ask for it; each answers None where nothing is known."""

    owners: Owners = field(default_factory=lambda: Owners(list))
    layer: Callable[[Any], Layer | None] = _nothing
    parameter: Callable[[Any], Parameter | None] = _nothing
    #: The operation that made a tensor, and its line; where operations are recorded.
    made_by: Callable[[Any], tuple[str, Line] | None] = _nothing

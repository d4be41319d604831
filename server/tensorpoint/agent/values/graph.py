"""The autograd graph behind a tensor: each node by name, with its forward line where it is known.

torch keeps the line of a node's forward in anomaly mode only. Without that, what leads to a
parameter is named after it: the node that `fc1.weight` goes into belongs to `fc1`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .. import debugger_files
from .known import Known
from .nodes import Child, Node, Page

_FILE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def node_of(function: Any, known: Known) -> Node:
    """The row of one node of the graph."""

    def children(_: Page) -> Sequence[Child]:
        return [
            Child(f"[{position}]", node_of(after, known))
            for position, (after, _) in enumerate(function.next_functions)
            if after is not None
        ]

    place = forward_line(function)
    words = [_name_of(function)]
    parameter = parameter_of(function)
    if parameter is not None:
        words.append(f"of {parameter_name(parameter, known)}")
    else:
        into = parameters_of(function)
        if into:
            words.append(f"with {', '.join(parameter_name(item, known) for item in into)}")
    if place is not None:
        words.append(f"at {place[0].rpartition('/')[2]}:{place[1]}")
    has_more = any(after is not None for after, _ in function.next_functions)
    more = (
        {}
        if place is None
        else {"valueLocationReference": [debugger_files.client_file(place[0]), place[1]]}
    )
    return Node(" ".join(words), "", children if has_more else None, more=more)


def _name_of(function: Any) -> str:
    name = function.name() if callable(getattr(function, "name", None)) else type(function).__name__
    return str(name).rpartition("::")[2]


def operation_of(function: Any) -> str:
    """What a node is the backward of: "Addmm" of AddmmBackward0."""
    return re.sub(r"Backward\d*\Z", "", _name_of(function))


def parameter_of(function: Any) -> Any:
    """The tensor whose gradient the node accumulates; None for all others."""
    return getattr(function, "variable", None) if "AccumulateGrad" in _name_of(function) else None


def parameters_of(function: Any) -> list[Any]:
    """The parameters that went into the operation itself, also transposed ones."""
    found: list[Any] = []
    for after, _ in function.next_functions:
        if after is None:
            continue
        parameter = parameter_of(after)
        if parameter is None and _name_of(after) in ("TBackward0", "TransposeBackward0"):
            inner = [node for node, _ in after.next_functions if node is not None]
            parameter = parameter_of(inner[0]) if len(inner) == 1 else None
        if parameter is not None:
            found.append(parameter)
    return found


def parameter_name(parameter: Any, known: Known) -> str:
    """`fc1.weight`, or only its shape where it belongs to no known module."""
    return known.owners.name(parameter) or f"a leaf {list(parameter.shape)}"


def forward_line(function: Any) -> tuple[str, int, str] | None:
    """File, line and function of the forward, as anomaly mode keeps them."""
    metadata = getattr(function, "metadata", None)
    trace = metadata.get("traceback_") if isinstance(metadata, dict) else None
    for entry in reversed(trace or ()):
        found = _FILE.search(entry)
        if found is not None and "/torch/" not in found["file"]:
            return found["file"], int(found["line"]), found["function"]
    return None

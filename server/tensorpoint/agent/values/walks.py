"""The modules below one and what they hold, past whatever their classes do on the way.

`Module.modules`, `parameters` and `named_modules` may be the program's own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from .plain import held_by, is_module, is_tensor

TABLES = ("_parameters", "_buffers")


def modules_below(module: Any) -> Iterator[tuple[str, Any]]:
    """The modules directly in `module`, by name."""
    for name, child in (held_by(module).get("_modules") or {}).items():
        if is_module(child):
            yield name, child


def modules_in(root: Any) -> Iterator[tuple[str, Any]]:
    """`root` and all modules below it with torch's names for them, the nearest first, each once."""
    waiting, seen = deque([("", root)]), set[int]()
    while waiting:
        name, module = waiting.popleft()
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield name, module
        waiting.extend(
            (f"{name}.{key}" if name else key, child) for key, child in modules_below(module)
        )


def tensors_of(module: Any, *tables: str) -> Iterator[tuple[str, Any]]:
    """The tensors in these tables of a module itself, by name."""
    held = held_by(module)
    for table in tables:
        for name, value in (held.get(table) or {}).items():
            if is_tensor(value):
                yield name, value


def parameters_in(root: Any) -> Iterator[Any]:
    """The parameters of `root` and of what is below it, each once."""
    seen: set[int] = set()
    for _, module in modules_in(root):
        for _, parameter in tensors_of(module, "_parameters"):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter

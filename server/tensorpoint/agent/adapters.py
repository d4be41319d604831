"""Finds the adapters: those that come with Tensorpoint, and those of installed packages.

They are looked for in the program's own environment, and only once something listens to what they
could say. An adapter is whatever has `name`, `taps` and `switches` as
`tensorpoint_adapters.spec.Adapter` does: a package need not depend on Tensorpoint to bring one.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from typing import Any

GROUP = "tensorpoint.adapters"
#: Like the name of our own top package, which is another in the debuggee.
_BUILT_IN = __name__.partition(".")[0] + "_adapters"


class Plugin:
    """An adapter that could not be loaded, as the culprit of a fault."""

    def __init__(self, name: str) -> None:
        self.metric = f"for what adapter {name!r} says"


def built_in() -> tuple[Any, ...]:
    """Those that come with Tensorpoint. Raises ImportError if they are not there."""
    adapters: tuple[Any, ...] = importlib.import_module(_BUILT_IN).BUILT_IN
    return adapters


def find(on_fault: Callable[[Any, Exception], None]) -> tuple[Any, ...]:
    """All adapters, ours first. One that can't be loaded is reported and left out."""
    found: list[Any] = []
    try:
        found += built_in()
    except Exception as error:
        on_fault(Plugin(_BUILT_IN), error)
    try:
        points = importlib.metadata.entry_points(group=GROUP)
    except Exception as error:  # a broken installation
        on_fault(Plugin(GROUP), error)
        return tuple(found)
    for point in sorted(set(points), key=lambda point: (point.name, point.value)):
        try:
            adapter = point.load()
            _check(adapter)
            found.append(adapter)
        except Exception as error:
            on_fault(Plugin(point.name), error)
    return tuple(found)


def _check(adapter: Any) -> None:
    """Raise if something that is not an adapter is called one."""
    for tap in adapter.taps:
        module, colon, attribute = tap.target.partition(":")
        if not (module and colon and attribute) or not isinstance(tap.topic, str):
            raise ValueError(f'a tap needs a target "module:attribute" and a topic: {tap!r}')
    for switch in getattr(adapter, "switches", ()):
        _ = switch.module, switch.topic, switch.value, switch.read, switch.write

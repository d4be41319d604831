"""What the adapter wants watched: the whole state, so that sending it twice changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Precision = Literal["module", "op"]


@dataclass(frozen=True)
class Tensorpoint:
    """One breakpoint on a tensor condition.

    `kind` "condition" fires when `condition` turns true; "layer" fires at the entry of each
    module whose path matches the glob `module`, if `condition` is empty or true there; "data" when
    `condition` (`conditions.data`) is true of what the agent has as `data`, `module` being its
    name. `hits` is DAP's hit condition.
    """

    id: int
    kind: Literal["condition", "layer", "data"]
    condition: str
    module: str = ""
    data: str = ""
    hits: str = ""

    @property
    def text(self) -> str:
        """The tensorpoint as its author wrote it, for lists and stop texts."""
        if self.kind == "condition":
            return self.condition
        if self.kind == "data":
            return f"data:{self.module}" + (f" if {self.condition}" if self.condition else "")
        return f"layer:{self.module}" + (f" if {self.condition}" if self.condition else "")


@dataclass(frozen=True)
class Plan:
    """All tensorpoints of a session, and whether facts are recorded.

    `facts_file` is where the process leaves its facts when it ends ("" for nowhere). `precision`
    "op" records every operation as it runs, for programs whose forward can't be run again.
    """

    version: int
    tensorpoints: tuple[Tensorpoint, ...] = ()
    record: bool = False
    facts_file: str = ""
    precision: Precision = "module"

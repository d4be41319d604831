"""The attention weights of modules that somebody looks at, as of their newest call.

Weights are seldom kept by a program, and a fused attention never has them. So they are computed
while a module that was asked about attends, from its queries and keys: those of the first row of
the batch, of at most 2^22 weights. Nothing is listened to before a question, and a module that
is not asked about again at the next few stops is let go: a closed view costs nothing.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from .attention import Attention
from .modules import Call
from .watches.base import Watch

if TYPE_CHECKING:
    from torch.nn import Module

#: Stops at which a module may not be asked about before it is let go. A user who steps fast may go
#: on before a view has asked.
_PATIENCE = 3


@dataclass(frozen=True)
class Map:
    """The weights [head, query, key] of one call; of every `step`-th of the queries."""

    weights: Any
    step: int
    queries: int


@dataclass
class _Asked:
    """A module that was asked about."""

    #: How often each thread has gone on since. All of them are stopped at a stop, and one may be
    #: at the next before another has gone on.
    stops: Counter[int] = field(default_factory=Counter[int])
    map: Map | None = None


class AttentionMaps(Watch):
    """Keeps the maps of modules that are asked about. `on_change`: it has to hear, or no longer."""

    metric: ClassVar[str] = "attention map"

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._asked: weakref.WeakKeyDictionary[Module, _Asked] = weakref.WeakKeyDictionary()
        #: Whether it has to hear of attention: also where the modules are gone meanwhile.
        self.is_on = False

    def of(self, module: Module) -> Map | None:
        """The map of its newest call since it was first asked about; None before."""
        asked = self._asked.get(module)
        if asked is None:
            asked = self._asked[module] = _Asked()
            if not self.is_on:
                self.is_on = True
                self._on_change()
        asked.stops.clear()
        return asked.map

    def go_on(self) -> None:
        """The thread that calls goes on."""
        thread = get_ident()
        for module, asked in list(self._asked.items()):
            asked.stops[thread] += 1
            if asked.stops[thread] > _PATIENCE:
                self._asked.pop(module, None)  # another thread may have done so
        if self.is_on and not self._asked:
            self.is_on = False
            self._on_change()

    def let_go(self) -> None:
        """Nobody looks any more."""
        self._asked.clear()
        self.is_on = False

    def on_attention(self, call: Call, attention: Attention) -> None:
        """A module attends: keep its weights, if they were asked for."""
        asked = self._asked.get(call.module)
        if asked is not None:
            asked.map = Map(*attention.map(), attention.queries)

"""The taps and what listens to them in this process, with lists in place of watches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from tensorpoint.agent import adapters
from tensorpoint.agent.attention import Attention
from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Call, Names
from tensorpoint.agent.taps import Taps
from tensorpoint.agent.watches.base import Watch


class Tapped:
    """Records what the taps tell, and faults of ours."""

    def __init__(self, find: Any = None) -> None:
        self.names = Names()
        self.faults: list[tuple[Any, Exception]] = []
        self.hooks = Hooks(self.names, self.fault)
        find = find or (lambda: adapters.find(self.fault))
        self.taps = Taps(find, self.names, self.hooks, self.fault)
        #: (path of the module, attention) of each.
        self.attentions: list[tuple[str, Attention]] = []
        self.clips: list[tuple[Sequence[Any], float]] = []
        self.scales: list[float] = []

    def fault(self, culprit: Any, error: Exception) -> None:
        self.faults.append((culprit, error))

    def listen(self, *topics: str) -> None:
        self.hooks.install()
        hears = {"attention": _HearsAttention, "gradients": _HearsGradients}
        self.taps.listen([hears[topic](self) for topic in topics])

    def remove(self) -> None:
        self.taps.remove()
        self.hooks.remove()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.attentions]

    def take(self) -> list[tuple[str, Attention]]:
        """The attentions since the last call."""
        taken, self.attentions = self.attentions, []
        return taken


class _HearsAttention(Watch):
    def __init__(self, agent: Tapped) -> None:
        self._agent = agent

    def on_attention(self, call: Call, attention: Attention) -> None:
        path = self._agent.names.path(call.module, call.module)
        self._agent.attentions.append((path, attention))


class _HearsGradients(Watch):
    def __init__(self, agent: Tapped) -> None:
        self._agent = agent

    def on_clipped(self, parameters: Sequence[Any], total_norm: float) -> None:
        self._agent.clips.append((parameters, total_norm))

    def on_scale(self, value: float) -> None:
        self._agent.scales.append(value)


@contextmanager
def tapped(
    *topics: str, find: Any = None, faults: Literal["none", "some"] = "none"
) -> Iterator[Tapped]:
    """Taps installed for these topics, attention if none is named, and out again."""
    agent = Tapped(find)
    agent.listen(*(topics or ("attention",)))
    try:
        yield agent
    finally:
        agent.remove()
    if faults == "none":
        assert not agent.faults, agent.faults

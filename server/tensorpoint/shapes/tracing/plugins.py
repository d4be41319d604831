"""Plugins: what operations mean, where torch does not say it or says it otherwise.

An operator without a meta kernel, a function of a package that isn't installed here, a kernel that
is called through ctypes: a plugin says which shapes come out. It is a function that is called with
the `Plugins` of a trace:

    def plugin(plugins):
        def blur(call):
            plugins.attach_to_node(call.node, "blurred in f16")
            return call.args[0].new_empty(call.args[0].shape)

        plugins.register_plugin("my_ops::blur", blur)

and is found by the entry point `tensorpoint.shapes`, or named in a request (`--plugin M:F`).
Handlers run in every run, that of FX too, on tensors without data: what they return has to follow
from the sizes of what they get, which may be symbols. Like adapters, plugins need not import
anything of ours.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from ...wire.shapes import Span

GROUP = "tensorpoint.shapes"
_OPERATOR = re.compile(r"\w+::\w+(\.\w+)?")
_FUNCTION = re.compile(r"[\w.]+:[\w.]+")
_NOTES = "tensorpoint"


@dataclass(frozen=True)
class Call:
    """What a handler gets: a call in the place of which it stands."""

    #: `aten::gelu.default` in full, or `module:function`.
    name: str
    #: Its node in the graph, with nodes as arguments; `meta["val"]` of these are their values.
    node: torch.fx.Node
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: What would have been called: `call.function(*call.args, **call.kwargs)`.
    function: Callable[..., Any]


Handler = Callable[[Call], Any]


@dataclass
class Plugins:
    """The handlers of one trace."""

    _handlers: dict[str, Handler] = field(default_factory=dict[str, Handler])
    #: Why plugins could not be loaded.
    problems: list[str] = field(default_factory=list[str])
    #: Takes a call of a function: set while a graph is drawn.
    drawing: Callable[..., Any] | None = None

    def __bool__(self) -> bool:
        return bool(self._handlers)

    def register_plugin(self, name: str, handler: Handler) -> None:
        """Have `handler` answer calls of `name`; its result is that of the call.

        `name` is an operator, `ns::op` or `ns::op.overload`, or a Python function or method,
        `module:function`, `module:Class.method`. A later handler of the same name replaces it.
        """
        if not (_OPERATOR.fullmatch(name) or _FUNCTION.fullmatch(name)):
            raise ValueError(f"{name!r} is neither NAMESPACE::OPERATOR nor MODULE:FUNCTION")
        if not callable(handler):
            raise TypeError(f"the handler of {name!r} can't be called: {handler!r}")
        self._handlers[name] = handler

    def attach_to_node(self, node: torch.fx.Node, context: object) -> None:
        """Have the shapes of this call say `context`, as text, too."""
        node.meta.setdefault(_NOTES, []).append(str(context))

    def handler(self, name: str) -> Handler | None:
        return self._handlers.get(name)

    def load(self, named: Iterable[str]) -> None:
        """Those of installed packages, then those that are named, `module:function`."""
        for name, plugin in (*self._installed(), *self._named(named)):
            try:
                plugin()(self)
            except Exception as error:  # theirs
                self.problems.append(f"plugin {name}: {type(error).__name__}: {error}")

    def _installed(self) -> Iterator[tuple[str, Callable[[], Any]]]:
        if not any(map(mention_plugins, sys.path)):
            return
        points = importlib.metadata.entry_points(group=GROUP)
        for point in sorted(set(points), key=lambda point: (point.name, point.value)):
            yield point.name, point.load

    def _named(self, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], Any]]]:
        for name in names:
            module, _, attribute = name.partition(":")

            def load(module: str = module, attribute: str = attribute) -> Any:
                return getattr(importlib.import_module(module), attribute or "plugin")

            yield name, load

    def put_in_place(self, namespace: dict[str, Any]) -> None:
        """Have the functions that handlers stand for go by way of these, in a file's names too.

        The process ends with the answer, so nothing is put back.
        """
        for name in self._handlers:
            if not _FUNCTION.fullmatch(name):
                continue
            module_name, _, path = name.partition(":")
            *outer, last = path.split(".")
            holder = sys.modules.get(module_name)
            for each in outer:
                holder = getattr(holder, each, None)
            original = getattr(holder, last, None)
            if original is None:
                continue
            wrapper = self._wrapper(name, original)
            setattr(holder, last, wrapper)
            for key, value in namespace.items():
                # Of a package that is stood in for, each look-up makes another.
                known = (getattr(value, "__module__", ""), getattr(value, "__name__", ""))
                if value is original or (not outer and known == (module_name, last)):
                    namespace[key] = wrapper

    def _wrapper(self, name: str, original: Any) -> Any:
        @functools.wraps(original, updated=())
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.drawing is None:
                return original(*args, **kwargs)
            return self.drawing((name,), original, original, args, kwargs, sys._getframe(1))

        return wrapper


def mention_plugins(folder: str) -> bool:
    """Whether a package that is installed in a folder may have plugins.

    Reading what 70 packages have takes 8 ms. A zygote has read it; it is replaced when the folder
    of installed packages changes.
    """
    if os.path.basename(folder) in ("site-packages", "dist-packages"):
        return _mention_plugins_for_good(folder)
    return _read_mention(folder)


def _read_mention(folder: str) -> bool:
    return any(
        GROUP in (each.read_text("entry_points.txt") or "")
        for each in importlib.metadata.distributions(path=[folder])
    )


_mention_plugins_for_good = functools.cache(_read_mention)


def notes_of(graph: torch.fx.Graph) -> dict[Span, tuple[str, ...]]:
    """What was attached to the nodes of each place, columns in bytes."""
    found: dict[Span, dict[str, None]] = {}
    for node in graph.nodes:
        place = node.meta.get("place")
        if place is not None and node.meta.get(_NOTES):
            found.setdefault(place, {}).update(dict.fromkeys(node.meta[_NOTES]))
    return {place: tuple(notes) for place, notes in found.items()}

"""Which module a parameter or a buffer belongs to, and its path, as far as the frame sees models.

With something armed the agent knows the roots that were called. With nothing armed it has seen
none: then the models are those that run on this stack, and those in the frame's variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from ..modules import Names, clean_path, running_calls
from .plain import is_module
from .walks import TABLES, modules_below, modules_in, tensors_of

#: Modules that are indexed; a view of a larger model names what it can.
_MOST = 50_000
#: Values of a list or a dictionary that are looked through for a tensor.
_MOST_HELD = 1_000


class Owners:
    """An index by identity, made when it is needed and dropped when the program goes on."""

    def __init__(self, roots: Callable[[], list[Any]]) -> None:
        self._roots = roots
        self._frame: FrameType | None = None
        self._held: dict[int, tuple[Any, str]] | None = None
        self._paths: dict[int, tuple[Any, str]] = {}

    def clear(self) -> None:
        """Keep no frame and no module alive."""
        self._frame = self._held = None
        self._paths = {}

    def answered(self) -> None:
        """A client's question is answered; what was indexed while the program runs is dropped.

        Of a frame that is looked from, the index goes when the program goes on.
        """
        if self._frame is None:
            self.clear()

    def look_from(self, frame: FrameType | None) -> None:
        """What is asked for next stands in this frame."""
        if frame is not self._frame and frame is not None:
            self._frame, self._held, self._paths = frame, None, {}

    def owner(self, tensor: Any) -> tuple[Any, str]:
        """The module of a parameter or buffer and its name there; (None, "") if unknown."""
        return self._index().get(id(tensor), (None, ""))

    def path(self, module: Any) -> str:
        """The path of a module below its root; "" for a root and for what is not known."""
        self._index()
        return self._paths.get(id(module), (None, ""))[1]

    def name(self, tensor: Any) -> str | None:
        """The path of a parameter or buffer; None if unknown."""
        module, name = self.owner(tensor)
        if module is None:
            return None
        path = self.path(module)
        return f"{path}.{name}" if path else name

    def find(self, path: str) -> tuple[Any, str] | None:
        """The module and the name of a parameter or a buffer by its path; None if unknown."""
        above, _, name = path.rpartition(".")
        for module, own in self._index().values():
            if own == name and self.path(module) == above:
                return module, name
        return None

    def ancestors(self, module: Any) -> list[Any]:
        """The modules from the root down to `module`, itself included."""
        self._index()
        root, path = self._paths.get(id(module), (None, ""))
        if root is None:
            return []
        chain, current = [root], root
        for part in path.split(".") if path else ():
            current = dict(modules_below(current)).get(part)
            if not is_module(current):
                return chain  # a wrapper is on the way, which paths leave out
            chain.append(current)
        return chain

    def _index(self) -> dict[int, tuple[Any, str]]:
        if self._held is not None:
            return self._held
        held: dict[int, tuple[Any, str]] = {}
        self._paths = {}
        for root in self._candidates():
            if id(root) in self._paths:
                continue
            for name, module in modules_in(root):
                if len(self._paths) >= _MOST:
                    break
                self._paths.setdefault(id(module), (root, clean_path(root, name)))
                for key, value in tensors_of(module, *TABLES):
                    held.setdefault(id(value), (module, key))
        self._held = held
        return held

    def _candidates(self) -> Iterator[Any]:
        yield from self._roots()
        frame = self._frame
        if frame is None:
            return
        for call in running_calls(frame)[:1]:
            yield call.module
        values = [*frame.f_globals.values(), *frame.f_locals.values()]
        modules = [value for value in values if is_module(value)]
        # The largest first: a layer may stand beside the model that it is in.
        inner = {id(module) for root in modules for name, module in modules_in(root) if name}
        yield from (module for module in modules if id(module) not in inner)
        yield from modules


def name_of(parameter: Any, names: Names, frame: FrameType | None) -> str:
    """What to call a parameter: by its module, else by what the program's frame has it in.

    Not all belong to a module that was called: methods of a model may be all that is, and a model
    may be tensors alone.
    """
    owner, name = names.owner(parameter)
    if owner is not None:
        return name
    owners = Owners(list)
    owners.look_from(frame)
    return owners.name(parameter) or _variable(parameter, frame) or name


def _variable(tensor: Any, frame: FrameType | None) -> str | None:
    """The variable that is the tensor, or the list or dictionary that holds it."""
    if frame is None:
        return None
    for name, value in (*frame.f_locals.items(), *frame.f_globals.items()):
        if value is tensor:
            return name
        if type(value) not in (list, tuple, dict) or len(value) > _MOST_HELD:
            continue
        items = value.items() if type(value) is dict else enumerate(value)
        for key, item in items:
            if item is tensor and type(key) in (int, str):
                return f"{name}[{key!r}]"
    return None

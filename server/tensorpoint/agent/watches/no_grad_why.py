"""Why parameters got no gradient in a step, as far as its notes and the source tell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from ..explain import compiled_region, place
from ..modules import Names
from ..ops.cuts import Cut, cuts_in

if TYPE_CHECKING:
    from torch.nn import Module

#: What is noted of a module in a step: it ran, with gradients on, and its output requires one;
#: or is neither float nor complex.
RAN, GRAD_MODE, IN_GRAPH, NO_FLOAT = 1, 2, 4, 8
#: How the gradient is missing.
NONE, STALE, ZEROED = "none", "stale", "zeroed"
_MOST_CUTS = 3
_FROZEN = (
    "What a frozen layer is given learns if that runs with gradients on: requires_grad_(False) "
    "alone freezes it."
)


@dataclass(frozen=True)
class Missing:
    """A parameter without a gradient; `owner` is None for one of no module that was called."""

    parameter: Any
    owner: Any
    name: str
    path: str
    how: str

    @property
    def full_name(self) -> str:
        """Its name below the root."""
        return f"{self.path}.{self.name}" if self.path else self.name


@dataclass
class Step:
    """What is known of one step."""

    title: str
    missing: list[Missing]
    #: Ids of the parameters that got a gradient.
    given: set[int]
    #: By id of a module, in the order in which they returned: RAN and the other flags.
    seen: dict[int, int]
    backwards: int
    codes: tuple[CodeType, ...]
    total: int


class Reasons:
    """Why parameters got no gradient, as far as one step's notes tell."""

    def __init__(self, names: Names, step: Step) -> None:
        self._names = names
        self._step = step
        self._modules: dict[int, Any] = {
            id(module): module for root in names.roots() for module in root.modules()
        }

    def why(self, item: Missing) -> str:
        """The reason in one or two sentences, "unknown" where the notes don't tell."""
        step, owner = self._step, item.owner
        if not step.backwards:
            return "no backward pass since the last step."
        if owner is None:
            return (
                "it is in the optimizer, but in no module that was called: it was replaced after "
                "the optimizer was made (a new layer, .to(), a wrapper), or is used without a "
                "module, which is not watched."
            )
        flags = step.seen.get(id(owner), 0)
        how = _HOW[item.how]
        if not flags:
            return how + self._not_called(owner)
        name = type(owner).__name__
        if not flags & GRAD_MODE:
            return (
                f"{how}{name} ran where gradients are off (no_grad or inference_mode)."
                f"{self._around(owner)}"
            )
        if not flags & IN_GRAPH:
            if flags & NO_FLOAT:
                return (
                    f"{how}{name} returned integers or booleans, through which no gradient flows."
                )
            return (
                f"{how}{name} ran, but its output does not require a gradient: its forward does "
                f"not use the parameter, or cuts the graph.{self._cuts([_forward_of(owner)])}"
            )
        if any(id(parameter) in step.given for parameter in owner.parameters()):
            return (
                f"{how}other parameters of {name} got one: its forward does not use this one, or "
                f"only detached.{self._cuts([_forward_of(owner)])}"
            )
        return how + self._cut_later(owner)

    def _not_called(self, owner: Any) -> str:
        around = [module for module in self._names.ancestors(owner) if module is not owner]
        ran = [module for module in around if self._step.seen.get(id(module))]
        if not ran and around:
            return f"unused: neither {type(owner).__name__} nor what it is in was called."
        where = f" by {self._place(ran[-1])}, which was" if ran else ""
        compiled = [note for module in around for note in compiled_region(module)]
        unseen = (
            compiled[0]
            if compiled
            else "(A call as .forward(), or a use of the parameter elsewhere, is not seen.)"
        )
        return f"unused: {type(owner).__name__} was not called{where}. {unseen}"

    def _cut_later(self, owner: Any) -> str:
        """Its output is in the graph, but nothing came back."""
        seen = list(self._step.seen)
        later = seen[seen.index(id(owner)) + 1 :]
        around = {id(module) for module in self._names.ancestors(owner)}
        ends = [
            self._modules[key]
            for key in later
            if key in self._modules
            and not self._step.seen[key] & IN_GRAPH
            and any(True for _ in self._modules[key].parameters())
        ]
        cut = next((module for module in ends if id(module) in around), None)
        said = "its output is in the graph, but the loss does not depend on it"
        codes = [_forward_of(module) for module in reversed(self._names.ancestors(owner))]
        if cut is not None:
            said += f": the graph ends before {self._place(cut)} returns"
        elif ends:
            after, is_off = ends[0], not self._step.seen[id(ends[0])] & GRAD_MODE
            is_frozen = not any(parameter.requires_grad for parameter in after.parameters())
            said += f"; after it {self._place(after)}{', which is frozen,' if is_frozen else ''} "
            said += "ran with gradients off" if is_off else "returned what requires none"
            if is_frozen and is_off:
                return f"{said}. {_FROZEN}{self._cuts(codes[1:], grad_mode=True)}"
        return f"{said}: it is not used afterwards, or detached.{self._cuts(codes[1:])}"

    def _around(self, owner: Any) -> str:
        codes = [_forward_of(module) for module in reversed(self._names.ancestors(owner))]
        return self._cuts(codes, grad_mode=True)

    def _place(self, module: Any) -> str:
        return place(module, self._names.path(module, module))

    def _cuts(self, codes: Iterable[CodeType | None], grad_mode: bool = False) -> str:
        """The lines of these functions, and of the program's own, that cut the graph."""
        cuts: dict[str, Cut] = {}
        for code in (*codes, *self._step.codes):
            for cut in cuts_in(code) if code is not None else ():
                if cut.is_mode or not grad_mode:
                    cuts.setdefault(cut.place, cut)
        if not cuts:
            return ""
        listed = "; ".join(f"{cut.place}: {cut.text}" for cut in list(cuts.values())[:_MOST_CUTS])
        more = f" and {len(cuts) - _MOST_CUTS} more" if len(cuts) > _MOST_CUTS else ""
        return f" Lines there that cut it: {listed}{more}."


_HOW = {
    NONE: "",
    STALE: "its .grad is still that of an earlier step; ",
    ZEROED: "its .grad is all zeros since zero_grad; ",
}


def _forward_of(module: Module) -> CodeType | None:
    """The code of a module's forward, if it is not torch's own."""
    code = getattr(type(module).forward, "__code__", None)
    folder = os.path.dirname(sys.modules["torch"].__file__ or "") + os.sep
    wrapped: Any = getattr(type(module).forward, "__wrapped__", None)
    if code is not None and code.co_filename.startswith(folder):
        code = getattr(wrapped, "__code__", None)  # decorated by torch.no_grad
    return None if code is None or code.co_filename.startswith(folder) else code

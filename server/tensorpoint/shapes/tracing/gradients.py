"""Parameters that get no gradient, though the output is made of them, and where it was cut.

The module runs once with gradients, in training mode and without data: autograd's graph is the same
there. A parameter is cut off if it was used and the outputs don't lead back to it. The places are
those where something that depends on it lost its gradient: `detach`, `.data`, `no_grad`, a cast to
integers. Places that cost nothing (a metric on the side, a mask) leave every parameter its gradient
and are not told; nor is anything where no output has one, since that is how inference is written.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...wire.shapes import ShapeDiagnostic, Span
from .inputs import make
from .modes import Assumptions, Deadline, OnMeta, WithoutValues
from .positions import place_in
from .probing import Probed
from .rewriting import Source

_SECONDS = 5.0
_TENSOR: Any = torch.Tensor  # whose attributes are descriptors
_DATA = _TENSOR.data.__get__
_DETACHES = {"detach": "detach()", "detach_": "detach_()"}
_NAMED = 3


class _Cuts(TorchFunctionMode):
    """Notes where a gradient is lost, and which parameters are used."""

    def __init__(self, file: str, parameters: dict[int, str]) -> None:
        super().__init__()
        self._file, self._parameters = file, parameters
        self.used: set[int] = set()
        #: What was lost: the place, by what, and the tensors that had a gradient.
        self.lost: list[tuple[Span, str, list[torch.Tensor]]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        operands = [
            v
            for v in tree_leaves((args, kwargs))
            if isinstance(v, torch.Tensor) and _TENSOR.requires_grad.__get__(v)
        ]
        if not operands:
            return result
        if name == "__get__" and func != _DATA:
            return result  # its shape, its device
        self.used |= {id(v) for v in operands} & self._parameters.keys()
        how = _how(func, name, operands, result)
        place = place_in(self._file, sys._getframe(1)) if how else None
        if how and place is not None:
            self.lost.append((place, how, operands))
        return result


def _how(func: Any, name: str, operands: list[torch.Tensor], result: Any) -> str:
    """By what the result has no gradient, if that is one of those that are told."""
    if name in _DETACHES:
        return _DETACHES[name]
    if func == _DATA:
        return ".data"
    results = [v for v in tree_leaves(result) if isinstance(v, torch.Tensor)]
    if not results or any(v.requires_grad for v in results):
        return ""
    if not torch.is_grad_enabled():
        return "no_grad" if any(v.is_floating_point() for v in results) else ""
    casts = name in ("long", "int", "short", "byte", "to", "type", "type_as")
    if casts and not any(v.is_floating_point() or v.is_complex() for v in results):
        return f"the cast to {str(results[0].dtype).removeprefix('torch.')}"
    return ""


def gradient_cuts(probed: Probed, source: Source) -> Iterator[ShapeDiagnostic]:
    """A hint at each place that costs parameters their gradient."""
    target = probed.target
    module = target.module
    names = {id(p): name for name, p in module.named_parameters() if p.requires_grad}
    cuts = _Cuts(source.path, names)
    assumptions = Assumptions(source.path, sizes=dict(probed.runs[0].sizes))
    try:
        module.train()
        with (
            torch.device("meta"),
            Deadline(time.monotonic() + _SECONDS),
            OnMeta(assumptions),
            WithoutValues(assumptions),
            torch.enable_grad(),
        ):
            positional, keywords = make(target.inputs, probed.runs[0].sizes)
            with cuts:
                result = module(*positional, **keywords)
    except BaseException:  # another way in training mode, which may need more
        return
    finally:
        module.eval()
    outputs = [v for v in _tensors(result) if v.requires_grad]
    if not outputs:
        return
    reached = _leaves(outputs)
    missing = cuts.used - reached
    told: dict[Span, tuple[str, set[int]]] = {}
    for place, how, operands in cuts.lost:
        lost = _leaves(operands) & missing
        if lost:
            told.setdefault(place, (how, set()))[1].update(lost)
    for place, (how, lost) in told.items():
        yield ShapeDiagnostic(
            source.in_characters(place), "hint", "gradient-cut", _message(how, lost, names)
        )


def _message(how: str, lost: set[int], names: dict[int, str]) -> str:
    listed = [name for key, name in names.items() if key in lost]
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return (
        f"{how} cuts the gradient here: the output gives none to {', '.join(listed[:_NAMED])}{more}"
    )


def _tensors(value: Any) -> list[torch.Tensor]:
    """Of an output: a tensor, a container of them, or an object that holds them."""
    leaves = tree_leaves(value)
    held = [v for leaf in leaves for v in getattr(leaf, "__dict__", {}).values()]
    return [v for v in (*leaves, *tree_leaves(held)) if isinstance(v, torch.Tensor)]


def _leaves(tensors: list[torch.Tensor]) -> set[int]:
    """The ids of the leaves that tensors lead back to, themselves included."""
    found = {id(v) for v in tensors if v.grad_fn is None}
    seen: set[Any] = set()
    ahead = [v.grad_fn for v in tensors if v.grad_fn is not None]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            found.add(id(variable))
        ahead += [following for following, _ in node.next_functions if following is not None]
    return found

"""NaN that sizes alone make: the variance of one element, the mean of none, a softmax row of which
everything is masked.

Numbers of elements come from the FX graph, as expressions over the sizes; a mask that no input has
to do with comes out of runs with real tensors, where inputs that may be masks are all 0, all 1, and
these in turn: what is NaN in all of them does not hang on masks. It has to be made in `forward`:
values that a module holds are not known here. Each is confirmed by a run with
real tensors at its witness. What is so at all sizes is a warning, what is so at a size of one is a
hint, and only where the inputs were said.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...wire.shapes import ShapeDiagnostic, Span
from .faults import MOST_REAL_FLOPS, said
from .inputs import Sizes
from .positions import place_in
from .probing import Probed
from .real import real_error, too_large
from .rewriting import Source
from .sizes import fits
from .symbolic import Symbolic, at_sizes

_ATEN = torch.ops.aten
_INFINITY = float("inf")
#: What inputs that may be masks hold, in turn: one says what to keep, another what to drop.
_FILLED = ((0,), (1,), (0, 1), (1, 0))
#: What is reduced, and whether it takes more than one element.
_REDUCTIONS: dict[Any, tuple[str, bool]] = {
    _ATEN.var.correction: ("variance", True),
    _ATEN.var_mean.correction: ("variance", True),
    _ATEN.std.correction: ("standard deviation", True),
    _ATEN.std_mean.correction: ("standard deviation", True),
    _ATEN.mean.dim: ("mean", False),
    _ATEN.mean.default: ("mean", False),
}
_SOFTMAX = {_ATEN._softmax.default, _ATEN._log_softmax.default}


def numeric_faults(
    probed: Probed, symbolic: Symbolic, declared: Sequence[str], source: Source
) -> Iterator[ShapeDiagnostic]:
    """All of them, one for each place."""
    target = probed.target
    if too_large(target) or probed.flops > MOST_REAL_FLOPS:
        return
    told: set[Span] = set()
    for node in symbolic.graph.nodes:
        place = node.meta.get("place")
        if place is None or place in told or node.target not in _REDUCTIONS:
            continue
        found = _reduced(node, probed, symbolic, declared)
        if found is not None and place in _nan_places(probed, found[1], source):
            told.add(place)
            yield _diagnostic(place, source, *found)
    if _masks(symbolic.graph) and not _holds_values(target.module):
        sizes = probed.runs[0].sizes
        places = [_nan_places(probed, sizes, source, filled) for filled in _FILLED]
        common = set.intersection(*places) - told
        for place in sorted(common, key=lambda each: (each.line, each.col)):
            at = ", ".join(f"{name} = {size}" for name, size in sizes.items())
            yield ShapeDiagnostic(
                source.in_characters(place),
                "warning",
                "masked-row",
                f"a row of this softmax is masked wholly, which makes it NaN, whatever the inputs "
                f"are (at {at})",
                dict(sizes),
            )


def _reduced(
    node: torch.fx.Node, probed: Probed, symbolic: Symbolic, declared: Sequence[str]
) -> tuple[str, Sizes, str] | None:
    """What is reduced to NaN, at which sizes, and by which symbol: "" if it is so at all sizes."""
    what, more_than_one = _REDUCTIONS[node.target]
    operand: Any = node.args[0]
    shape = operand.meta["val"].shape
    dims: Any = node.args[1] if len(node.args) > 1 else None
    dims = range(len(shape)) if dims is None or dims == [] else dims
    least = 1
    if more_than_one:
        correction: Any = node.kwargs.get("correction", 1)
        least = 1 + (1 if correction is None else correction)

    def count(sizes: Sizes) -> int | None:
        number = 1
        for dim in dims:
            size = at_sizes(shape[dim], symbolic.names, sizes)
            if size is None:
                return None
            number *= size
        return number

    base = probed.runs[0].sizes
    tries = [(base, "")]
    if said(probed.target):
        tries += [({**base, name: 1}, name) for name in base if name not in probed.plan.fixed]
    for sizes, name in tries:
        number = count(sizes) if fits(declared, sizes) else None
        if number is not None and number < least and number in (0, 1):
            return f"the {what} of {('no', 'one')[number]} element", sizes, name
    return None


def _diagnostic(place: Span, source: Source, what: str, sizes: Sizes, name: str) -> ShapeDiagnostic:
    return ShapeDiagnostic(
        source.in_characters(place),
        "hint" if name else "warning",
        "nan-reduction",
        f"{what} is NaN" + (f", where {name} = 1" if name else ", at all sizes"),
        dict(sizes),
    )


def _masks(graph: torch.fx.Graph) -> bool:
    """Whether something is masked by -inf on the way to a softmax."""
    nodes = [*graph.nodes]
    masked = any(-_INFINITY in tree_leaves((n.args, n.kwargs)) for n in nodes)
    return masked and any(n.target in _SOFTMAX for n in nodes)


def _holds_values(module: torch.nn.Module) -> bool:
    """Whether it holds tensors that are no parameters: their values are not known here.

    The mask of a causal attention is such a buffer as often as not.
    """
    return any(
        isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter)
        for each in module.modules()
        for value in tree_leaves(vars(each))
    )


class _Watch(TorchDispatchMode):
    """Notes the places whose reductions and softmaxes give NaN of finite numbers and masks."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self._file = file
        self.places: set[Span] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        value = func(*args, **(kwargs or {}))
        if func in _SOFTMAX:
            bad = bool((args[0] == -_INFINITY).all(args[1]).any())
        elif func in _REDUCTIONS:
            bad = not args[0].isnan().any() and any(v.isnan().any() for v in tree_leaves(value))
        else:
            return value
        place = place_in(self._file, sys._getframe(1)) if bad else None
        if place is not None:
            self.places.add(place)
        return value


def _nan_places(
    probed: Probed, sizes: Sizes, source: Source, filled: Sequence[int] = (0,)
) -> set[Span]:
    """The places of a real run; see `real_error`."""
    watch = _Watch(source.path)
    real_error(probed.target, sizes, watch, filled)
    return watch.places

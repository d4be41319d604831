"""The FX pass: the same call on fake tensors with symbols for sizes.

Symbols follow each size through torch's own rules, where probes see values only. Alone they are not
enough: ShapeEnv turns a symbol into a number at the first kernel that can't take one (6 of 98 text
models, 7 of 21 of timm), and then shows `4` in the place of `B`. So a shape is `symbolic` where the
two agree, at sizes that neither has seen, and stays `probed` where they don't.

The pass also gives the conditions on sizes that the call met (guards), each with its line, printed
as SMT-LIB 2: the solver is in our own process, the tracer needs none.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...wire.shapes import Condition
from .expressions import value_of
from .graph import Drawn
from .inputs import Sizes, make
from .modes import Assumptions, Deadline, OnMeta, WithoutValues
from .positions import place_in
from .probing import Probed, Seen
from .recorder import Observation
from .rewriting import Source
from .smt import Unprintable, smt
from .snapshots import form_of, sizes_of

#: Where the two are compared: sizes that no probe has.
_COMPARED = 3


@dataclasses.dataclass
class Symbolic:
    """What came of the pass."""

    observations: list[Observation]
    conditions: list[Condition]
    names: dict[Any, str]
    graph: torch.fx.Graph
    error: BaseException | None = None


def trace_symbolic(
    probed: Probed, source: Source, seconds: float, sizes: Sizes | None = None
) -> Symbolic:
    """Run the call once more, with symbols; given up after some seconds, with what there is.

    It goes the way of `sizes`, those of the first probe if None.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from .readable import opposite, readable  # sympy: probes alone don't need it

    target, recorder = probed.target, probed.target.recorder
    conditions: list[Condition] = []
    names: dict[Any, str] = {}

    class Noting(ShapeEnv):
        """A ShapeEnv that tells where in the file each guard arose."""

        def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
            before = len(self.guards)
            result = super().evaluate_expr(*args, **kwargs)
            for guard in self.guards[before:]:
                self._note(guard.expr)
            return result

        def _note(self, expression: Any) -> None:
            frame = sys._getframe(2)
            place = place_in(source.path, frame)
            if place is None:
                return
            try:
                text = smt(expression, names)
            except Unprintable:
                return
            said, other = readable(expression, names), opposite(expression, names)
            place = source.in_characters(place)
            conditions.append(Condition(place, text, said, other, _by_file(frame, source)))

    environment = Noting(duck_shape=False)
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    mode.cache_enabled = False  # twice as slow with it: symbols miss
    free = {
        name: size
        for name, size in (sizes or probed.runs[0].sizes).items()
        if name not in probed.plan.fixed
    }
    drawn = Drawn(source.path, target.plugins)
    result = Symbolic([], conditions, names, drawn.graph)
    recorder.take()
    watch = Deadline(time.monotonic() + seconds)
    try:
        symbols = _symbols(environment, free, names)
        symbols.update(probed.plan.fixed)
        assumptions = Assumptions(source.path)
        cpu, answers = OnMeta(assumptions, torch.device("cpu")), WithoutValues(assumptions)
        with mode, watch, cpu, answers, torch.no_grad():
            module = _faked(target.module)
            positional, keywords = make(target.inputs, symbols)
            drawn.name([*module.named_parameters(), *module.named_buffers()])
            drawn.name(zip((each.name for each in target.inputs if not each.keyword), positional))
            drawn.name(keywords.items())
            recorder.on = True
            with drawn:
                module(*positional, **keywords)
    except BaseException as error:  # what FX can't follow; what was seen until then counts
        result.error = error
    finally:
        recorder.on = False
    result.observations = recorder.take()
    return result


def _faked(module: Any) -> Any:
    """A copy whose parameters are fake: they take no memory."""
    known: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        fake = torch.zeros(tensor.shape, dtype=tensor.dtype)
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        known[id(tensor)] = torch.nn.Parameter(fake, requires_grad=False) if is_parameter else fake
    return copy.deepcopy(module, known)


def _symbols(environment: Any, sizes: Sizes, names: dict[Any, str]) -> dict[str, Any]:
    from torch._dynamo.source import ConstantSource
    from torch.fx.experimental.symbolic_shapes import DimDynamic

    found: dict[str, Any] = {}
    for name, size in sizes.items():
        origin = ConstantSource(f"__{name}")
        symbol = environment.create_symbol(
            size, source=origin, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None
        )
        found[name] = environment.create_symintnode(symbol, hint=size, source=origin)
        names[symbol] = name
    return found


def _by_file(frame: Any, source: Source) -> bool:
    """Whether the file's own code asked, in an `if` or an `assert`, not torch's."""
    while frame is not None and frame.f_code.co_filename != source.path:
        name = frame.f_code.co_filename
        if "/torch/" in name and not name.endswith(_SYMBOLS):
            return False
        frame = frame.f_back
    return frame is not None


_SYMBOLS = ("symbolic_shapes.py", "sym_node.py", "torch/__init__.py", "recording.py", "_compile.py")


# -- origins


def agreeing(probed: Probed, symbolic: Symbolic) -> set[int]:
    """The sites whose every shape has been seen by both."""
    compared = probed.plan.more((), count=40)[-_COMPARED:]
    by_site: dict[int, list[tuple[Any, tuple[tuple[int, ...], ...]]]] = {}
    for observation in symbolic.observations:
        values = _values(observation, symbolic.names, compared)
        if values is not None:
            by_site.setdefault(observation.site, []).append((form_of(observation.snapshot), values))
    return {
        site
        for site, seen in probed.seen.items()
        if site in by_site and all(_expected(each, compared) in by_site[site] for each in seen)
    }


def _expected(
    seen: Seen, compared: Sequence[Sizes]
) -> tuple[Any, tuple[tuple[int | None, ...], ...]]:
    try:
        values = tuple(tuple(value_of(dim, sizes) for dim in seen.dims) for sizes in compared)
    except NameError:  # a number that values decide about
        return None, ()
    return form_of(seen.snapshot), values


def _values(
    observation: Observation, names: dict[Any, str], compared: Sequence[Sizes]
) -> tuple[tuple[int, ...], ...] | None:
    rows: list[tuple[int, ...]] = []
    for sizes in compared:
        row = [at_sizes(dim, names, sizes) for dim in sizes_of(observation.snapshot)]
        known = tuple(size for size in row if size is not None)
        if len(known) < len(row):
            return None
        rows.append(known)
    return tuple(rows)


def at_sizes(dim: Any, names: dict[Any, str], sizes: Sizes) -> int | None:
    """The value of a size of FX; None if it hangs on more than these."""
    import sympy  # torch has it

    if isinstance(dim, int):
        return dim
    numbers = {symbol: sympy.Integer(sizes[name]) for symbol, name in names.items()}
    try:
        # As it was then: in `expr` a symbol that became a number later is one, by a loop over a
        # size for one.
        value = getattr(dim.node, "_expr", dim.node.expr).xreplace(numbers)
    except ZeroDivisionError:  # a size that these sizes are too small for
        return None
    return int(value) if value.is_number else None


def conditions_of(symbolic: Symbolic) -> Iterator[Condition]:
    """Each condition once."""
    yield from dict.fromkeys(symbolic.conditions)

"""What is kept of one layer and of one parameter, and how it becomes facts.

Bounded: a ring of the last 64 steps' numbers in one array, 4 KiB for a layer and 3 KiB for a
parameter, and no tensor. Written on the program's threads without a lock: a row is put with one
assignment, and a reader takes the array with one copy.
"""

from __future__ import annotations

import math
import weakref
from array import array
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..wire.facts import (
    STEPS_KEPT,
    Layer,
    LayerHistory,
    Output,
    Parameter,
    ParameterHistory,
    Statistics,
)
from . import debugger_files
from .samples import (
    MAX,
    MEAN,
    MIN,
    NONFINITE_FRACTION,
    RMS,
    STD,
    ZERO_FRACTION,
    Numbers,
    Sampling,
    finite,
)
from .tensors import unseen

if TYPE_CHECKING:
    from torch.nn import Module

_UNKNOWN = math.nan
#: Numbers of a parameter in one step; see `wire.ParameterHistory`.
_COLUMNS = 6


class Ring:
    """The last rows of a few numbers, one for each step; the first column is the step."""

    __slots__ = ("_array", "_rows", "_step", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._array = array("d", bytes(8 * width * STEPS_KEPT))
        self._rows = 0
        self._step: float = _UNKNOWN

    def put(self, row: Sequence[float]) -> None:
        """Add a row, or replace the newest if it is of the same step."""
        if row[0] != self._step:
            self._rows += 1
            self._step = row[0]
        at = (self._rows - 1) % STEPS_KEPT * self._width
        self._array[at : at + self._width] = array("d", row)

    def amend(self, step: int | None, column: int, value: float) -> None:
        """Fill in a number of the row of `step`, if there is one."""
        for row in range(self._rows - 1, max(self._rows - 1 - STEPS_KEPT, -1), -1):
            at = row % STEPS_KEPT * self._width
            if self._array[at] == step:
                self._array[at + column] = value
                return

    def columns(self) -> list[tuple[float | None, ...]]:
        """What is in it, oldest first."""
        while True:
            rows, copy = self._rows, self._array[:]
            if rows == self._rows:
                break
        kept = min(rows, STEPS_KEPT)
        order = [number % STEPS_KEPT for number in range(rows - kept, rows)]
        width = self._width
        return [
            tuple([finite(copy[place * width + column]) for place in order])
            for column in range(width)
        ]


class RootRecord:
    """A module that the program calls itself, with all that is below it.

    It outlives the module: at a program's end, its model is often gone.
    """

    __slots__ = ("inputs", "kind", "layers", "parameters", "root", "stale", "step")

    def __init__(self, root: Module, step: int | None, forget: Any) -> None:
        self.root, self.kind, self.step = weakref.ref(root, forget), type(root).__name__, step
        #: What its first call was given; None before.
        self.inputs: str | None = None
        #: By id, in the model's order.
        self.layers: dict[int, LayerRecord] = {}
        self.parameters: dict[int, ParameterRecord] = {}
        #: Whether another root has taken something that was below this one.
        self.stale = False

    def forget(self, key: int) -> None:
        """What has this id is gone; if the root is as well, its last facts stay."""
        if self.root() is not None:
            self.layers.pop(key, None)
            self.parameters.pop(key, None)


class LayerRecord:
    """A module's last call."""

    __slots__ = (
        "__weakref__",
        "calls",
        "kind",
        "module",
        "numbers",
        "outputs",
        "path",
        "place",
        "ring",
        "root",
        "sampling",
        "single",
        "step",
        "training",
    )

    def __init__(self, module: Module, path: str, root: RootRecord, forget: Any) -> None:
        self.module, self.kind = weakref.ref(module, forget), type(module).__name__
        self.path, self.root = path, root
        self.place: tuple[str, int, str] | None = None
        self.step: int | None = None
        self.calls = 0
        self.training = False
        self.outputs: tuple[tuple[str, Any, tuple[int, ...], Any], ...] = ()
        #: Whether the last output was one tensor, and how it is sampled.
        self.single = False
        self.sampling: Sampling | None = None
        #: (step, elements, looked at, numbers) of the newest sample.
        self.numbers: tuple[int | None, int, int, Numbers] | None = None
        self.ring: Ring | None = None

    def called_by(self, frame: FrameType | None) -> None:
        """Remember the line that called it."""
        if frame is not None:
            self.place = debugger_files.client_path(frame), frame.f_lineno, frame.f_code.co_name

    def measured(self, step: int | None, elements: int, looked_at: int, numbers: Numbers) -> None:
        """Keep the numbers of this step."""
        self.numbers = step, elements, looked_at, numbers
        if self.ring is None:
            self.ring = Ring(8)
        self.ring.put([_UNKNOWN if step is None else step, *numbers])

    def facts(self, root: int, history: bool) -> Layer:
        """As it is read, below the root at this position."""
        file, line, function = self.place or (None, None, None)
        return Layer(
            module=self.path,
            module_type=self.kind,
            root=root,
            step=self.step,
            calls=self.calls,
            training=self.training,
            file=file,
            line=line,
            function=function,
            outputs=tuple(
                Output(name, plain_dtype(dtype), tuple(map(int, shape)), str(device))
                for name, dtype, shape, device in self.outputs
            ),
            statistics=None if self.numbers is None else _statistics(*self.numbers),
            history=LayerHistory(*_steps((self.ring or Ring(8)).columns()[: RMS + 1], 1))
            if history
            else None,
        )


class ParameterRecord:
    """A parameter's last gradient."""

    __slots__ = (
        "about",
        "finite",
        "gradient_norm",
        "norm",
        "optimizer_step",
        "parameter",
        "path",
        "ring",
        "root",
        "sampling",
        "step",
        "update_norm",
        "update_ratio",
    )

    def __init__(self, parameter: Any, path: str, root: RootRecord | None, forget: Any) -> None:
        self.parameter = weakref.ref(parameter, forget)
        self.path, self.root = path, root
        self.about = _about(parameter)
        self.gradient_norm: float | None = None
        self.finite: bool | None = None
        self.step: int | None = None
        self.optimizer_step: int | None = None
        #: The parameter's own 2-norm, and whether it is an estimate.
        self.norm: tuple[float, bool] | None = None
        self.update_norm: float | None = None
        self.update_ratio: float | None = None
        self.sampling: Sampling | None = None
        self.ring: Ring | None = None

    def add_gradient(self, step: int | None, optimizer_step: int, norm: float) -> None:
        """A gradient came, with this norm."""
        self.finite = math.isfinite(norm)
        self.gradient_norm = norm if self.finite else None
        self.step, self.optimizer_step = step, optimizer_step
        if self.ring is None:
            self.ring = Ring(_COLUMNS)
        known = _UNKNOWN if step is None else step, optimizer_step, norm
        self.ring.put([*known, *[_UNKNOWN] * (_COLUMNS - len(known))])

    def add_update(self, change: float, size: float) -> None:
        """The optimizer changed it by this, in 2-norms; `size` is its own before that."""
        ratio = change / size if size else math.nan
        self.update_norm, self.update_ratio = finite(change), finite(ratio)
        if self.ring is not None:
            self.ring.amend(self.step, 4, ratio)
            self.ring.amend(self.step, 5, change)

    def measured(self, step: int | None, elements: int, looked_at: int, numbers: Numbers) -> None:
        """Keep its norm, estimated from that of a sample."""
        norm = numbers[RMS] * math.sqrt(elements)
        self.norm = norm, looked_at < elements
        if self.ring is not None:
            self.ring.amend(step, 3, norm)

    def facts(self, root: int | None, now: int | None, history: bool) -> Parameter:
        """As it is read, below the root at this position, which is in step `now`."""
        parameter = self.parameter()
        if parameter is not None:
            self.about = _about(parameter)
        dtype, shape, device, trainable = self.about
        norm, sampled = self.norm or (math.nan, None)
        return Parameter(
            parameter=self.path,
            root=root,
            dtype=plain_dtype(dtype),
            shape=tuple(map(int, shape)),
            device=str(device),
            trainable=trainable,
            gradient_norm=self.gradient_norm,
            gradient_finite=self.finite,
            step=self.step,
            optimizer_step=self.optimizer_step,
            age=None if now is None or self.step is None else now - self.step,
            norm=finite(norm),
            norm_sampled=sampled,
            update_ratio=self.update_ratio,
            update_norm=self.update_norm,
            history=ParameterHistory(*_steps((self.ring or Ring(_COLUMNS)).columns(), 2))
            if history
            else None,
        )


@unseen
def _about(parameter: Any) -> tuple[Any, tuple[int, ...], Any, bool]:
    shape = () if parameter.is_nested else tuple(parameter.shape)
    return parameter.dtype, shape, parameter.device, parameter.requires_grad


def plain_dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _statistics(step: int | None, elements: int, looked_at: int, numbers: Numbers) -> Statistics:
    return Statistics(
        step=step,
        elements=elements,
        looked_at=looked_at,
        sampled=looked_at < elements,
        mean=finite(numbers[MEAN]),
        std=finite(numbers[STD]),
        min=finite(numbers[MIN]),
        max=finite(numbers[MAX]),
        zero_fraction=numbers[ZERO_FRACTION],
        nonfinite_fraction=numbers[NONFINITE_FRACTION],
    )


def _steps(columns: list[tuple[float | None, ...]], counters: int) -> Iterable[Any]:
    """The columns, the first ones as the counters that they are."""
    for number, column in enumerate(columns):
        if number < counters:
            yield tuple([None if value is None else int(value) for value in column])
        else:
            yield column

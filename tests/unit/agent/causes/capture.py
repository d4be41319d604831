"""Runs a program under a dispatch mode for the operation that made the first bad value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpoint.agent.causes import explain
from tensorpoint.agent.causes.names import bare, node_kind
from tensorpoint.agent.ops.cause import Cause
from tensorpoint.agent.ops.operation import Operation
from tensorpoint.agent.ops.rounded import Rounded

Program = Callable[[], object]
INF, NAN = float("inf"), float("nan")
#: Marks of tests that stand for a rule, see `conftest`.
MARKS = ("first", "second", "near_miss")
#: What the programs of this test have run, by the names that rules have for it.
ran: set[str] = set()
#: Operations that write a -inf because the program says so, or hand one on.
_MEANT = frozenset(
    {"full", "full_like", "lift_fresh", "masked_fill", "masked_fill_", "scalar_tensor", "where"}
)


class Recorder(TorchDispatchMode):
    """Keeps every operation whose output is bad, with copies of all that it worked on."""

    def __init__(self, phase: str) -> None:
        super().__init__()
        self._phase = phase
        self.found: list[Operation] = []
        self._forwards: dict[int, Operation] = {}
        #: Who wrote a storage last; the tensors are kept, so that none is used again.
        self._writers: dict[int, Operation] = {}
        self._kept: list[torch.Tensor] = []
        self._rounded = Rounded()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        schema = func._schema.arguments
        node = torch._C._current_autograd_node()
        ran.add(bare(func.overloadpacket.__name__))
        ran.update([] if node is None else [node_kind(node.name())])
        given = dict(zip([argument.name for argument in schema], args)) | (kwargs or {})
        written = [
            argument.name
            for argument in schema
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        before = {name: _copied(value) for name, value in given.items()}
        sources = {
            name: self._writers[key]
            for name, value in given.items()
            for tensor in _tensors(value)
            if _bad(tensor) and (key := _storage(tensor)) in self._writers
        }
        rounded = {
            name: found
            for name, value in given.items()
            for tensor in _tensors(value)
            if (found := self._rounded.of(tensor)) is not None
        }
        try:
            made = func(*args, **(kwargs or {}))
        except RuntimeError:
            self.found.append(self._operation(func, before, (), 0, sources, {}))
            raise
        outputs = tuple(_tensors([given[name] for name in written])) or tuple(_tensors(made))
        self._kept += outputs
        place = next((place for place, output in enumerate(outputs) if _bad(output)), 0)
        keys = [_storage(output) for output in outputs]
        outputs = tuple(output.detach().clone() for output in outputs)
        operation = self._operation(func, before, outputs, place, sources, rounded)
        if self._rounded.is_candidate(func, made):
            self._rounded.keep(func, before, made)
        if torch._C._current_autograd_node() is None:
            number = torch.autograd._get_sequence_nr() - 1  # pyright: ignore[reportPrivateImportUsage]
            self._forwards.setdefault(number, operation)
        for output, key in zip(outputs, keys):
            if func._schema.name.startswith("aten::empty") or _bad(output):
                self._writers[key] = operation
        if outputs and _bad(outputs[place]):
            self.found.append(operation)
        return made

    def _operation(
        self,
        func: Any,
        arguments: dict[str, Any],
        outputs: tuple[torch.Tensor, ...],
        place: int,
        sources: dict[str, Operation],
        rounded: dict[str, Operation],
    ) -> Operation:
        node = torch._C._current_autograd_node()
        return Operation(
            name=func._schema.name.rpartition("::")[2],
            full_name=str(func),
            arguments=arguments,
            outputs=outputs,
            place=place,
            phase=self._phase if node is None else "backward",
            node=None if node is None else node.name(),
            forward=None if node is None else self._forwards.get(node._sequence_nr()),  # type: ignore[attr-defined]
            sources=sources,
            rounded=rounded,
        )


def captured(
    program: Program, op: str | None = None, phase: str | None = None, skip: int = 0
) -> Operation:
    """The first operation that made a bad value, of these names; `skip` of them are passed over."""
    recorder = Recorder("update" if phase == "update" else "forward")
    try:
        with recorder:
            program()
    except RuntimeError:
        assert recorder.found and not recorder.found[-1].outputs
    fitting = [
        operation
        for operation in recorder.found
        if (op == operation.name or (op is None and _is_new(operation)))
        and (phase is None or operation.phase == phase)
    ]
    assert fitting, [operation.full_name for operation in recorder.found]
    return fitting[skip]


def why(
    program: Program,
    op: str | None = None,
    phase: str | None = None,
    names: Mapping[str, str] | None = None,
    skip: int = 0,
    scale: float | None = None,
) -> str:
    """The cause and the cure, in one text; "" where no rule fits."""
    return said(explain(captured(program, op, phase, skip), names or {}, scale))


def said(cause: Cause | None) -> str:
    return "" if cause is None else f"{cause.cause} | {cause.cure}"


def stays_finite(program: Program) -> bool:
    """Whether no operation of the program made anything bad; empty memory may be."""
    recorder = Recorder("forward")
    with recorder:
        program()
    return all("empty" in operation.name for operation in recorder.found)


def gradient(function: Callable[..., torch.Tensor], *values: Any, **options: Any) -> Program:
    """A program that takes the gradient of a function's sum at a tensor."""

    def run() -> None:
        x = torch.tensor(*values, **options, requires_grad=True)
        function(x).sum().backward()

    return run


def _is_new(operation: Operation) -> bool:
    """A NaN from none, an infinity from none; -inf of masks is meant."""
    if not operation.outputs:
        return True
    if operation.name in _MEANT or "empty" in operation.name:
        return False
    output = operation.output
    tensors = [tensor for value in operation.arguments.values() for tensor in _tensors(value)]
    if bool(output.isnan().any()):
        return not any(bool(tensor.isnan().any()) for tensor in tensors)
    return not any(_bad(tensor) for tensor in tensors)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return [_copied(item) for item in value] if isinstance(value, (list, tuple)) else value


def _bad(tensor: torch.Tensor) -> bool:
    return (tensor.is_floating_point() or tensor.is_complex()) and not bool(
        torch.isfinite(tensor).all()
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata

"""Torch's operations as they come through its dispatcher: their arguments, and what they write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..tensors import unseen, values_of
from ..tracebacks import leave_out_ours

#: They write their running statistics without saying so in their schema.
_BATCH_NORMS = frozenset({"cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm"})
_STATISTICS = frozenset({"running_mean", "running_var"})
#: Where a tensor's numbers are: two tensors with the same key are the same numbers.
Key = tuple[int, int, tuple[int, ...], tuple[int, ...]]


@dataclass
class Arguments:
    """The arguments of one call by their names in the schema."""

    by_name: dict[str, Any]
    written: tuple[str, ...]
    tensors: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])


Run = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


def dispatch_mode(run: Run, again: bool = False) -> Any:
    """A `TorchDispatchMode` that hands each operation to `run`; inside it no mode is active.

    `again`: for code that the program has run already, so that the compiler is loaded by now if
    that needs it. To keep a mode from the compiler torch loads it, at the first operation: 1.4 s.
    """
    return _mode_class(not again or "torch._dynamo" in sys.modules)(run)


@cache
def _mode_class(keeps_from_compiler: bool) -> Any:
    """Made once: to make a class of modes takes torch 0.2 ms."""
    torch_modes = sys.modules["torch.utils._python_dispatch"]
    base: Any = torch_modes.TorchDispatchMode
    flags_the_process = not compiling_goes_on()

    class Mode(base):
        def __init__(self, run: Run) -> None:
            super().__init__()
            self._run = run

        # torch's own also sets flags of the whole process, and back to what they were. Ours is on
        # over many lines of the program, in which other threads enter and leave modes, and a thread
        # may end with it: the flags would then say for good that one is on, or that none is. Of
        # such as ours nobody asks them but an older torch, for which we are on briefly.
        def __enter__(self) -> Any:
            if flags_the_process:
                return super().__enter__()
            torch_modes._push_mode(self)
            return self

        def __exit__(self, *raised: Any) -> None:
            if flags_the_process:
                super().__exit__(*raised)
            else:
                torch_modes._pop_mode()

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            """Else torch.compile would leave alone for good what is first called inside."""
            return True

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            return keeps_from_compiler

        def __torch_dispatch__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            try:
                return self._run(func, args, kwargs or {})
            except BaseException as error:
                leave_out_ours(error)
                raise

    return Mode


def leave(mode: Any) -> bool:
    """Leave a mode of ours, if the program has entered none in it; torch leaves the innermost."""
    inside = sys.modules["torch"]._C
    depth = inside._len_torch_dispatch_stack()
    if not depth or inside._get_dispatch_stack_at(depth - 1) is not mode:
        return False
    mode.__exit__(None, None, None)
    return True


def compiling_goes_on() -> bool:
    """Whether torch.compile works inside such a mode as outside of it; older torch has no say."""
    base: Any = sys.modules["torch.utils._python_dispatch"].TorchDispatchMode
    return hasattr(base, "ignore_compile_internals")


@cache
def writes(func: Any) -> bool:
    """Whether an operation writes into an argument, whether its schema says so or not."""
    return func._schema.is_mutable or func.overloadpacket.__name__ in _BATCH_NORMS


def named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    by_name: dict[str, Any] = {}
    written: list[str] = []
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            by_name[argument.name] = args[position]
        elif argument.name in kwargs:
            by_name[argument.name] = kwargs[argument.name]
        else:
            continue
        silent = argument.name in _STATISTICS and func.overloadpacket.__name__ in _BATCH_NORMS
        if silent or (argument.alias_info is not None and argument.alias_info.is_write):
            written.append(argument.name)
    tensors = [(name, item) for name, value in by_name.items() for item in tensors_of(value)]
    return Arguments(by_name, tuple(written), tensors)


@unseen
def before(arguments: Arguments) -> Arguments:
    """The arguments with copies of those that will be written into."""
    if not arguments.written:
        return arguments
    by_name = dict(arguments.by_name)
    for name in arguments.written:
        value = by_name[name]
        copies = [tensor.clone() for tensor in tensors_of(value)]
        by_name[name] = copies if isinstance(value, (list, tuple)) else next(iter(copies), value)
    return Arguments(by_name, arguments.written, arguments.tensors)


def outputs_of(result: Any, arguments: Arguments) -> list[Any]:
    """What an operation made or wrote into."""
    outputs = list(tensors_of(result))
    for name in arguments.written:
        outputs += [
            tensor
            for tensor in tensors_of(arguments.by_name[name])
            if all(tensor is not known for known in outputs)
        ]
    return outputs


def tensors_of(value: Any) -> Iterator[Any]:
    if isinstance(value, sys.modules["torch"].Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)


def numbers_of(tensor: Any) -> Any:
    """Its numbers, or None for what has none to look at."""
    values = values_of(tensor)
    return None if values is None or values.numel() == 0 else values


def has_nan(tensor: Any) -> bool:
    return bool(sys.modules["torch"].isnan(numbers_of(tensor)).any())


def key_of(values: Any) -> Key:
    return (
        values.untyped_storage()._cdata,
        values.storage_offset(),
        tuple(values.shape),
        tuple(values.stride()),
    )


def storage_of(tensor: Any) -> int:
    """Of tensors without memory of their own (sparse) the object itself."""
    try:
        return tensor.untyped_storage()._cdata
    except RuntimeError:
        return id(tensor)


def is_same(tensor: Any, value: Any) -> bool:
    """Whether both are the same numbers in memory: the dispatcher may make another object."""
    if tensor is value:
        return True
    if not isinstance(value, sys.modules["torch"].Tensor) or tensor.dtype != value.dtype:
        return False
    mine, other = values_of(tensor), values_of(value)
    return mine is not None and other is not None and key_of(mine) == key_of(other)

"""Sees every operation that torch runs on this thread and remembers those that made a bad value.

It sits below autograd (a `TorchDispatchMode`), so it sees what Python calls and what C++ does on
its behalf: the operations of a backward pass, of an optimizer's step, of `torch.nn.functional`.
One sum per result tells whether it is finite (see `tensors`). From a bad tensor the way leads back
over the bad arguments to the operation that made it of good ones: its producer.

A -inf that was written on purpose (`masked_fill`, `full`) is not followed, else each masked logit
would be a producer; a NaN that was made of one is. See docs/first-nan.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...wire import Operand
from ..tensors import QuickLook, has_nonfinite, quick_look, tensors_in, unseen
from .cause import Cause
from .dispatch import (
    Arguments,
    Key,
    before,
    dispatch_mode,
    has_nan,
    key_of,
    named,
    numbers_of,
    outputs_of,
    storage_of,
    tensors_of,
    writes,
)
from .forwards import Forwards, sequence_number
from .made import CONSTANTS, Made
from .operation import Line, Operation
from .rounded import Rounded
from .stack import (
    CallSite,
    is_called_by_python,
    is_recomputed,
    lines_at,
    module_at,
    runs_hooks,
)

if TYPE_CHECKING:
    import torch

#: What has random numbers of a generator has one of these arguments.
_GENERATOR = "generator"
_COLLECTIVES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"})
#: Operations that change what memory a tensor has: what they did can't be undone.
_RESHAPING = frozenset({"resize_", "resize_as_", "set_", "_resize_output_"})


#: They refuse what is not finite: what it was is kept until there is another.
_REFUSING = frozenset({"bernoulli", "multinomial", "poisson"})


#: Says of an operation why it made a bad value, and what its operands were.
Describe = Callable[[Operation], tuple[Cause | None, tuple[Operand, ...]]]


class NotReplayable(BaseException):
    """Why a forward must not, or can't usefully, be run again. Its text is for the user.

    It passes through the program's own code, which may catch any `Exception`.
    """


@dataclass(frozen=True)
class Failed:
    """An operation that raised, of those that tell of a bad value by it."""

    #: The id of the exception.
    error: int
    operation: Operation
    #: What made its bad argument.
    made: Made | None


@dataclass
class _Running:
    """An operation that runs now: its arguments as they were before, and as they are."""

    func: Any
    arguments: Arguments
    live: Arguments
    sources: dict[str, Made]
    outside: dict[str, bool]


class Recorder:
    """The bad results of the operations that ran while `mode()` was on.

    `describe` is asked at once of each operation that made a bad value, since later ones may
    overwrite its operands. `forwards` keeps what the operations of the forward were, to name those
    that nodes of the backward belong to. A `replay` refuses what must not be done twice; unless it
    `may_be_random`, random numbers would be others than in the program. `on_write` is called before
    an operation writes into a tensor, with whether that was made here; `after_write` once it has.
    After a fault of its own it lets operations pass.
    """

    def __init__(
        self,
        *,
        describe: Describe = lambda operation: (None, ()),
        forwards: Forwards | None = None,
        phase: str = "forward",
        replay: bool = False,
        may_be_random: bool = True,
        generators: Sequence[Any] = (),
        on_write: Callable[[Any, bool], None] | None = None,
        after_write: Callable[[Any, Arguments], None] | None = None,
        on_fault: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        self._describe = describe
        self._phase = phase
        #: An inactive one lets operations pass unseen.
        self.is_active = True
        self._forwards = forwards
        self._is_replay = replay
        self._may_be_random = may_be_random
        #: Those besides torch's own that are where they were.
        self._generators = generators
        self._on_write = on_write
        self._after_write = after_write
        self._on_fault = on_fault
        #: What went wrong in it; it has been inactive since.
        self.fault: Exception | None = None
        #: The newest operation that has refused a bad value.
        self.failed: Failed | None = None
        self._outer_node: Any = None
        self._look_quickly: QuickLook
        self._own_storages: set[int] = set()
        self.forget()

    def forget(self) -> None:
        """Keep nothing of what was recorded."""
        self._made: dict[Key, Made] = {}
        self._rounded = Rounded()
        self._newest: dict[int, Made] = {}
        self._counts: dict[str, int] = {}
        self.failed = None
        if self._forwards is not None:
            self._forwards.forget_before(sequence_number())

    def again(self, on_write: Callable[[Any, bool], None]) -> Recorder:
        """One for code that is run again, which knows what this one has seen and adds to it."""
        other = copy(self)
        other.is_active = True
        other._is_replay = True
        other._on_write = on_write
        other._own_storages = set()
        return other

    def mode(self, *, runs_node: bool = False) -> Any:
        """While it is on, operations of this thread are recorded.

        In a hook on a gradient a node of autograd's runs, which has nothing to do with what runs
        here, unless that is the node itself once more (`runs_node`).
        """
        running = sys.modules["torch"]._C._current_autograd_node()
        self._outer_node = None if runs_node else running
        self._look_quickly = quick_look()
        return dispatch_mode(self._run, again=self._is_replay)

    def of(self, tensor: torch.Tensor) -> Made | None:
        """What made the numbers of a bad tensor; None if nothing that was seen here."""
        return self._of(tensor)

    def bad_in(self, value: Any) -> Made | None:
        """What made the first bad tensor in `value`, rather one that isn't bad on purpose."""
        meant: Made | None = None
        for _, tensor in tensors_in(value, ""):
            if has_nonfinite(tensor):
                made = self.of(tensor)
                if made is not None and not made.is_meant:
                    return made
                meant = meant or made
        return meant

    @unseen
    def made_by(self, tensor: Any) -> tuple[str, Line] | None:
        """The operation of the forward that made `tensor`, and its line; None if unknown."""
        return None if self._forwards is None else self._forwards.made(tensor)

    @unseen
    def _of(self, tensor: Any) -> Made | None:
        values = numbers_of(tensor)
        if values is None:
            return None
        key = key_of(values)
        return self._made.get(key) or self._newest.get(key[0])

    # Running an operation -------------------------------------------------------------------------

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.is_active:
            return func(*args, **kwargs)
        if not (self._is_replay or self._made or writes(func)):
            return self._run_pure(func, args, kwargs)
        call: _Running | None = None
        try:
            call = self._begin(func, args, kwargs)
        except Exception as error:  # the program must not die of it
            self._fail(error)
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._refused(error, func, args, kwargs)
            raise
        if call is not None:
            try:
                self._end(call, result)
            except Exception as error:
                self._fail(error)
        return result

    def _run_pure(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The usual case in few frames: nothing was bad yet, and no argument is written into."""
        try:
            result = func(*args, **kwargs)
        except Exception as error:
            self._refused(error, func, args, kwargs)
            raise
        try:
            if not self._is_good(result):
                self._end(self._begin(func, args, kwargs), result)
                return result
            if self._rounded.is_candidate(func, result):
                self._rounded.keep(func, named(func, args, kwargs).by_name, result)
            if self._forwards is not None:
                self._note(func, args, kwargs, result)
        except Exception as error:
            self._fail(error)
        return result

    def _is_good(self, result: Any) -> bool:
        """Whether a result is finite, for all that a quick look tells."""
        plain = sys.modules["torch"].Tensor
        for item in result if type(result) in (tuple, list) else (result,):
            if type(item) is plain:
                is_number = item.is_floating_point() or item.is_complex()
                if is_number and self._look_quickly(item, None) is None:
                    return False
            elif isinstance(item, plain):
                return False
        return True

    def _begin(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Running:
        arguments = named(func, args, kwargs)
        if self._is_replay:
            self._refuse(func, arguments)
        sources, outside = self._sources(arguments)
        return _Running(func, before(arguments), arguments, sources, outside)

    def _end(self, call: _Running, result: Any) -> None:
        outputs = outputs_of(result, call.live)
        if self._is_replay:
            self._own_storages.update(map(storage_of, outputs))
        if self._forwards is not None:
            self._note(call.func, (), call.live.by_name, result)
        for place in range(len(outputs)):
            self._look(call, outputs, place)
        if self._rounded.is_candidate(call.func, result):
            self._rounded.keep(call.func, call.arguments.by_name, result)
        if call.live.written and self._after_write is not None:
            self._after_write(call.func, call.live)

    def _refused(
        self, error: Exception, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        name = func.overloadpacket.__name__
        if name not in _REFUSING:
            return
        arguments = named(func, args, kwargs)
        sources, _ = self._sources(arguments)
        made = sources.get("self")
        known = {
            name: source.operation
            for name, source in sources.items()
            if source.operation is not None
        }
        operation = Operation(name, str(func), arguments.by_name, (), sources=known)
        self.failed = Failed(id(error), operation, made)

    def _fail(self, error: Exception) -> None:
        self.is_active = False
        self.fault = error
        self._on_fault(error)

    def _refuse(self, func: Any, arguments: Arguments) -> None:
        if func.namespace in _COLLECTIVES:
            raise NotReplayable(f"the model communicates with other processes ({func})")
        seeded = sys.modules["torch"].Tag.nondeterministic_seeded
        if not self._may_be_random and seeded in func.tags:
            raise NotReplayable(f"it draws random numbers ({func})")
        generator = arguments.by_name.get(_GENERATOR)
        if generator is not None and not any(
            generator._cdata == known._cdata  # the dispatcher makes another Python object of it
            for known in (sys.modules["torch"].default_generator, *self._generators)
        ):
            raise NotReplayable(f"it draws from a generator that no module holds ({func})")
        for name in arguments.written:
            for tensor in tensors_of(arguments.by_name[name]):
                own = storage_of(tensor) in self._own_storages
                if not own and func.overloadpacket.__name__ in _RESHAPING:
                    text = f"it changes the memory of a tensor that was there before ({func})"
                    raise NotReplayable(text)
                if self._on_write is not None:
                    self._on_write(tensor, own)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Keep an operation of the forward, or of a backward that is itself differentiable."""
        node = self._node()
        if node is None or sys.modules["torch"].is_grad_enabled():
            assert self._forwards is not None
            self._forwards.note(func, args, kwargs, result, sys._getframe(1), node)

    def _node(self) -> Any:
        """The autograd node that runs; none for a checkpoint's forward in the middle of it."""
        node = sys.modules["torch"]._C._current_autograd_node()
        if node is None or node is self._outer_node or is_recomputed(sys._getframe(1)):
            return None
        return node

    @unseen
    def _sources(self, arguments: Arguments) -> tuple[dict[str, Made], dict[str, bool]]:
        """The producers of bad arguments, and the names of bad ones that have none."""
        found: dict[str, Made] = {}
        outside: dict[str, bool] = {}
        if not self._made:  # the usual case: nothing was bad so far
            return found, outside
        for name, tensor in arguments.tensors:
            if has_nonfinite(tensor):
                made = self._of(tensor)
                if made is None:
                    outside[name] = has_nan(tensor)
                else:
                    found[name] = made
        return found, outside

    @unseen
    def _look(self, call: _Running, outputs: list[Any], place: int) -> None:
        output, arguments = outputs[place], call.arguments
        values = numbers_of(output)
        if values is None:
            return
        key = key_of(values)
        if not has_nonfinite(output):
            self._made.pop(key, None)
            return
        sources, outside = call.sources, call.outside
        viewed = next(
            (
                source
                for name, source in sources.items()
                if name not in arguments.written
                and any(storage_of(item) == key[0] for item in tensors_of(arguments.by_name[name]))
            ),
            None,
        )
        if viewed is not None and key in self._made:
            return  # the same numbers, as those that autograd saves and gives back
        if not sources and not outside:
            # What was bad before anything here was: looked for only now.
            outside = {
                name: has_nan(tensor)
                for name, tensor in arguments.tensors
                if name not in arguments.written and has_nonfinite(tensor)
            }
        full_name = str(call.func)
        number = self._counts.get(full_name, 0)
        self._counts[full_name] = number + 1
        node = self._node()
        frame = sys._getframe(1)
        has_own_line = node is None or is_called_by_python(frame)
        module = module_at(frame)
        made = Made(
            name=call.func.overloadpacket.__name__,
            full_name=full_name,
            number=number,
            has_nan=has_nan(output),
            elements=values.numel(),
            is_view=viewed is not None,
            sources=sources,
            outside=outside,
            lines=lines_at(frame) if has_own_line else self._lines_of(node),
            has_own_line=has_own_line,
            module=module,
            is_unhooked=module is not None and not runs_hooks(module, frame),
            in_backward=node is not None if viewed is None else viewed.in_backward,
        )
        made.is_fresh = bool(sources or outside) and not made.has_nan and _is_fresh(call, values)
        if not any(source.has_nan for source in made.followed()):
            made.operation = self._whole(made, call, outputs, place, node)
            if made.is_reduced or not made.is_meant:
                made.cause, made.operands = self._describe(made.operation)
        self._made[key] = self._newest[key[0]] = made

    def _whole(
        self, made: Made, call: _Running, outputs: list[Any], place: int, node: Any
    ) -> Operation:
        frame, arguments = sys._getframe(1), call.arguments
        return Operation(
            name=made.name,
            full_name=made.full_name,
            arguments=arguments.by_name,
            outputs=tuple(outputs),
            place=place,
            phase=self._phase if node is None else "backward",
            node=None if node is None else node.name(),
            forward=self._forward_of(node),
            lines=made.lines,
            names=CallSite.behind(frame).names(arguments.tensors, frame),
            sources={
                name: source.operation
                for name, source in made.sources.items()
                if source.operation is not None
            },
            rounded={
                name: found
                for name, tensor in arguments.tensors
                if (found := self._rounded.of(tensor)) is not None
            },
        )

    def _forward_of(self, node: Any) -> Operation | None:
        if node is None or self._forwards is None:
            return None
        return self._forwards.operation(node)

    def _lines_of(self, node: Any) -> tuple[Line, ...]:
        return () if self._forwards is None else self._forwards.lines(node._sequence_nr())


def _is_fresh(call: _Running, values: Any) -> bool:
    """Whether an operation on each element by itself has made an infinity of good ones.

    What it was given elsewhere, as a mask, is no reason for that.
    """
    torch = sys.modules["torch"]
    is_pointwise = torch.Tag.pointwise in call.func.tags
    if not is_pointwise or call.func.overloadpacket.__name__ in CONSTANTS:
        return False
    bad = ~torch.isfinite(values)
    for operand in map(numbers_of, tensors_of(tuple(call.arguments.by_name.values()))):
        if operand is None:
            continue
        sizes = zip(reversed(operand.shape), reversed(bad.shape))
        if operand.dim() > bad.dim() or any(size not in (1, whole) for size, whole in sizes):
            return False
        bad = bad & torch.isfinite(operand)
    return bool(bad.any())

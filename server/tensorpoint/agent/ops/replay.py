"""Runs a forward again to find the operation that made a bad value, and to stop there.

Two passes at most. The first runs below autograd with a `Recorder` and finds the producer. The
second (`Found.live`) runs with the debugger's tracing on and calls back at the operation's line,
above autograd, so that what the user evaluates there is as in the program. What a pass changes is
put back (see `state`). The module's own forward is run if that is the same again: no random
numbers, no counters, no caches; else the root's, from how its call began.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from .. import debugger, explain, quiet
from ..frames import calling_frame
from ..modules import keywords_of
from ..tensors import tensors_in, unseen
from .backward import forward_and_backward
from .finder import Finder
from .forwards import Behind, Forwards, sequence_number
from .keep import holds_state
from .made import Made
from .operation import Operation
from .recorder import Describe, NotReplayable, Recorder
from .state import Entries, Entry, Written, restored
from .suspect import BackwardSuspect, BufferSuspect, ForwardSuspect, Suspect

if TYPE_CHECKING:
    from torch.nn import Module

#: Calls of one model that are tried for a gradient: of several in one pass, the last is likeliest.
_MAX_CALLS = 2


@dataclass
class Found:
    """The operation that made a bad value."""

    made: Made
    #: From the producer to the value that the watch saw.
    way: list[Made]
    #: What the program did besides computing when it was run again: "2 forward hooks", "print".
    side_effects: tuple[str, ...] = ()
    #: Runs again and calls back with the frame of the operation's line; False if it did not come
    #: again. None where it was recorded in the program's own run.
    live: Callable[[Callable[[FrameType], None]], bool] | None = None


@dataclass
class _Run:
    """A forward, and perhaps its backward, that can be run again."""

    module: Module
    act: Callable[[], Any]
    arguments: tuple[Any, ...]
    #: How its call began; None to run it with everything as it is.
    entry: Entry | None
    #: The module at whose entry, or exit, the bad value was seen; None if in what `act` returns.
    receiver: Module | None = None
    returning: Module | None = None
    in_backward: bool = False
    #: The module, and its buffer, that it writes the bad value into.
    buffer: tuple[Module, str] | None = None


class _Reached(BaseException):
    """The bad value has come to where the watch saw it: the rest of the forward is not needed."""

    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made


class Replayer:
    """Runs forwards again, and backwards after them."""

    def __init__(
        self,
        entries: Entries,
        hooks_aside: Callable[[], AbstractContextManager[None]],
        describe: Describe = lambda operation: (None, ()),
    ) -> None:
        self._entries = entries
        self._describe = describe
        self._hooks_aside = hooks_aside
        self._turn = threading.Lock()

    def after_fork(self) -> None:
        """A lock that another thread of the parent held would stay locked in the child."""
        self._turn = threading.Lock()

    def find(self, suspect: Suspect) -> Found:
        """The operation in `suspect`; raises `NotReplayable` with the reason if there is none."""
        if suspect.reason:
            raise NotReplayable(suspect.reason)
        # What holds back prints and waits meanwhile is put in for the process: one after the other.
        with self._turn:
            return self._find(suspect)

    def got_good_gradient(self) -> bool:
        """Whether the gradient at a model's output was still finite in the backward that runs."""
        return any(not entry.got_bad_gradient() for entry in self._entries.in_backward())

    def _find(self, suspect: Suspect) -> Found:
        reason: NotReplayable | None = None
        nearest: Found | None = None
        runs: Iterator[_Run] = iter(())
        unseen = "how the call of the model began was not seen"
        if isinstance(suspect, ForwardSuspect):
            runs = self._forward_runs(suspect)
        elif isinstance(suspect, BackwardSuspect):
            runs = self._backward_runs(suspect)
            unseen = "the gradient did not come through the output of a model"
        elif isinstance(suspect, BufferSuspect):
            runs = self._writing_runs(suspect)
        for run in runs:
            try:
                found = self._first_pass(run)
            except NotReplayable as error:
                reason = error
            else:
                if found is not None and not found.made.outside:
                    return found
                # A NaN that a layer made of an infinity it was given: who made that?
                nearest = nearest or found
                reason = reason or NotReplayable("the value did not come again")
        if nearest is not None:
            return nearest
        raise reason or NotReplayable(unseen)

    def _forward_runs(self, suspect: ForwardSuspect) -> Iterator[_Run]:
        call, receiver = suspect.call, suspect.receiver
        root = suspect.outer[0] if suspect.outer else call
        changing = self._entries.changing(root.module)
        args, kwargs = call.args, keywords_of(call)
        stateless = not holds_state((args, tuple(kwargs.values())))
        if stateless and not call.was_first_argument_changed():
            if not changing.intersection(call.module.modules()):
                forward: Any = call.module.forward
                act = partial(forward, *args, **kwargs)
                yield _Run(call.module, act, (args, kwargs), None, receiver)
        entry = self._entries.of(root.module)
        if entry is not None and root.seen_entry:
            if entry.was_overwritten():
                raise NotReplayable("the model has overwritten its own input")
            target = (receiver, None) if receiver is not None else (None, call.module)
            yield _Run(entry.module, entry.call, (entry.args, entry.kwargs), entry, *target)

    def _backward_runs(self, suspect: BackwardSuspect) -> Iterator[_Run]:
        entries = [entry for entry in self._entries.in_backward() if entry.root() is not None]
        sound = [entry for entry in entries if not entry.got_bad_gradient()]
        if entries and not sound:
            raise NotReplayable(explain.AFTER_MODEL)
        for entry in sound[:_MAX_CALLS]:
            if entry.was_overwritten():
                raise NotReplayable("the model has overwritten its own input")
            act = partial(forward_and_backward, entry, suspect.parameter)
            yield _Run(entry.module, act, (entry.args, entry.kwargs), entry, in_backward=True)

    def _writing_runs(self, suspect: BufferSuspect) -> Iterator[_Run]:
        entry = self._entries.of(suspect.root)
        if entry is None:
            return
        if entry.was_overwritten():
            raise NotReplayable("the model has overwritten its own input")
        arguments = (entry.args, entry.kwargs)
        yield _Run(entry.module, entry.call, arguments, entry, buffer=(suspect.owner, suspect.name))

    def operation_of(self, root: Module, first: int, node: Behind) -> Operation | None:
        """The operation of the forward that made `node`, by running it again.

        `first` is the number of the first node of that call of `root`. None if it can't be told.
        """
        entry = self._entries.of(root)
        if entry is None or entry.first_node != first or entry.was_overwritten():
            return None
        forwards, begin = Forwards(), 0

        def act() -> Any:
            nonlocal begin
            begin = sequence_number()
            return entry.call()

        with self._turn:
            self._recorded(_Run(root, act, (entry.args, entry.kwargs), entry), forwards)
        return forwards.numbered(begin + node.number - first)

    def _first_pass(self, run: _Run) -> Found | None:
        made, effects = self._recorded(run, Forwards() if run.in_backward else None)
        way = [] if made is None else made.likely_way()
        if not way or way[0].operation is None:
            return None
        if way[0].is_from_outside:
            raise NotReplayable("it came from outside of the model's forward")
        return Found(
            way[0],
            way,
            (*effects, *_hooks_of(run.module)),
            lambda stop: self._second_pass(run, way[0], stop),
        )

    def _recorded(self, run: _Run, forwards: Forwards | None) -> tuple[Made | None, list[str]]:
        """Runs it with each operation recorded: who made the bad value, and side effects."""
        written = Written([tensor for _, tensor in tensors_in(run.arguments, "")])
        recorder = Recorder(
            describe=self._describe,
            forwards=forwards,
            replay=True,
            may_be_random=run.entry is not None,
            generators=() if run.entry is None else run.entry.generators,
            on_write=written,
        )
        with ExitStack() as stack:
            stack.enter_context(debugger.untraced())
            effects = stack.enter_context(quiet.side_effects())
            stack.enter_context(
                quiet.not_waiting(lambda: NotReplayable("it waits for another thread"))
            )
            self._prepare(stack, run, written)
            if run.receiver is not None:
                stack.enter_context(_watching(run.receiver, recorder, entering=True))
            elif run.returning is not None:
                stack.enter_context(_watching(run.returning, recorder, entering=False))
            stack.enter_context(recorder.mode())
            try:
                returned = replayed(run.act)
                made = recorder.bad_in(returned if run.buffer is None else _buffer(*run.buffer))
            except _Reached as reached:
                made = reached.made
            except Exception as error:
                text = f"running it again raised {type(error).__name__}: {error}"
                raise NotReplayable(text) from error
        if recorder.fault is not None:
            raise recorder.fault
        return made, effects

    def _second_pass(self, run: _Run, made: Made, stop: Callable[[FrameType], None]) -> bool:
        if run.in_backward and not made.has_own_line:
            return False  # it is C++ that calls it, from the line that is shown anyway
        written = Written([tensor for _, tensor in tensors_in(run.arguments, "")])
        stopped = False

        def at_operation(frame: FrameType) -> None:
            nonlocal stopped
            stopped = True
            stop(frame)

        def in_backward() -> None:
            frame = calling_frame(None)
            if frame is not None:
                at_operation(frame)

        # Of a backward torch hands over the whole, with the functions in it, as one: the line in
        # the program's own `backward` is there only while its operation runs.
        at_once = in_backward if run.in_backward else None
        finder = Finder(made.full_name, made.number, written, at_once)
        with ExitStack() as stack:
            self._prepare(stack, run, written)
            if run.in_backward:
                stack.enter_context(finder.mode())
            else:
                stack.enter_context(_stopping(finder, at_operation))
            try:
                replayed(run.act)
            except (Exception, NotReplayable):
                # What comes of it after the operation is no news: the program's own run goes on,
                # and will raise it as well if it does.
                return stopped
        return stopped

    def _prepare(self, stack: ExitStack, run: _Run, written: Written) -> None:
        prepared(stack, self._hooks_aside, run.module, run.arguments, run.entry, written)
        if run.buffer is not None:
            _mend(_buffer(*run.buffer), written)


def _buffer(owner: Module, name: str) -> Any:
    return owner._buffers[name]


@unseen
def _mend(buffer: Any, written: Written) -> None:
    """What it was before the call isn't known, but it was finite."""
    written(buffer, own=False)
    torch = sys.modules["torch"]
    with torch.no_grad():
        buffer.copy_(torch.where(torch.isfinite(buffer), buffer, 1.0))


def prepared(
    stack: ExitStack,
    hooks_aside: Callable[[], AbstractContextManager[None]],
    module: Module,
    arguments: object,
    entry: Entry | None,
    written: Written,
) -> None:
    """Our own hooks aside, everything to be put back, and the call as it began."""
    stack.enter_context(quiet.on_this_thread())
    stack.enter_context(hooks_aside())
    # A checkpoint counts what the program's own run saves for backward.
    saved = sys.modules["torch.autograd.graph"].saved_tensors_hooks
    stack.enter_context(saved(lambda tensor: tensor, lambda tensor: tensor))
    stack.enter_context(restored([*module.modules()], arguments, written))
    if "torch._dynamo" in sys.modules:
        stack.enter_context(sys.modules["torch"].compiler.set_stance("force_eager"))
    if entry is not None:
        for undo in entry.undo:
            undo()


def replayed(act: Callable[[], Any]) -> Any:
    """The frame between ours and those of the program that is run again (see `stack`)."""
    return act()


@contextmanager
def _watching(module: Module, recorder: Recorder, entering: bool) -> Generator[None]:
    """End the run when a bad value comes to the entry or the exit of `module`."""

    def look(value: Any) -> None:
        made = recorder.bad_in(value)
        if made is not None and not made.is_meant:
            raise _Reached(made)

    if entering:
        handle = module.register_forward_pre_hook(
            lambda _, args, kwargs: look((args, kwargs)), with_kwargs=True
        )
    else:
        handle = module.register_forward_hook(lambda _, args, output: look(output))
    try:
        yield
    finally:
        handle.remove()


def _stopping(finder: Finder, stop: Callable[[FrameType], None]) -> Any:
    """A `TorchFunctionMode` that stops after the function in which `finder` found its operation.

    While the user looks, it is not active, nor is the finder's own mode.
    """
    base: Any = sys.modules["torch.overrides"].TorchFunctionMode

    class Mode(base):
        def __torch_function__(
            self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            known = finder.found
            with finder.mode():
                result = func(*args, **(kwargs or {}))
            if finder.found and not known:
                frame = calling_frame(None)
                if frame is not None:
                    stop(frame)
            return result

    return Mode()


def _hooks_of(module: Module) -> list[str]:
    """The program's own hooks, which ran again."""
    count = sum(
        len(hooks)
        for inner in module.modules()
        for hooks in (inner._forward_hooks, inner._forward_pre_hooks)
    )
    return [f"{count} module hook{'s' if count > 1 else ''}"] if count else []

"""Steps back: runs the root's forward again, from how its call began, up to an earlier layer.

The thread stands in a hook of the live run meanwhile, in the middle of its forward. The second run
is as that of `ops.replay`: the same arguments, random numbers, attributes and buffers, everything
that it changes put back when it has ended, however it ends. In it steps go on as in the live run;
where it comes to the layer that the live run stands at, it is left, and the live run goes on.

It counts the entries of layers: the same forward enters them in the same order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .. import debugger, quiet
from ..ops.dispatch import dispatch_mode, named, outputs_of, storage_of, tensors_of
from ..ops.recorder import NotReplayable
from ..ops.replay import prepared, replayed
from ..ops.state import Entry, Written
from ..tensors import tensors_in

if TYPE_CHECKING:
    from torch.nn import Module

    from .view import View

#: Called at the entry (True) or exit of the `number`-th layer: (module, number, depth, output).
Arrive = Callable[[Any, int, int, bool, Any], None]


class Left(BaseException):
    """The second run is left. `again` is the entry to go back to in another one."""

    def __init__(self, again: int | None = None) -> None:
        super().__init__()
        self.again = again


def no_way_back(view: View, entry: Entry | None, depths: list[int]) -> str | None:
    """Why there is no step back from a stop; None where there is one."""
    if view.depth_around or "backward" in view.top.phase:
        return "there is no step back in the backward pass: its gradients are added up already"
    if "update" in view.top.phase:
        return "there is no step back from an optimizer's step: it changes the parameters"
    if view.number is None or not depths:
        return (
            "this call of the model began before its layers were counted: step back is there "
            "from its next call on"
        )
    if view.number == 0 and view.top.phase == "entry":
        return "this is where the call of the model begins: there is no step back"
    if entry is None:
        return "how the call of the model began was not seen"
    if entry.was_overwritten():
        return "the model has overwritten its own input: it can't be run again"
    return None


def run_again(
    entry: Entry, hooks_aside: Callable[[], AbstractContextManager[None]], arrive: Arrive
) -> Left | None:
    """Call the root as it was called; `arrive` leaves the run by raising `Left`, which is returned.

    None if the run came to its end. Raises NotReplayable with the reason if it can't be run again.
    """
    if entry.was_overwritten():
        raise NotReplayable("the model has overwritten its own input")
    arguments = (entry.args, entry.kwargs)
    written = Written([tensor for _, tensor in tensors_in(arguments, "")])
    with ExitStack() as stack:
        stack.enter_context(quiet.held_back())
        stack.enter_context(quiet.not_waiting(lambda: NotReplayable("it waits for another thread")))
        prepared(stack, hooks_aside, entry.module, arguments, entry, written)
        leaving = _Leaving(arrive)
        stack.enter_context(_entries_and_exits(leaving.arrive))
        stack.enter_context(_guard(written))
        try:
            replayed(entry.call)
        except Left:
            pass
        except Exception as error:
            if leaving.left is None:
                text = f"running it again raised {type(error).__name__}: {error}"
                raise NotReplayable(text) from error
    return leaving.left


class _Leaving:
    """Leaves the run, and leaves it again at the next layer where the program has caught that."""

    def __init__(self, arrive: Arrive) -> None:
        self._arrive = arrive
        self.left: Left | None = None

    def arrive(self, module: Any, number: int, depth: int, entering: bool, output: Any) -> None:
        if self.left is not None:
            raise self.left
        try:
            self._arrive(module, number, depth, entering, output)
        except Left as left:
            self.left = left
            raise


@contextmanager
def _entries_and_exits(arrive: Arrive) -> Generator[None]:
    """Hear of the layers that this thread enters and leaves."""
    ident = get_ident()
    running: list[tuple[Any, int]] = []
    count = 0

    def before(module: Module, args: tuple[Any, ...]) -> None:
        nonlocal count
        if get_ident() != ident or debugger.evaluating():
            return
        running.append((module, count))
        count += 1
        with _without_modes():
            arrive(module, count - 1, len(running), True, None)

    def after(module: Module, args: tuple[Any, ...], output: Any) -> None:
        if get_ident() != ident or debugger.evaluating():
            return
        while running and running[-1][0] is not module:
            running.pop()  # ended by an exception
        if running:
            _, number = running[-1]
            with _without_modes():
                arrive(module, number, len(running), False, output)
            running.pop()

    torch_module = sys.modules["torch.nn.modules.module"]
    handles = [
        torch_module.register_module_forward_pre_hook(before),
        torch_module.register_module_forward_hook(after),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _guard(written: Written) -> Any:
    """Saves what was there before from what the run writes into it."""
    own: set[int] = set()

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments = named(func, args, kwargs)
        for name in arguments.written:
            for tensor in tensors_of(arguments.by_name[name]):
                written(tensor, storage_of(tensor) in own)
        result = func(*args, **kwargs)
        own.update(storage_of(output) for output in outputs_of(result, arguments))
        return result

    return dispatch_mode(run)


def _without_modes() -> AbstractContextManager[Any]:
    """What the user evaluates at a stop is not the run's doing."""
    disable: Any = sys.modules["torch.utils._python_dispatch"]._disable_current_modes
    return disable()

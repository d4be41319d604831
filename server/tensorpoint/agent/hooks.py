"""Torch's global module hooks: the stack of running calls, handed to whoever watches.

Global hooks, not one per module: they cover modules made later, leave nothing on the modules
(which may be pickled, copied, compared) and go away with one call. Under torch.compile they are
traced into the graph as an immediate return, so compiled code runs as without us and is watched
at its boundary.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from enum import Enum
from functools import lru_cache, wraps
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from . import debugger
from .hit import Hit
from .modules import Call, Names, frame_of_call, running_calls
from .quiet import is_quiet
from .tracebacks import leave_out_ours
from .watches.base import hearing

if TYPE_CHECKING:
    from torch.nn import Module


_Pair = tuple[Callable[["Module", tuple[Any, ...]], None], Callable[..., None]]


class _Depth(Enum):
    """What somebody hears of: the less that is, the less the hooks do."""

    #: Calls of roots are counted.
    STEPS = "steps"
    ROOTS = "roots"
    ALL = "all modules"


class Hooks:
    """The installed hooks, or none of them while nothing listens."""

    def __init__(self, names: Names, on_fault: Callable[[Any, Exception], None]) -> None:
        self._names = names
        self._on_fault = on_fault
        self._handles: list[Any] = []
        self._threads = _Threads()
        #: What torch calls while the hooks are installed: before and after a module's forward.
        self._pair: _Pair | None = None
        self._depth = _Depth.ALL
        self._inside = _Inside()
        #: Called with (call, outer calls) at each entry; empty unless a layer breakpoint is set.
        self.on_enter: tuple[Callable[[Call, list[Call]], None], ...] = ()
        #: Called with (call, outer calls, output) at each exit, after all watches, also where the
        #: output is None; empty unless somebody steps or has set a breakpoint on an exit.
        self.on_leave: tuple[Callable[[Call, list[Call], Any], None], ...] = ()
        self._on_root: tuple[Any, ...] = ()
        self._on_exit: tuple[Any, ...] = ()
        self._on_root_exit: tuple[Any, ...] = ()

    def listen(self, listeners: Iterable[Any]) -> None:
        """Tell exactly these of module calls from now on."""
        listeners = list(listeners)
        self._on_root = hearing(listeners, "on_root")
        self._on_exit = hearing(listeners, "on_exit")
        self._on_root_exit = hearing(listeners, "on_root_exit")
        depth = _Depth.STEPS
        if self._on_exit or self.on_enter or self.on_leave or hearing(listeners, "on_attention"):
            depth = _Depth.ALL
        elif self._on_root or self._on_root_exit:
            depth = _Depth.ROOTS
        if depth is not self._depth:
            self._depth = depth
            if self._handles:  # calls that run are read from the frames then
                self.remove()
                self.install()

    def install(self) -> None:
        """Register with torch, which must be imported. Does nothing if already there."""
        if self._handles:
            return
        torch = sys.modules["torch"]
        # Not torch.compiler.is_compiling: that is two frames, and dynamo folds both to True. What
        # is cached is the answer outside of dynamo, which looks through: a frame less each time.
        is_compiling = lru_cache(maxsize=None)(torch.compiler.is_dynamo_compiling)
        make = {
            _Depth.ALL: self._make_hooks,
            _Depth.ROOTS: self._make_root_hooks,
            _Depth.STEPS: self._make_counting_hooks,
        }[self._depth]
        before, after = self._pair = make(is_compiling)
        module = sys.modules["torch.nn.modules.module"]
        self._handles = [module.register_module_forward_pre_hook(before)]
        if self._depth is not _Depth.STEPS:
            handle = module.register_module_forward_hook(after, with_kwargs=True, always_call=True)
            self._handles.append(handle)
        self._handles += [
            _watch_compiled_calls(module.Module, lambda: None if is_compiling() else self._pair),
            _keep_quiet_about(module, before, after),
            _step_aside_for_export(torch.export, module, lambda: self._pair or ()),
        ]

    def remove(self) -> None:
        """Take all hooks out again."""
        for handle in self._handles:
            handle.remove()
            if hasattr(handle, "id"):  # torch leaves this entry behind
                module = sys.modules["torch.nn.modules.module"]
                module._global_forward_hooks_with_kwargs.pop(handle.id, None)
        self._handles = []
        self._pair = None
        self._inside = _Inside()
        self._threads = _Threads()

    @contextmanager
    def aside(self) -> Generator[None]:
        """What this thread calls for a while is run again, and no news."""
        threads = self._threads
        calls, threads.calls = threads.calls, None
        try:
            yield
        finally:
            threads.calls = calls

    def running(self) -> list[Call]:
        """The calls that run on this thread, outermost first. Not to be changed."""
        return self._threads.calls or []

    def _make_hooks(self, is_compiling: Callable[[], bool]) -> _Pair:
        """The two functions that torch calls for every module: as few Python frames as possible.

        Under debugpy on Python 3.11 each frame costs about 1 us, and the code is cold after a
        layer's kernels. Whatever goes wrong in them, the program must not die of it.
        """
        threads, on_fault, inside = self._threads, self._on_fault, self._inside.roots
        torch, make = sys.modules["torch"], Call.__new__
        plain, function_modes = torch.Tensor, torch._C._len_torch_function_stack

        def before(module: Module, args: tuple[Any, ...]) -> None:
            if is_compiling():
                return
            try:
                calls = threads.calls
                if (
                    not calls
                    or inside.get(id(module)) != id(calls[0].module)
                    or self.on_enter
                    or function_modes()
                ):
                    self._enter(module, args, calls)
                    return
                call = make(Call)
                call.module, call.args = module, args
                first: Any = args[0] if args else None
                if type(first) is plain and not first.is_inference():
                    call.version = first._version
                calls.append(call)
            except Hit:
                raise
            except Exception as error:
                on_fault(self, error)

        def after(
            module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None
        ) -> None:
            if is_compiling():
                return
            try:
                calls = threads.calls
                if not calls or calls[-1].module is not module:
                    _unwind(calls or [], module)
                    if not calls or calls[-1].module is not module:
                        return  # it began before we were armed, or didn't get as far as our hook
                call = calls.pop()
                # After an exception torch leaves the keywords out: then there is no output.
                if output is not None:
                    call.args, call.kwargs = args, kwargs
                    for listener in self._on_exit:
                        try:
                            listener.on_exit(call, calls, output)
                        except Hit:
                            raise
                        except Exception as error:
                            on_fault(listener, error)
                if self.on_leave and (output is not None or not _is_raising(sys._getframe(1))):
                    call.args, call.kwargs = args, kwargs
                    for listen in self.on_leave:
                        self._guard(listen, call, calls, output)
                if output is not None and not calls:
                    self._leave(call, output)
                while calls and not calls[-1].seen_entry:
                    calls.pop()  # read again from the frames at the next entry
            except Hit:
                raise
            except Exception as error:
                on_fault(self, error)

        return before, after

    def _make_root_hooks(self, is_compiling: Callable[[], bool]) -> _Pair:
        """The same where nobody hears of inner modules: their calls are not kept.

        But for the first of each, which `_enter` takes for a root's until it has seen it inside.
        """
        threads, on_fault, inside = self._threads, self._on_fault, self._inside.roots

        def before(module: Module, args: tuple[Any, ...]) -> None:
            if is_compiling():
                return
            try:
                calls = threads.calls
                if (
                    not calls
                    or inside.get(id(module)) != id(calls[0].module)
                    or module is calls[-1].module  # one that calls itself: each end takes one off
                ):
                    self._enter(module, args, calls)
            except Hit:
                raise
            except Exception as error:
                on_fault(self, error)

        def after(
            module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None
        ) -> None:
            if is_compiling():
                return
            try:
                calls = threads.calls
                if not calls or calls[-1].module is not module:
                    return
                call = calls.pop()
                if output is not None and not calls:
                    call.args, call.kwargs = args, kwargs
                    self._leave(call, output)
                while calls and not calls[-1].seen_entry:
                    calls.pop()
            except Hit:
                raise
            except Exception as error:
                on_fault(self, error)

        return before, after

    def _make_counting_hooks(self, is_compiling: Callable[[], bool]) -> _Pair:
        """The same where calls of roots are counted, and nobody hears of any: the second has none.

        A module of a root's that was once called in it is none. Of each other the frames tell.
        """
        on_fault, inside = self._on_fault, self._inside

        def before(module: Module, args: tuple[Any, ...]) -> None:
            if is_compiling() or id(module) in inside.roots:
                return
            try:
                root = self._count(module)
                if root is not None:
                    inside.add(module, root)
            except Hit:
                raise
            except Exception as error:
                on_fault(self, error)

        def after(*_: object) -> None:
            pass

        return before, after

    def _count(self, module: Module) -> Module | None:
        """Count a call of a root; of a module below one, that."""
        if self._threads.calls is None or is_quiet():
            return None
        around = running_calls(sys._getframe(), but=module)
        if around:
            self._names.learn(around[0].module)
            root = self._names.root_and_path(module)[0]
            return None if root is module else root
        self._names.learn(module)
        if not debugger.evaluating():
            root, path = self._names.root_and_path(module)
            if root is module or not path:
                self._names.count_call(root)
        return None

    def _enter(self, module: Module, args: tuple[Any, ...], calls: list[Call] | None) -> None:
        if calls is None or is_quiet():
            return
        if calls and not _is_running(calls[0].frame, sys._getframe()):
            calls.clear()  # it ended without its hook: KeyboardInterrupt leaves so
        call = Call(module, args)
        if not calls:
            call.frame = sys._getframe(2)  # the one that called our hook
            self._begin(call, calls)
        if calls:
            self._inside.add(module, calls[0].module)
        for listen in self.on_enter:
            self._guard(listen, call, calls)
        calls.append(call)

    def _begin(self, call: Call, calls: list[Call]) -> None:
        """A call with nothing around it that we saw begin: a root's, unless we came in midway."""
        calls.extend(running_calls(sys._getframe(), but=call.module))
        if calls:
            calls[0].frame = frame_of_call(calls[0].module, sys._getframe())
            self._names.learn(calls[0].module)
            return
        self._names.learn(call.module)
        if debugger.evaluating():
            return  # the user tries the model in the console: no step of the program's
        root, path = self._names.root_and_path(call.module)
        if root is call.module or not path:
            self._names.count_call(root)
        for listener in self._on_root:
            self._guard(listener.on_root, call)

    def _leave(self, call: Call, output: object) -> None:
        """A root returned."""
        for listener in self._on_root_exit:
            self._guard(listener.on_root_exit, call, output)

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """The program must not die of a fault of ours."""
        try:
            act(*arguments)
        except Hit:
            raise
        except Exception as error:
            self._on_fault(getattr(act, "__self__", act), error)


class _Inside:
    """The root in whose calls each module was last seen, as long as both are there."""

    def __init__(self) -> None:
        #: By id, both.
        self.roots: dict[int, int] = {}
        self._alive: dict[int, tuple[ref[Module], ref[Module]]] = {}

    def add(self, module: Module, root: Module) -> None:
        """`module` was called in a call of `root`."""
        key = id(module)
        if self.roots.get(key) == id(root):
            return

        def forget(_: object) -> None:
            self.roots.pop(key, None)
            self._alive.pop(key, None)

        self._alive[key] = ref(module, forget), ref(root, forget)
        self.roots[key] = id(root)


class _Threads(threading.local):
    """The running calls of each thread, outermost first; None while it is not to be seen."""

    def __init__(self) -> None:
        self.calls: list[Call] | None = []


def _is_raising(caller: FrameType) -> bool:
    """Whether torch calls our hook since the forward has raised: `caller` handles the exception."""
    trace = sys.exc_info()[2]
    return trace is not None and trace.tb_frame is caller


def _unwind(calls: list[Call], module: Module) -> None:
    """Drop calls that ended without their hook, down to the one of `module` if there is one."""
    for position in range(len(calls) - 1, -1, -1):
        if calls[position].module is module:
            del calls[position + 1 :]
            return


def _is_running(wanted: FrameType | None, frame: FrameType | None) -> bool:
    """Whether the frame `wanted` is on the stack at `frame`."""
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


class Replaced:
    """An attribute of torch's (or the program's) that we replaced; `remove` puts the original back.

    If the program has replaced it as well by then, its replacement stays.
    """

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self._owner, self._name, self._replacement = owner, name, replacement
        self._original = getattr(owner, name)
        setattr(owner, name, replacement)

    def remove(self) -> None:
        if getattr(self._owner, self._name) is self._replacement:
            setattr(self._owner, self._name, self._original)


def _keep_quiet_about(module: Any, *ours: Any) -> Replaced:
    """Don't let our global hooks count as the program's.

    torch warns at each call of a compiled module if there is any global hook, and a program that
    turns warnings into errors would die of that.
    """

    def has_any_global_hook() -> bool:
        return any(
            hook not in ours
            for hooks in (
                module._global_backward_pre_hooks,
                module._global_backward_hooks,
                module._global_forward_hooks,
                module._global_forward_pre_hooks,
            )
            for hook in hooks.values()
        )

    return Replaced(module, "_has_any_global_hook", has_any_global_hook)


def _step_aside_for_export(
    export_module: Any, module: Any, ours: Callable[[], tuple[Any, ...]]
) -> Replaced:
    """Take our hooks out while `torch.export.export` runs: it refuses any global module hook."""
    original = export_module.export

    @wraps(original)
    def export(*args: Any, **kwargs: Any) -> Any:
        aside = [
            (hooks, number, hook)
            for hooks in (module._global_forward_pre_hooks, module._global_forward_hooks)
            for number, hook in hooks.items()
            if hook in ours()
        ]
        for hooks, number, _ in aside:
            del hooks[number]
        try:
            return original(*args, **kwargs)
        finally:
            for hooks, number, hook in aside:
                if hook in ours():  # not removed for good meanwhile
                    hooks[number] = hook

    return Replaced(export_module, "export", export)


def _watch_compiled_calls(module_class: Any, hooks: Callable[[], _Pair | None]) -> Replaced:
    """See the boundary of modules compiled in place by `module.compile()`.

    Such a module's call goes straight to the compiled function and runs no hook at all. What we put
    around it stays, and asks for the `hooks` at each call: there are none once they are removed.
    """
    original = module_class.compile

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        compiled = self._compiled_call_impl

        @wraps(compiled)
        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            pair = hooks()
            if pair is None:
                return compiled(*call_args, **call_kwargs)
            before, after = pair
            before(self, call_args)
            try:
                output = compiled(*call_args, **call_kwargs)
            except Exception as error:
                after(self, call_args, {})
                leave_out_ours(error)
                raise
            after(self, call_args, call_kwargs, output)
            return output

        self._compiled_call_impl = call

    return Replaced(module_class, "compile", compile)

"""Torch's global module hooks: the stack of running calls, handed to whoever watches.

Global hooks, not one per module: they cover modules made later, leave nothing on the modules
(which may be pickled, copied, compared) and go away with one call. Under torch.compile they are
traced into the graph as an immediate return, so compiled code runs as without us and is watched
at its boundary.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from .modules import Call, Names, running_calls

if TYPE_CHECKING:
    from torch.nn import Module


class Listener(Protocol):
    """What hears of module calls. `on_enter` is left out by those that don't need it."""

    def on_root(self, call: Call) -> None: ...
    def on_exit(self, call: Call, outer: list[Call], output: object) -> None: ...


class Hooks:
    """The installed hooks, or none of them while nothing listens."""

    def __init__(self, names: Names, on_fault: Callable[[Any, Exception], None]) -> None:
        self._names = names
        self._on_fault = on_fault
        self._handles: list[Any] = []
        self._threads = threading.local()
        #: Called with (call, outer calls) at each entry; empty unless a layer breakpoint is set.
        self.on_enter: tuple[Callable[[Call, list[Call]], None], ...] = ()
        self.listeners: tuple[Listener, ...] = ()

    def install(self) -> None:
        """Register with torch, which must be imported. Does nothing if already there."""
        if self._handles:
            return
        torch = sys.modules["torch"]
        before, after = self._make_hooks(torch.compiler.is_compiling)
        module = sys.modules["torch.nn.modules.module"]
        optimizer = sys.modules["torch.optim.optimizer"]
        self._handles = [
            module.register_module_forward_pre_hook(before),
            module.register_module_forward_hook(after, with_kwargs=True, always_call=True),
            optimizer.register_optimizer_step_post_hook(self._after_optimizer_step),
            _watch_compiled_calls(module.Module, before, after),
            _keep_quiet_about(module, before, after),
        ]

    def remove(self) -> None:
        """Take all hooks out again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._threads = threading.local()

    def _make_hooks(
        self, is_compiling: Callable[[], bool]
    ) -> tuple[Callable[[Module, Any], None], Callable[[Module, Any, Any, Any], None]]:
        enter, leave = self._enter, self._leave

        def before(module: Module, args: tuple[Any, ...]) -> None:
            if not is_compiling():
                enter(module, args)

        def after(
            module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object = None
        ) -> None:
            # After an exception torch leaves the keywords out: then there is no output.
            if not is_compiling():
                leave(module, args, kwargs, output)

        return before, after

    def _enter(self, module: Module, args: tuple[Any, ...]) -> None:
        try:
            calls = self._threads.calls
        except AttributeError:
            calls = self._threads.calls = []
        if calls and calls[0].module is module:
            self._drop_abandoned(calls, module)
        call = Call(module, args, {})
        if not calls:
            self._begin(call, calls)
        for listen in self.on_enter:
            self._guard(listen, call, calls)
        calls.append(call)

    def _begin(self, call: Call, calls: list[Call]) -> None:
        """A call with nothing around it that we saw begin: a root's, unless we came in midway."""
        calls.extend(running_calls(sys._getframe(), but=call.module))
        if calls:
            self._names.learn(calls[0].module)
            return
        self._names.learn(call.module)
        root, path = self._names.root_and_path(call.module)
        if root is call.module or not path:
            self._names.count_call(root)
        for listener in self.listeners:
            self._guard(listener.on_root, call)

    def _drop_abandoned(self, calls: list[Call], root: Module) -> None:
        """Forget calls that ended without their hook (KeyboardInterrupt leaves so)."""
        running = [call.module for call in running_calls(sys._getframe())]
        if running.count(root) <= 1:
            calls.clear()

    def _leave(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object
    ) -> None:
        calls: list[Call] = getattr(self._threads, "calls", [])
        while calls:
            call = calls.pop()
            if call.module is module:
                break
        else:
            return  # it began before we were armed
        call.args, call.kwargs = args, kwargs
        if output is not None:
            for listener in self.listeners:
                self._guard(listener.on_exit, call, calls, output)
        while calls and not calls[-1].seen_entry:
            calls.pop()  # read again from the frames at the next entry

    def _guard(self, act: Callable[..., None], *arguments: object) -> None:
        """The program must not die of a fault of ours."""
        try:
            act(*arguments)
        except Exception as error:
            self._on_fault(getattr(act, "__self__", act), error)

    def _after_optimizer_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._names.count_optimizer_step(optimizer)


class _Replaced:
    """An attribute of torch's that we replaced; `remove` puts the original back."""

    def __init__(self, owner: Any, name: str, replacement: Any) -> None:
        self._owner, self._name = owner, name
        self._original = getattr(owner, name)
        setattr(owner, name, replacement)

    def remove(self) -> None:
        setattr(self._owner, self._name, self._original)


def _keep_quiet_about(module: Any, *ours: Any) -> _Replaced:
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

    return _Replaced(module, "_has_any_global_hook", has_any_global_hook)


def _watch_compiled_calls(module_class: Any, before: Any, after: Any) -> _Replaced:
    """See the boundary of modules compiled in place by `module.compile()`.

    Such a module's call goes straight to the compiled function and runs no hook at all.
    """
    original = module_class.compile

    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        compiled = self._compiled_call_impl

        def call(*call_args: Any, **call_kwargs: Any) -> Any:
            before(self, call_args)
            output = compiled(*call_args, **call_kwargs)
            after(self, call_args, call_kwargs, output)
            return output

        self._compiled_call_impl = call

    return _Replaced(module_class, "compile", compile)

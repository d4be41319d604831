"""Backward passes: their beginning and end, and each parameter's gradient as it arrives.

A parameter's gradient is heard of by a post-accumulate hook: it runs inside `backward()`, after the
sum over all uses of the parameter and over micro-batches, so that a stop there is at the layer.
(Full backward hooks cost eight times as much and break networks with in-place activations.) The
hooks are put on the parameters when a root module is first called; on those that are added or
thawed later, when one is called next; and on those of no module at the first optimizer step.

On CUDA reading a norm would wait for the device at each parameter, so all are read at the end of
the pass, with one wait. Once one was bad, each is read as it arrives.

The beginning and the end are those of `torch.autograd._engine_run_backward`, through which
`Tensor.backward`, `torch.autograd.backward` and `torch.autograd.grad` all go, on the thread of the
program's call.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from math import inf, isfinite
from operator import attrgetter
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

from . import debugger
from .hit import Hit
from .hooks import Replaced
from .modules import Call, Names
from .quiet import is_quiet
from .quiet import state as quiet
from .tensors import norm_of, norms_of, unseen, version_of
from .tracebacks import leave_out_ours
from .watches.base import hearing

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

_EVENTS = (
    *("on_engine", "on_backward", "on_inner_backward", "on_parameter_gradient"),
    *("on_late_gradient", "on_backward_end", "on_backward_failed"),
)
_Owner = tuple["weakref.ref[Module]", str]


class Gradients:
    """The hooks on parameters and on the engine, or none of them while nothing listens."""

    def __init__(self, names: Names, on_fault: Callable[[Any, Exception], None]) -> None:
        self._names = names
        self._on_fault = on_fault
        self._listeners: dict[str, tuple[Any, ...]] = {}
        #: Those who hear of parameters' gradients, and from which norm on.
        self._hearing: tuple[tuple[Any, float], ...] = ()
        #: What it has a method for but need not hear of.
        self.deaf_to: frozenset[str] = frozenset()
        #: By thread that a pass runs on: whether it is suspended and runs the user's expression.
        self._states: dict[int, Any] = {}
        #: By id of the parameter.
        self._handles: dict[int, tuple[weakref.ref[Any], Any]] = {}
        #: Parameters on CUDA whose gradient came in this pass; they are read at its end.
        self._late: list[tuple[weakref.ref[Any], _Owner | None]] = []
        #: A gradient there was bad: from now on each is read as it arrives.
        self._is_precise = False
        self._is_remote: Callable[[Any], bool] = attrgetter("is_cuda")
        #: By id of the parameter: its gradient, the version of that, and the norm it had then.
        self._norms: dict[int, tuple[weakref.ref[Any], int, float | None]] = {}
        self._engine: Replaced | None = None
        self._roots: weakref.WeakSet[Module] = weakref.WeakSet()
        #: Whether modules or parameters were added anywhere since we looked; torch tells us.
        self._is_grown = False
        self._registrations: list[Any] = []
        #: Parameters of known roots that had no gradient wanted when we looked.
        self._frozen: list[tuple[weakref.ref[Any], _Owner]] = []
        self._lock = threading.Lock()

    def listen(self, listeners: Iterable[Any]) -> None:
        """Tell exactly these from now on; hook nothing if none of them cares."""
        self._listeners = {event: hearing(listeners, event) for event in _EVENTS}
        self._hearing = tuple(
            (listener, getattr(listener, "least_gradient", -inf))
            for listener in self._listeners["on_parameter_gradient"]
        )
        # Else module calls would be heard of for nothing: two hooks a module.
        self.deaf_to = frozenset() if self._hearing else frozenset({"on_root", "on_before_update"})
        if any(self._listeners.values()):
            self._install()
        else:
            self.remove()
        if self._listeners["on_parameter_gradient"]:
            self._hook_parameters()
        else:
            self._unhook_parameters()

    @property
    def is_installed(self) -> bool:
        """Whether backward passes are heard of."""
        return self._engine is not None

    def _install(self) -> None:
        if self._engine is not None:
            return
        self._is_precise = False
        autograd = sys.modules["torch.autograd"]
        self._engine = Replaced(
            autograd, "_engine_run_backward", self._around(autograd._engine_run_backward)
        )

    def _hook_parameters(self) -> None:
        if not self._registrations:
            module = sys.modules["torch.nn.modules.module"]
            self._registrations = [
                module.register_module_parameter_registration_hook(self._on_added),
                module.register_module_module_registration_hook(self._on_added),
            ]
        for root in self._names.roots():
            self._learn(root)

    def remove(self) -> None:
        """Take all hooks out again."""
        if self._engine is not None:
            self._engine.remove()
            self._engine = None
        self._unhook_parameters()

    def _unhook_parameters(self) -> None:
        for handle in self._registrations:
            handle.remove()
        self._registrations = []
        with self._lock:
            for reference, handle in list(self._handles.values()):
                handle.remove()
                parameter: Any = reference()
                # torch leaves an empty table, which must stay while it runs the hooks in it.
                if not (parameter is None or self._states or parameter._post_accumulate_grad_hooks):
                    parameter._post_accumulate_grad_hooks = None
            self._handles.clear()
            self._norms.clear()
            self._frozen.clear()
            self._roots.clear()

    def known_norms(self, parameters: Iterable[Any]) -> list[float | None]:
        """The 2-norm of each gradient that a hook has taken and nobody has written to since.

        None for others. For all at once: in each step that is one Python frame.
        """
        known, norms = self._norms, list[float | None]()
        if not known:
            return [None for _ in parameters]
        is_seen = sys.modules["torch"]._C._len_torch_function_stack()
        for parameter in parameters:
            norm, current, taken = None, parameter.grad, known.get(id(parameter))
            if current is not None and taken is not None and taken[0]() is current:
                version = version_of(current) if is_seen else current._version
                norm = taken[2] if version == taken[1] else None
            norms.append(norm)
        return norms

    # Parameters --------------------------------------------------------------------------------

    def on_root(self, call: Call) -> None:
        """A root module is called: hook its parameters, if that wasn't done yet."""
        if not self._listeners["on_parameter_gradient"]:
            return
        if self._is_grown:
            self._is_grown = False
            for root in list(self._roots):
                self._learn(root)
        if call.module not in self._roots:
            self._learn(call.module)
        # In one frame: there may be thousands.
        elif any((p := item[0]()) is None or p.requires_grad for item in self._frozen):
            frozen, self._frozen = self._frozen, []
            for reference, owner in frozen:
                parameter = reference()
                if parameter is not None:
                    self._take(parameter, owner)

    def _on_added(self, module: Module, name: str, added: Any) -> None:
        self._is_grown = True

    def on_before_update(self, optimizer: Any) -> None:
        """Hook the optimizer's parameters of no known root."""
        if not self._listeners["on_parameter_gradient"]:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in self._handles and _wants_gradient(parameter):
                    self._hook(parameter, None)

    @unseen
    def _learn(self, root: Module) -> None:
        self._roots.add(root)
        frozen = {id(item[0]()) for item in self._frozen}
        for module in root.modules():
            owner: Any = weakref.ref(module)
            for name, parameter in module._parameters.items():
                if parameter is None or id(parameter) in self._handles or id(parameter) in frozen:
                    continue
                self._take(parameter, (owner, name))

    def _take(self, parameter: Any, owner: _Owner) -> None:
        if _wants_gradient(parameter):
            self._hook(parameter, owner)
        else:
            self._frozen.append((weakref.ref(parameter), owner))

    def _hook(self, parameter: Any, owner: _Owner | None) -> None:
        def forget(reference: Any, key: int = id(parameter)) -> None:
            self._handles.pop(key, None)
            self._norms.pop(key, None)

        torch = sys.modules["torch"]
        plain, vector_norm = torch.Tensor, torch.linalg.vector_norm
        function_modes = torch._C._len_torch_function_stack
        dispatch_modes = torch._C._len_torch_dispatch_stack

        def hook(parameter: torch.Tensor) -> None:
            """One Python frame: of a layer's first parameter all is cold after its kernel."""
            state = self._states.get(get_ident())
            # `is_quiet`, in this frame: for each parameter.
            if state is not None and (state.is_in_wait_loop or quiet.depth):
                return
            gradient = parameter.grad
            try:
                # An optimizer that steps inside backward may have taken it.
                norm = None
                if gradient is not None:
                    if not self._is_precise and self._is_remote(gradient):
                        self._late.append((ref(parameter), owner))
                        self._tell("on_late_gradient")
                        return
                    if type(gradient) is plain and not function_modes() and not dispatch_modes():
                        try:
                            # It seldom needs `detach`, which is 20 us where its code is cold.
                            value = gradient.detach() if gradient.requires_grad else gradient
                            norm = vector_norm(value).item()
                        except Exception:  # sparse, float8, ...
                            norm = norm_of(gradient)
                    else:
                        norm = norm_of(gradient)
                    self._norms[id(parameter)] = ref(gradient), gradient._version, norm
                module = owner[0]() if owner is not None else None
                name = owner[1] if owner is not None else "(no module's)"
                for listener, least in self._hearing:
                    if norm is not None and norm < least:
                        continue
                    try:
                        listener.on_parameter_gradient(module, name, parameter, norm)
                    except Hit:
                        raise
                    except Exception as error:
                        self._on_fault(listener, error)
            except Hit:
                raise
            except Exception as error:
                self._on_fault(self, error)

        with self._lock:
            handle = parameter.register_post_accumulate_grad_hook(hook)
            self._handles[id(parameter)] = (weakref.ref(parameter, forget), handle)

    def _read_late(self) -> None:
        """Take the norms of the gradients that were not waited for, and tell of them in order."""
        late, self._late = self._late, []
        found: list[tuple[Any, _Owner | None, Any]] = []
        for reference, owner in late:
            parameter = reference()
            if parameter is not None and parameter.grad is not None:
                found.append((parameter, owner, parameter.grad))
        if not found:
            return
        norms = norms_of([gradient for _, _, gradient in found])
        self._is_precise = not all(norm is None or isfinite(norm) for norm in norms)
        for (parameter, owner, gradient), norm in zip(found, norms, strict=True):
            self._norms[id(parameter)] = ref(gradient), gradient._version, norm
            module = owner[0]() if owner is not None else None
            name = owner[1] if owner is not None else "(no module's)"
            self._tell("on_parameter_gradient", module, name, parameter, norm)

    # The engine --------------------------------------------------------------------------------

    def _around(self, run_backward: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(run_backward)
        def engine_run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            inside = sys.modules["torch"]._C._current_graph_task_id() != -1
            # The user's in the console is none, as is ours; a checkpoint's own is part of another.
            unheard = debugger.evaluating() or is_quiet()
            if inside or unheard:
                if not unheard:
                    self._tell("on_inner_backward", t_outputs)
                try:
                    return run_backward(t_outputs, *args, **kwargs)
                except BaseException as error:
                    leave_out_ours(error)
                    raise
            ident = get_ident()
            self._states[ident] = debugger.thread_state()
            try:
                self._tell("on_engine", *map(bool, args[1:3]))
                self._tell("on_backward", t_outputs)
                results = run_backward(t_outputs, *args, **kwargs)
                self._read_late()
            except BaseException as error:
                self._late.clear()
                self._tell("on_backward_failed")
                leave_out_ours(error)
                raise
            finally:
                self._states.pop(ident, None)
            self._tell("on_backward_end", () if kwargs.get("accumulate_grad") else results)
            return results

        return engine_run_backward

    def _tell(self, event: str, *arguments: Any) -> None:
        for listener in self._listeners[event]:
            try:
                getattr(listener, event)(*arguments)
            except Hit:
                raise
            except Exception as error:
                self._on_fault(listener, error)


def _wants_gradient(parameter: Any) -> bool:
    return parameter.requires_grad and parameter.is_leaf

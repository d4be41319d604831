"""Which module is running: names, the stack of calls on each thread, and step numbers."""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from ..conditions import Sample
from .tensors import Seen, version_of

if TYPE_CHECKING:
    from torch.nn import Module

#: Attribute names that wrappers put between a module and the one it wraps; paths leave them out,
#: so that a condition written for the model also holds for the wrapped model.
_WRAPPER_ATTRIBUTES = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPPER_ROOTS = frozenset({"DataParallel", "DistributedDataParallel"})


class Call:
    """One running call of a module.

    What begins alike in each call is an attribute of the class: `hooks` makes one for every module
    and leaves out `__init__`, a Python frame.
    """

    #: Empty until the call ends or `arguments` has looked: pre-hooks aren't given keywords.
    kwargs: Mapping[str, Any] = MappingProxyType({})
    #: False for a call that was already running when we were armed: its end is not seen.
    seen_entry = True
    #: Rules for which a bad value in this call is already accounted for.
    explained: set[int] | None = None
    #: The last child output that was found finite.
    checked: Seen | None = None
    #: Whether a call in it has returned -inf that is meant.
    masked_inside = False
    #: What backward brings for the last child outputs; `watches.nonfinite_backward` keeps it.
    flow: tuple[Any, ...] = ()
    #: Of an outermost call, a frame on the stack as long as the call runs.
    frame: FrameType | None = None
    #: The version of the first argument at entry, where it has one.
    version: int | None = None
    #: Which entry of its root's call it is, from 0, where that is counted.
    number: int | None = None
    #: What is remembered of it for the backward pass while layers are stepped through.
    visit: Any = None

    def __init__(self, module: Module, args: tuple[Any, ...]) -> None:
        self.module = module
        self.args = args
        if args and type(args[0]) is sys.modules["torch"].Tensor:
            self.version = version_of(args[0])

    @property
    def first_argument(self) -> object:
        return self.args[0] if self.args else None

    def was_first_argument_changed(self) -> bool:
        """Whether the call has written into its first argument.

        An activation with `inplace=True` does, but makes no NaN that wasn't there.
        """
        first: Any = self.first_argument
        return (
            self.version is not None
            and version_of(first) != self.version
            and not getattr(self.module, "inplace", False)
        )


class _Index:
    """The modules below a root by path, and those of its parameters by their ids; all weakly.

    Each is asked for in the first step: a walk each time took 10 s with 1,000 layers.
    """

    def __init__(self, names: Names, root: Module) -> None:
        self.version = names.version
        self.by_path: dict[str, list[weakref.ref[Module]]] = {}
        self.owners: dict[int, list[tuple[weakref.ref[Module], str]]] = {}
        for module in root.modules():
            reference = weakref.ref(module)
            self.by_path.setdefault(names.root_and_path(module)[1], []).append(reference)
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    self.owners.setdefault(id(parameter), []).append((reference, name))


class Names:
    """Paths of modules below their root, and how often each root has been called."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Module, tuple[weakref.ref[Module], str]] = (
            weakref.WeakKeyDictionary()
        )
        self._calls: weakref.WeakKeyDictionary[Module, int] = weakref.WeakKeyDictionary()
        self._indexes: weakref.WeakKeyDictionary[Module, _Index] = weakref.WeakKeyDictionary()
        self._newest_root: weakref.ref[Module] | None = None
        self._optimizer_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        #: How often modules were named: grows with each new root, and when one has grown.
        self.version = 0
        #: Called at each call of a root, once it is counted.
        self.on_counted: Callable[[], None] = lambda: None
        #: Called with the ids of modules that get a name for the first time: what is remembered by
        #: such an id was about another module, which is gone.
        self.on_named: Callable[[frozenset[int]], None] = lambda ids: None

    def learn(self, root: Module) -> None:
        """Name the modules below `root`, unless it is itself part of a larger known one."""
        with self._lock:
            known = self._known.get(root)
            if known is None or known[0]() is None:  # the larger one is gone
                self._name_all(root)

    def _name_all(self, root: Module) -> None:
        self.version += 1
        reference = weakref.ref(root)
        new: list[int] = []
        for name, module in root.named_modules():
            if module not in self._known:
                new.append(id(module))
            self._known[module] = (reference, clean_path(root, name))
        if new:
            self.on_named(frozenset(new))

    def all(self) -> list[tuple[str, str]]:
        """Path and class of all modules that have a name."""
        with self._lock:
            known = list(self._known.items())
        return [(path, class_of(module)) for module, (_, path) in known]

    def called(self) -> list[tuple[str, str]]:
        """The same of those that are called one by one: none inside of what is compiled."""
        with self._lock:
            known = list(self._known.items())
        inside = {
            inner
            for module, _ in known
            if is_compiled(module)
            for inner in module.modules()
            if inner is not module
        }
        return [(path, class_of(module)) for module, (_, path) in known if module not in inside]

    def parameters(self) -> list[str]:
        """Paths of the parameters of all modules that have a name."""
        with self._lock:
            known = list(self._known.items())
        return [
            f"{path}.{name}" if path else name
            for module, (_, path) in known
            for name in module._parameters
        ]

    def root_and_path(self, module: Module) -> tuple[Module, str]:
        """The root that `module` belongs to and its path below it ("" for the root)."""
        known = self._known.get(module)
        root = known[0]() if known is not None else None
        if known is None or root is None:
            return module, ""
        return root, known[1]

    def root_of(self, module: Module | None) -> Module | None:
        """The root of `module`; of None, the root that was called last."""
        if module is not None:
            return self.root_and_path(module)[0]
        return None if self._newest_root is None else self._newest_root()

    def ancestors(self, module: Module) -> list[Module]:
        """The modules from the root down to `module`, itself included."""
        root, path = self.root_and_path(module)
        by_path, parts = self._index(root).by_path, path.split(".")
        chain = {root: None}
        for end in range(1, len(parts)):
            for reference in by_path.get(".".join(parts[:end]), ()):
                if (inner := reference()) is not None:
                    chain[inner] = None
        return list({**chain, module: None})

    def path(self, module: Module, within: Module) -> str:
        """The path of `module`; relearns `within`'s modules if it was added later."""
        if module not in self._known:
            # Not its own, which would make a root of it.
            roots = [] if within is module else [self.root_and_path(within)[0]]
            for root in (*roots, *self.roots()):
                with self._lock:
                    self._name_all(root)
                if module in self._known:
                    break
            else:
                return f"<{type(module).__name__}>"
        return self.root_and_path(module)[1]

    def roots(self) -> list[Module]:
        """The roots that were called so far and still exist."""
        with self._lock:
            return list(self._calls)

    def owners(self, parameter: Any) -> list[Module]:
        """All modules that have `parameter`: tied weights have several."""
        return [
            module
            for root in self.roots()
            for module in root.modules()
            if any(own is parameter for own in module._parameters.values())
        ]

    def owner(self, parameter: Any) -> tuple[Module | None, str]:
        """The module of `parameter` and its name there; None outside of known roots."""
        roots = self.roots()
        for root in roots:
            for reference, name in self._index(root).owners.get(id(parameter), ()):
                module = reference()
                if module is not None and module._parameters.get(name) is parameter:
                    return module, name
        for root in roots:  # it came later
            for module in root.modules():
                for name, own in module._parameters.items():
                    if own is parameter:
                        return module, name
        return None, "(no module's)"

    def names_below(self, root: Module, owner: Module, name: str) -> list[tuple[Module, str]]:
        """Modules below `root` that have this parameter of `owner`'s, and its name in each."""
        parameter = owner._parameters.get(name)
        return [
            (module, own)
            for reference, own in self._index(root).owners.get(id(parameter), ())
            if (module := reference()) is not None and module._parameters.get(own) is parameter
        ]

    def _index(self, root: Module) -> _Index:
        """What is where below `root`, as of when its modules were last named."""
        index = self._indexes.get(root)
        if index is None or index.version != self.version:
            index = self._indexes[root] = _Index(self, root)
        return index

    def count_call(self, root: Module) -> None:
        """Count a forward call of `root`: the first makes its step 0."""
        with self._lock:
            self._calls[root] = self._calls.get(root, -1) + 1
            self._newest_root = weakref.ref(root)
        self.on_counted()

    def newest_step(self) -> int | None:
        """The step of the root that was called last: of a loss, of an optimizer's step."""
        root = self.root_of(None)
        return None if root is None else self._calls.get(root)

    def step(self, module: Module) -> int | None:
        """The step that `module`'s root is in, or None before its first call."""
        return self._calls.get(self.root_and_path(module)[0])

    def count_optimizer_step(self, optimizer: Any) -> None:
        """Count a finished `optimizer.step()`."""
        with self._lock:
            self._optimizer_steps[optimizer] = self._optimizer_steps.get(optimizer, 0) + 1

    def optimizer_step(self) -> int:
        """Finished optimizer steps; of several optimizers, those of the one that made most."""
        return max(self._optimizer_steps.values(), default=0)

    def counter(self, name: str, module: Module | None) -> Sample | None:
        """`step` or `optimizer_step` as conditions see it at `module` (None: at no module)."""
        step = self.newest_step() if module is None else self.step(module)
        if name == "optimizer_step":
            return Sample(self.optimizer_step(), step)
        return None if step is None else Sample(step, step)


def forward_of(module: Module) -> Any:
    """What its class has as `forward`; to ask the class of a TorchScript module is an error."""
    return inspect.getattr_static(type(module), "forward", None)


def is_compiled(module: Module) -> bool:
    """Whether its calls run compiled, by `torch.compile(module)` or `module.compile()`."""
    return _is_made_by_compile(module) or getattr(module, "_compiled_call_impl", None) is not None


def _is_made_by_compile(module: Any) -> bool:
    return type(module).__name__ == "OptimizedModule"


def class_of(module: Any) -> str:
    """The name of its class; of what `torch.compile` has made, that of the module in it."""
    return type(module._orig_mod if _is_made_by_compile(module) else module).__name__


def clean_path(root: Module, name: str) -> str:
    """A name of torch's below `root`, without the wrappers on the way."""
    parts = [part for part in name.split(".") if part not in _WRAPPER_ATTRIBUTES]
    if type(root).__name__ in _WRAPPER_ROOTS and parts and parts[0] == "module":
        del parts[0]
    return ".".join(parts)


def running_calls(frame: FrameType | None, but: Module | None = None) -> list[Call]:
    """The module calls on the Python stack at `frame`, outermost first, read from the frames.

    `but` leaves out the innermost one if it is that module's.
    """
    call_impl = sys.modules["torch.nn"].Module._call_impl.__code__
    calls: list[Call] = []
    while frame is not None:
        if frame.f_code is call_impl:
            names = frame.f_locals
            module = names["self"]
            if calls or module is not but:
                call = Call(module, names["args"])
                call.kwargs, call.seen_entry, call.frame = names["kwargs"], False, frame
                calls.append(call)
            but = None
        frame = frame.f_back
    calls.reverse()
    return calls


def frame_of_call(module: Module, frame: FrameType | None) -> FrameType | None:
    """The frame in which torch's `Module._call_impl` runs `module`, outwards from `frame`."""
    call_impl = sys.modules["torch.nn"].Module._call_impl.__code__
    while frame is not None:
        if frame.f_code is call_impl and frame.f_locals["self"] is module:
            return frame
        frame = frame.f_back
    return None


def keywords_of(call: Call) -> Mapping[str, Any]:
    """The keyword arguments of a running call, which torch doesn't hand to global pre-hooks."""
    if not call.kwargs:
        frame = frame_of_call(call.module, sys._getframe())
        if frame is not None:
            call.kwargs = frame.f_locals["kwargs"]
    return call.kwargs

"""A file as the script that it is: its top-level lines, and functions that are given a model.

`logits = model(ids)` stands in training loops and in `main`, between what loads data, trains and
saves. So the statements run one by one on the meta device, guarded: what may be called is in
`permitted`, what a call that is not made leaves behind is `unknown`. Nothing is trained, written or
read. What a loader gives is not known; where a model of the file is given that, it gets the inputs
with which its class was traced, and a loss labels that fit its other argument.

A function is entered from where the script calls it. With tensors it is run once more by itself, at
several sizes; so is one that nothing calls, if a parameter is named like a model.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
import sys
import time
import types
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader

from . import guarding
from .accelerators import PREPARING, Accelerator, is_accelerator
from .casting import is_autocast
from .guarding import can_be_guarded, guarded_function, guarded_script
from .modes import TooLong
from .permitted import Verdict, verdict
from .source import FileModule, defines, is_stub
from .turns import Turns
from .unknown import SHUT, UNKNOWN, NoNumbers, Sampled, Skip, Unknown, has_unknown, spread

#: For one run.
_SECONDS = 8.0
_DEEPEST = 20
_PROGRESS = {"tqdm", "track", "prefetch"}
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)
_WRAPPERS = {"DistributedDataParallel", "FullyShardedDataParallel"}
#: Losses, as functions and as modules, whose target has the classes' place filled by a number, and
#: those whose target is as what is predicted.
_OF_CLASSES = {"cross_entropy", "nll_loss", "CrossEntropyLoss", "NLLLoss"}
_OF_VALUES = {
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss",
    "BCELoss", "BCEWithLogitsLoss",
}  # fmt: skip
#: Methods of modules that change nothing that a shape depends on, by how they begin.
_HARMLESS = (
    "compile", "enable", "gradient_checkpointing", "load", "log", "print", "push", "register",
    "save", "share",
)  # fmt: skip

#: The inputs of models that are stood in for, by class and name.
Inputs = Mapping[tuple[type, str], Any]


class Ended(BaseException):
    """The script has raised."""


@dataclass
class _Run:
    """One run of the script, or of one function of it."""

    namespace: dict[str, Any]
    inputs: Inputs
    turns: Turns
    end: float
    #: What went wrong, by line.
    failed: dict[int, BaseException] = field(default_factory=dict[int, BaseException])
    functions: dict[str, Any] = field(default_factory=dict[str, Any])
    #: How many modules each call has made.
    made: Counter[int] = field(default_factory=Counter[int])
    depth: int = 0


class Script:
    """One file's. `inputs_of` gives the names of the inputs of a module, if these are known."""

    def __init__(self, file: FileModule, inputs_of: Callable[[Any], Sequence[str]]) -> None:
        self._file, self._inputs_of = file, inputs_of
        self._path = file.source.path
        self._codes: dict[str, types.CodeType | None] = {}
        self._guarded: set[types.CodeType] = set()
        self._made: dict[tuple[int, int], _Made] = {}
        self._numbers = itertools.count()
        self._nodes = dict(_functions(file.source.tree.body))
        self._statements = [each for each in file.source.tree.body if not defines(each)]
        self._now = self._begin({}, {})
        #: The arguments of the first call of each function.
        self.called: dict[str, dict[str, Any]] = {}
        #: The models that were given what is not known.
        self.wanting: set[type] = set()
        #: Modules that an accelerator was given, by their ids.
        self._prepared: dict[int, tuple[Any, Accelerator]] = {}
        #: The sites of what is guarded, and those that no run is sure of.
        self.sites: set[int] = set()
        self.unstable: set[int] = set()
        #: Those that are told more often than the number of times that they were seen.
        self.uncounted: set[int] = set()

    @property
    def does_something(self) -> bool:
        """Whether there is a call among the top-level lines."""
        return any(isinstance(n, ast.Call) for s in self._statements for n in ast.walk(s))

    @property
    def failed(self) -> Mapping[int, BaseException]:
        """What went wrong in the last run, by line."""
        return self._now.failed

    def run(self, inputs: Inputs) -> None:
        """The top-level lines, from the beginning."""
        namespace = {**self._file.namespace, "__name__": "__main__"}
        namespace["__builtins__"] = vars(builtins)
        self._now = self._begin(namespace, inputs)
        self._prepared.clear()
        with self._ending():
            exec(self._script(), namespace)

    def call(self, name: str, given: Mapping[str, Any], inputs: Inputs) -> Any:
        """One function, among the names that the last run of the top-level lines has left."""
        if not self._now.namespace:
            self.run({})
        self._now = self._begin(self._now.namespace, inputs)
        with self._ending():
            return self._interpret(name, None, (), dict(given))
        return UNKNOWN

    def has_function(self, name: str) -> bool:
        """Whether there is a function of that name that can be run guarded."""
        return self._code(name) is not None

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Of a function."""
        function = inspect.unwrap(self._file.namespace[name])
        return dict(inspect.signature(function).parameters)

    # -- code

    def _begin(self, namespace: dict[str, Any], inputs: Inputs) -> _Run:
        """A run, and the names in it of what guarded code calls."""
        end = time.monotonic() + _SECONDS
        turns = Turns(self._file.recorder, self._guarded, end)
        if namespace:
            namespace |= {
                guarding.GUARD: self._guard, guarding.FAILED: self._failed,
                guarding.SPREAD: spread, guarding.LOOP: turns.loop, guarding.ITEMS: turns.all_of,
                guarding.UNSETTLED: turns.is_unsettled, guarding.SKIP: Skip,
                guarding.SPREAD_KEYS: _keywords, guarding.ENDED: Ended,
                guarding.NOTHING: UNKNOWN, guarding.ENDLESS: Sampled(None),
            }  # fmt: skip
        return _Run(namespace, inputs, turns, end)

    @contextmanager
    def _ending(self) -> Generator[None]:
        """Takes back what a script sets for all of torch, and lets it end where it likes."""
        dtype = torch.get_default_dtype()
        try:
            with NoNumbers():
                yield
        except (Ended, Skip):
            pass
        finally:
            torch.set_default_dtype(dtype)
            self.unstable |= self._now.turns.unstable
            self.uncounted |= self._now.turns.uncounted

    def _script(self) -> types.CodeType:
        code = self._codes.get("")
        if code is None:
            code = self._codes[""] = self._compiled(
                lambda: guarded_script(self._file.told(self._statements), self._numbers)
            )
        return code

    def _code(self, name: str) -> types.CodeType | None:
        if name not in self._codes:
            node = self._nodes.get(name)
            if node is None or not can_be_guarded(node):
                self._codes[name] = None
            else:
                self._codes[name] = self._compiled(lambda: self._guarded_function(name, node))
        return self._codes[name]

    def _guarded_function(self, name: str, node: ast.FunctionDef) -> ast.Module:
        [told] = self._file.told([node], name.split(".")[:-1])
        assert isinstance(told, ast.FunctionDef)
        return guarded_function(told, self._numbers)

    def _compiled(self, make: Callable[[], ast.Module]) -> types.CodeType:
        before = len(self._file.sites)
        code = self._file.compiled(make())
        self.sites |= set(range(before, len(self._file.sites)))
        self._guarded |= set(_codes(code))
        return code

    # -- what guarded code calls

    def _guard(self, function: Any, number: int) -> Any:
        """What is called in the place of a function."""
        if time.monotonic() > self._now.end:
            raise TooLong
        if is_accelerator(function):
            return Accelerator
        if isinstance(function, Unknown) or is_stub(function):
            return SHUT if number == guarding.AUTOCAST else UNKNOWN
        name = getattr(function, "__name__", "")
        for known, other in self._now.turns.builtins.items():
            if function is known:
                return other
        if name in _PROGRESS or (name in _WRAPPERS and isinstance(function, type)):
            return _first
        if name == "trange":
            return range
        if function is torch.compile or function is torch.jit.script:
            return _first
        interpreted = self._interpreted(function)
        if interpreted is not None:
            return interpreted
        return lambda *args, **kwargs: self._called(function, number, args, kwargs)

    def _called(self, function: Any, number: int, args: Any, kwargs: Any) -> Any:
        """A call that is made, or not."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        if isinstance(owner, Accelerator):
            return self._accelerated(owner, function, name, args, kwargs)
        if name == "autocast":  # a framework's may be of any dtype
            known = is_autocast(function) and not has_unknown([args, kwargs])
            return function(*args, **kwargs) if known else SHUT
        allowed = self._verdict(function)
        if allowed == "nothing":
            return None
        if name in ("item", "tolist") and isinstance(owner, torch.Tensor):
            if owner.dtype is not torch.bool:
                return UNKNOWN
        if allowed == "unknown":
            if isinstance(owner, torch.nn.Module) and not name.startswith(_HARMLESS):
                raise Skip  # it may have changed the module
            return UNKNOWN
        if guarding.REST in kwargs and not isinstance(function, torch.nn.Module):
            return UNKNOWN
        if has_unknown([args, kwargs]):
            if isinstance(owner, (list, dict, set)) and not isinstance(owner, type):
                return function(*args, **kwargs)
            known = self._stood_in(function, args, kwargs)
            if known is None:
                return UNKNOWN
            args, kwargs = known
        if any(isinstance(each, DataLoader) for each in args) and name != "len":
            return UNKNOWN
        args = [self._handed(each) for each in args]
        kwargs = {key: self._handed(each) for key, each in kwargs.items()}
        if any(each is UNKNOWN for each in [*args, *kwargs.values()]):
            return UNKNOWN
        if allowed == "make":
            return self._module(function, number, args, kwargs)
        prepared = self._prepared.get(id(function))
        if prepared is not None:
            return prepared[1].call(function, args, kwargs)
        result = function(*args, **kwargs)
        if isinstance(result, torch.Tensor) and result.device.type != "meta":
            return result.to("meta")  # from numpy
        return result

    def _accelerated(
        self, owner: Accelerator, function: Any, name: str, args: Any, kwargs: Any
    ) -> Any:
        """A call of an accelerator's method."""
        if name in PREPARING:
            modules = [each for each in args if isinstance(each, torch.nn.Module)]
            self._prepared.update({id(each): (each, owner) for each in modules})
        return function(*args, **kwargs)

    def _verdict(self, function: Any) -> Verdict:
        if getattr(function, "__code__", None) in self._guarded:
            return "call"
        return verdict(function, self._file.module.__name__)

    def _handed(self, value: Any) -> Any:
        """An argument; a function may be called there, and is guarded as it would be here."""
        if not isinstance(value, _FUNCTIONS) or self._interpreted(value) is None:
            harmful = isinstance(value, _FUNCTIONS) and self._verdict(value) == "unknown"
            return UNKNOWN if harmful else value
        return self._interpreted(value)

    def _module(self, function: Any, number: int, args: Any, kwargs: Any) -> Any:
        """A module that is made once for all runs, unless one of them has changed it."""
        self._now.made[number] += 1
        key, given = (number, self._now.made[number]), (args, kwargs)
        known = self._made.get(key)
        if known is None or not _equal(known.given, given) or known.parts != _parts(known.module):
            module = function(*args, **kwargs)
            if not isinstance(module, torch.nn.Module):
                return module
            module = module.to("meta")
            known = self._made[key] = _Made(module, given, module.training, _parts(module))
        if known.module.training != known.training:
            known.module.train(known.training)
        return known.module

    def _stood_in(self, function: Any, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Arguments with what is known of the unknown ones, of models and of losses."""
        kind = type(function)
        losing = kind.__name__ if isinstance(function, torch.nn.Module) else function.__name__
        if losing in _OF_CLASSES | _OF_VALUES and len(args) == 2:
            target = _target(args[0], losing in _OF_CLASSES) if args[1] is UNKNOWN else None
            return None if target is None else ((args[0], target), kwargs)
        if not isinstance(function, torch.nn.Module):
            return None
        inputs = self._inputs_of(function)
        try:
            signature = inspect.signature(function.forward)
            if guarding.REST in kwargs:
                kwargs = {key: value for key, value in kwargs.items() if key != guarding.REST}
                given = signature.bind_partial(*args, **kwargs).arguments
                kwargs.update((name, UNKNOWN) for name in inputs if name not in given)
            bound = signature.bind(*args, **kwargs)
        except TypeError:
            return None
        unknown = [name for name, value in bound.arguments.items() if value is UNKNOWN]
        others = [value for value in bound.arguments.values() if value is not UNKNOWN]
        if any(map(has_unknown, others)) or any(isinstance(v, torch.Tensor) for v in others):
            return None
        if not set(unknown) <= set(inputs):
            return None
        self.wanting.add(kind)
        if any((kind, name) not in self._now.inputs for name in unknown):
            return None
        bound.arguments.update({name: self._now.inputs[kind, name] for name in unknown})
        return bound.args, bound.kwargs

    def _interpreted(self, function: Any) -> Any:
        """The guarded function in the place of one of the file's."""
        if inspect.isclass(function):
            return self._made_object(function)
        plain = inspect.unwrap(getattr(function, "__func__", function))
        code = getattr(plain, "__code__", None)
        if code is None or code.co_filename != self._path or code in self._guarded:
            return None
        name = plain.__qualname__
        if self._nodes.get(name) is None or name.endswith(".forward"):
            return None
        owner = getattr(function, "__self__", None)
        return lambda *args, **kwargs: self._interpret(name, owner, args, kwargs)

    def _made_object(self, kind: Any) -> Any:
        """An object of a class of the file that is no module: its constructor is looked into."""
        name = f"{kind.__qualname__}.__init__"
        if kind.__module__ != self._file.module.__name__ or issubclass(kind, torch.nn.Module):
            return None
        if name not in self._nodes or kind.__new__ is not object.__new__:
            return None

        def make(*args: Any, **kwargs: Any) -> Any:
            made = object.__new__(kind)
            self._interpret(name, made, args, kwargs)
            return made

        return make

    def _interpret(self, name: str, owner: Any, args: Any, kwargs: Any) -> Any:
        """A call of a function of the file."""
        run, code = self._now, self._code(name)
        if code is None or run.depth > _DEEPEST:
            return UNKNOWN
        if guarding.REST in kwargs:
            raise Skip
        function = run.functions.get(name)
        if function is None:
            short = name.rpartition(".")[2]
            hidden = run.namespace.get(short, run)
            exec(code, run.namespace)
            function = run.functions[name] = run.namespace.pop(short)
            if hidden is not run:
                run.namespace[short] = hidden
        if owner is not None:
            args = (owner, *args)
        if "." not in name and name not in self.called:
            self.called[name] = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        run.depth += 1
        try:
            return function(*args, **kwargs)
        finally:
            run.depth -= 1

    def _failed(self, line: int) -> Any:
        """A statement could not be run; called while that is handled."""
        error = sys.exc_info()[1]
        if isinstance(error, (Ended, TooLong, MemoryError)):
            raise error
        if error is not None and not isinstance(error, Skip):
            self._now.failed.setdefault(line, error)
        return UNKNOWN


@dataclass(frozen=True)
class _Made:
    module: Any
    given: Any
    training: bool
    parts: list[int]


def _equal(one: Any, other: Any) -> bool:
    """Whether what makes a module is the same: numbers, configurations, modules."""
    try:
        return bool(one == other)
    except Exception:  # tensors, and what compares in its own way
        return False


def _parts(module: torch.nn.Module) -> list[int]:
    """What it is made of: the same as long as nobody takes a part out or puts another in."""
    tensors = itertools.chain(module.parameters(), module.buffers())
    return [id(each) for each in itertools.chain(module.modules(), tensors)]


def _functions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods by their qualified names."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", each) for name, each in _functions(node.body))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _codes(each)


def _keywords(value: Any) -> Any:
    """What `**value` passes."""
    return {guarding.REST: UNKNOWN} if isinstance(value, Unknown) else value


def _first(value: Any = UNKNOWN, *_: Any, **__: Any) -> Any:
    return value


def _target(predicted: Any, of_classes: bool) -> Any:
    """A target that fits what is predicted."""
    if not isinstance(predicted, torch.Tensor) or (of_classes and not predicted.dim()):
        return None
    if not of_classes:
        return torch.empty_like(predicted)
    shape = tuple(predicted.shape)
    return torch.zeros((shape[0], *shape[2:]) if len(shape) > 1 else (), dtype=torch.long)

"""What a script's own lines are traced as: the top level, and functions that are given a model.

Sizes get names as everywhere: a function's, from a call with tensors (`examples`); those of a model
that is given what a loader has, from the trace of its class. The top level has the numbers that are
written there.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from .autocasts import MODELS
from .examples import concrete, generalized
from .guessing import batch_inputs
from .inputs import Input, Sizes, TensorSpec, is_plain, tensors
from .plugins import Plugins
from .probing import Probed, Seen, probe
from .running import Run, Target, run
from .scripts import Script
from .sizes import first_sizes
from .source import FileModule
from .targets import Called
from .unknown import UNKNOWN

#: For all of a file.
_SECONDS = 15.0

#: Nothing takes it: it has the runs differ, in which numbers of elements that values decide about
#: are others each time.
_VARYING = Input("", TensorSpec("bool", ("B",)), "call", keyword=True)

Key = tuple[type, str]


def traced_scripts(
    file: FileModule, traced: Sequence[Probed], seen: Collection[int], plugins: Plugins
) -> Iterator[Probed]:
    """What the file's functions and its top-level lines have, those with names for sizes first.

    `seen` are the lines that have shapes already.
    """
    scripted = _Scripted(file, traced, plugins)
    top = scripted.top_level()
    for node in file.source.tree.body:
        if isinstance(node, ast.FunctionDef):
            inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if not any(line in seen for line in inside):
                found = scripted.function(node.name)
                if found is not None:
                    yield found
    if top is not None:
        yield top


@dataclasses.dataclass(frozen=True)
class _Known:
    """A module, and what it is given where a script gives it something unknown."""

    module: Any
    inputs: tuple[Input, ...]
    sizes: Sizes


class _Scripted:
    def __init__(self, file: FileModule, traced: Sequence[Probed], plugins: Plugins) -> None:
        self._file, self._plugins = file, plugins
        self._classes = {
            type(each.target.module): _Known(
                each.target.module, each.target.inputs, each.runs[0].sizes
            )
            for each in reversed(traced)
            if not isinstance(each.target.module, Called)
        }
        #: Models of a library, with what they most likely take.
        self._guesses: dict[type, _Known] = {}
        self._script = Script(file, self._inputs_of)
        self._end = time.monotonic() + _SECONDS

    def _inputs_of(self, module: Any) -> list[str]:
        """The names of the inputs that a module's class was traced with, or a batch for it."""
        kind = type(module)
        if kind not in self._classes and kind not in self._guesses:
            inputs = batch_inputs(module)
            self._guesses[kind] = _Known(module, inputs, first_sizes(inputs))
        return [each.name for each in self._known(kind).inputs]

    def _known(self, kind: type) -> _Known:
        return self._classes.get(kind) or self._guesses[kind]

    def top_level(self) -> Probed | None:
        """The lines of the file."""
        if not self._script.does_something:
            return None
        return self._stood_in("<module>", lambda given: self._script.run(_by_class(given)))

    def function(self, name: str) -> Probed | None:
        """A function that is given tensors, or that nothing calls and that is given a model."""
        if not self._script.has_function(name):
            return None
        parameters = self._script.parameters(name)
        given = self._script.called.get(name)
        if given is None:
            fixed = self._guessed(parameters)
            if fixed is None:
                return None
            return self._stood_in(name, lambda values: self._guess_called(name, fixed, values))
        plain = {key: concrete(value) for key, value in given.items()}
        sized = {key for key, value in plain.items() if tensors(value) and is_plain(value)}
        if not sized or not all(_is_single(parameters[key]) for key in given):
            return None
        fixed = {key: value for key, value in given.items() if key not in sized}
        return self._called(
            name, lambda values: self._script.call(name, {**fixed, **values}, {}),
            tuple(Input(key, plain[key], "call", keyword=True) for key in sorted(sized)),
        )  # fmt: skip

    def _guess_called(self, name: str, fixed: Mapping[str, Any], values: dict[str, Any]) -> Any:
        """With modules that are those of their classes' own traces, and stay as they were."""
        try:
            return self._script.call(name, fixed, _by_class(values))
        finally:
            for each in fixed.values():
                if each is not UNKNOWN:
                    each.eval()

    def _called(
        self, name: str, forward: Callable[[dict[str, Any]], Any], inputs: tuple[Input, ...]
    ) -> Probed | None:
        """With the sizes of a call, and names for those that may vary."""
        first = self._target(name, forward, inputs, None)
        began = run(first, {}, record=False)
        if began.error is not None:
            return None
        usual = frozenset(self._script.failed)

        def runs(inputs: tuple[Input, ...]) -> bool:
            tried = self._target(name, forward, inputs, usual)
            return self._tried(tried, first_sizes(inputs)).error is None

        for found, sizes in generalized(inputs, runs):
            target = self._target(name, forward, found, usual)
            target.example = sizes
            probed = self._probed(target)
            if probed is not None:
                return probed
        return None

    def _stood_in(self, name: str, forward: Callable[[dict[str, Any]], Any]) -> Probed | None:
        """With the inputs of the models that are given what is not known."""
        self._script.wanting.clear()
        plain = self._probed(self._target(name, forward, (), None))
        if plain is None:
            return None
        inputs: tuple[Input, ...] = ()
        while True:
            wanted = [self._known(kind) for kind in self._script.wanting]
            more = tuple(_renamed(each, i) for each in wanted for i in each.inputs)
            if len(more) == len(inputs):  # else what they gave may have gone to another model
                break
            inputs = more
            sizes = {key: size for each in wanted for key, size in each.sizes.items()}
            if self._tried(self._target(name, forward, inputs, None), sizes).error is not None:
                return plain
        found = plain.runs[0].all_sizes
        if not inputs and not found:
            return plain
        usual = frozenset(self._script.failed)
        return self._probed(self._target(name, forward, inputs or (_VARYING,), usual))

    def _guessed(self, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any] | None:
        """The arguments of a function that nothing calls, if one of them must be a model."""
        found: dict[str, Any] = {}
        for name, each in parameters.items():
            if each.default is not each.empty or not _is_single(each):
                continue
            found[name] = UNKNOWN
            for kind, known in self._classes.items():
                annotated = getattr(each.annotation, "__name__", each.annotation) == kind.__name__
                named = len(self._classes) == 1 and name in (*MODELS, kind.__name__.lower())
                if annotated or named:
                    found[name] = known.module
        return found if any(value is not UNKNOWN for value in found.values()) else None

    def _target(
        self, name: str, forward: Callable[[dict[str, Any]], Any], inputs: tuple[Input, ...],
        usual: Collection[int] | None,
    ) -> Target:  # fmt: skip
        """`usual` are the lines that go wrong anyway; if another does, sizes don't fit."""

        def called(**given: Any) -> Any:
            result = forward(given)
            for line, error in self._script.failed.items():
                if usual is not None and line not in usual:
                    raise error
            return result

        recorder = self._file.recorder
        return Target(name, name, Called(called), inputs, recorder, plugins=self._plugins)

    def _tried(self, target: Target, sizes: Sizes) -> Run:
        return run(target, sizes, record=False)

    def _probed(self, target: Target) -> Probed | None:
        if time.monotonic() > self._end:
            return None
        probed = probe(target)
        if not isinstance(probed, Probed):
            return None
        sure = self._script.sites - self._script.unstable
        seen = {
            site: [self._counted(site, each) for each in found]
            for site, found in probed.seen.items()
            if site in sure
        }
        return dataclasses.replace(probed, seen=seen)

    def _counted(self, site: int, seen: Seen) -> Seen:
        return dataclasses.replace(seen, count=1) if site in self._script.uncounted else seen


def _is_single(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


class _Name(str):
    """The name of an input of a model of a class."""

    kind: type
    own: str


def _renamed(known: _Known, each: Input) -> Input:
    kind = type(known.module)
    name = _Name(f"{kind.__name__}.{each.name}")
    name.kind, name.own = kind, each.name
    return dataclasses.replace(each, name=name, keyword=True)


def _by_class(given: Mapping[str, Any]) -> dict[Key, Any]:
    return {
        (name.kind, name.own): value for name, value in given.items() if isinstance(name, _Name)
    }

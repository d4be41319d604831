"""One request: the text of a file in, the table of its shapes out, both as JSON."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import itertools
import math
import os
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...wire.shapes import (
    Condition,
    KnownCall,
    ShapeDiagnostic,
    ShapeHint,
    ShapeRequest,
    ShapeTable,
    Span,
    TracedCall,
    TracedInput,
)
from . import accelerators
from .autocasts import castings_of, joined
from .beside import Beside
from .breaks import CannotExplain, graph_breaks
from .casting import Castings
from .choosing import Example, step_examples, try_inputs
from .devices import device_faults
from .errors import fault_of, first_line, place_of
from .examples import calls_of
from .faults import (
    Limit,
    dtype_faults,
    failures,
    limit_faults,
    limits_of,
    said,
    silent_broadcasts,
    squeezed_batch,
)
from .flips import Ask, Flips
from .gradients import gradient_cuts
from .guessing import parameters_of, unknown_of
from .hints import hints_of, merged, text_of
from .inputs import (
    BadSpec,
    Input,
    Spec,
    TensorSpec,
    is_plain,
    limits_on,
    read_spec,
    spec_text,
    tensors,
)
from .numeric import numeric_faults
from .objects import load_object, make_object
from .plugins import Plugins, mention_plugins
from .probing import Failed, Probed
from .quiet import keep_quiet
from .rewriting import Source
from .scripted import traced_scripts
from .sizes import clash_of
from .source import FileModule
from .symbolic import Symbolic, agreeing, conditions_of, trace_symbolic
from .targets import (
    Called,
    CannotMake,
    Made,
    definition,
    definitions,
    is_function,
    make_target,
    specs_in,
    wanted,
)
from .values import Values

#: A pass that takes longer ends with what it has.
_SYMBOLIC_SECONDS = 20.0
#: For the other sides of branches: of one call, and of all in a file.
_FLIP_SECONDS, _ALL_FLIP_SECONDS = 6.0, 15.0
#: After that faults are no longer looked for in what else is in the file: hints come first. By the
#: clock, as the limit of a job is (`calling.SECONDS`), on a busy machine too.
_THOROUGH_SECONDS = 25.0
#: What is begun before that gets so long at least.
_LEAST_SECONDS = 5.0
_OURS = str(Path(__file__).parents[2])
#: What a project says that says nothing: of inputs, and of what makes the module.
_NOTHING = (Spec(), "")


def prepare() -> None:
    """What traces in forks of this process need not do again. Nothing of the user's runs."""
    for folder in sys.path:
        mention_plugins(folder)


def trace(payload: dict[str, Any], ask: Ask | None = None) -> dict[str, Any]:
    """The job: a `ShapeRequest` as JSON; answers a `ShapeTable` as JSON. `ask` asks a solver."""
    keep_quiet()
    fields: dict[str, Any] = {
        **payload,
        **{name: tuple(payload.get(name, ())) for name in ("specs", "plugins")},
        "known": tuple(KnownCall(**each) for each in payload.get("known", ())),
    }
    request = ShapeRequest(**fields)
    return dataclasses.asdict(table_of(request, ask, seconds=_THOROUGH_SECONDS))


def table_of(
    request: ShapeRequest,
    ask: Ask | None = None,
    kept: list[tuple[FileModule, Probed]] | None = None,
    seconds: float = math.inf,
) -> ShapeTable:
    """Trace every root of the file; what was seen of each goes to `kept`, for those who compare.

    After some seconds faults are not looked for in those that are left.
    """
    began = time.perf_counter()
    last = next(reversed(sys.modules))
    try:
        given = _joined([read_spec(text) for text in reversed(request.specs)])
        if request.object:
            file, name = load_object(request.object)
            names, specs = [name], {}
            settings = {}
        else:
            file = FileModule(Source(request.text, request.path))
            specs = specs_in(file.source)
            settings = _settings(request.known)
            file.load()
            specified = [*specs, *(name for name in settings if name and name not in specs)]
            names = wanted(file, specified, request.class_name)
    except SyntaxError as error:
        return ShapeTable(request.path, untraced=(f"line {error.lineno}: {error.msg}",))
    except (BadSpec, CannotMake) as error:
        return ShapeTable(request.path, untraced=(str(error),))
    plugins = Plugins()
    plugins.load(request.plugins)
    plugins.put_in_place(file.namespace)
    accelerators.put_in_place(file.namespace)
    table = _Table(file, request, ask, plugins, names, seconds)
    table.untraced += [*file.problems, *plugins.problems]
    every: dict[str, Made] = {}
    for name in names:
        owner = name.partition(".")[0]
        try:
            if request.object:
                every[name] = make_object(file, name, request.config)
            else:
                factory = settings.get(owner, settings.get("", _NOTHING))[1]
                every[name] = make_target(file, name, table.values, factory)
        except CannotMake as error:
            table.untraced.append(str(error))
    if request.own_specs and (refused := _not_taken(given, every)):
        return ShapeTable(file.source.path, untraced=(refused,))
    for name, made in every.items():
        own = [specs.get(name), settings.get(name, _NOTHING)[0]]
        table.untraced += [why for each in own if each and (why := _not_taken(each, {name: made}))]
        written = [*own, settings.get("", _NOTHING)[0]]
        spec = _joined([given, *(each for each in written if each)])
        if clash := clash_of(spec.limits):
            size = clash[0].split()[0]
            table.untraced.append(f"{name}: no size {size} satisfies {' and '.join(clash)}")
            continue
        table.add(name, made, spec)
    if request.own_specs and (refused := _without_size(given, table.calls)):
        return ShapeTable(file.source.path, untraced=(refused,))
    if not request.class_name and not request.object:
        table.add_functions()
        table.add_scripts()
    if table.hurried:
        table.untraced.append(
            f"faults were not looked for in {', '.join(table.hurried)}: "
            f"the file takes more than {seconds:.0f} s"
        )
    if kept is not None:
        kept += [(file, each) for each in table.probed]
    if request.class_name and not names:
        table.untraced.append(
            f"there is no module or function {request.class_name!r} in {request.path}"
        )
    return ShapeTable(
        file.source.path,
        tuple(table.calls),
        tuple(merged(table.hints)),
        tuple(table.diagnostics),
        tuple(table.untraced),
        tuple(_dependencies(last, table.beside.read)),
        time.perf_counter() - began,
        tuple(table.conditions),
    )


class _Table:
    """Collects what is known of a file's targets."""

    def __init__(
        self,
        file: FileModule,
        request: ShapeRequest,
        ask: Ask | None,
        plugins: Plugins,
        names: Sequence[str],
        seconds: float,
    ) -> None:
        self._file, self._ask, self._plugins = file, ask, plugins
        #: Whether one class is traced: what is called `model` is of it.
        self._alone = sum(inspect.isclass(file.namespace.get(name)) for name in names) == 1
        self._thorough, self._breaks = request.symbolic, request.breaks
        self._end = time.monotonic() + seconds
        #: What was traced later than that.
        self.hurried: list[str] = []
        self._known, self._object = request.known, bool(request.object)
        self._flip_seconds = _ALL_FLIP_SECONDS
        self.values, self.beside = Values(file), Beside(file.source.path)
        self.probed: list[Probed] = []
        self.calls: list[TracedCall] = []
        self.hints: list[ShapeHint] = []
        self.diagnostics: list[ShapeDiagnostic] = []
        self.untraced: list[str] = []
        self.conditions: list[Condition] = []

    def add(self, name: str, made: Made, spec: Spec) -> None:
        """Trace one target."""
        node, source = definition(self._file.source, name), self._file.source
        found = try_inputs(
            *(self._file, name, made, spec, self._examples(name), self._plugins),
            self._castings(name),
        )
        if isinstance(found, Probed):
            self.probed.append(found)
            thorough = self._thorough and time.monotonic() < self._end
            if thorough != self._thorough:
                self.hurried.append(name)
            limits = limits_of(found, spec.limits) if thorough else []
            found.target.assumptions += [limit.rule for limit in limits]
            self.calls.append(_call(found, source, node, spec.limits))
            if not thorough:
                self.hints += hints_of(found, source, self._file.sites)
                return
            symbolic = trace_symbolic(found, source, self._at_most(_SYMBOLIC_SECONDS))
            self.conditions += [
                dataclasses.replace(each, call=name) for each in conditions_of(symbolic)
            ]
            self.hints += hints_of(found, source, self._file.sites, agreeing(found, symbolic))
            self.diagnostics += silent_broadcasts(found, source)
            self.diagnostics += dtype_faults(found, source)
            self.diagnostics += limit_faults(found, limits, source)
            self.diagnostics += squeezed_batch(found, self._file.sites, spec.limits)
            self.diagnostics += device_faults(found, self._file)
            self.diagnostics += gradient_cuts(found, source)
            self.diagnostics += numeric_faults(found, symbolic, spec.limits, source)
            if self._ask is not None:
                self._turn(found, symbolic, spec.limits, limits)
            if self._breaks:
                try:
                    self.diagnostics += graph_breaks(found, self._file)
                except CannotExplain as error:
                    self.untraced.append(str(error))
            return
        faults = list(failures(found, source))
        self.diagnostics += faults
        if not faults:
            self.untraced.append(_why_not(name, found, source))

    def _at_most(self, seconds: float) -> float:
        """How long a pass may take: one that began late must not take the hints with it."""
        return min(seconds, max(self._end - time.monotonic(), _LEAST_SECONDS))

    def add_functions(self) -> None:
        """Trace the functions that nothing traced so far has called, and that the file calls."""
        seen = {hint.span.line for hint in self.hints}
        for name, node in definitions(self._file.source).items():
            if isinstance(node, ast.FunctionDef) and is_function(self._file, name):
                inside = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not seen.isdisjoint(inside) or any(call.qualname == name for call in self.calls):
                    continue
                kind = self._file.namespace[name]
                example = next(calls_of(self._file, self.values, kind), {})
                if all(is_plain(value) for value in example.values()) and tensors(
                    [*example.values()]
                ):
                    before = len(self.untraced)
                    self.add(name, Made(Called(kind), name), Spec())
                    del self.untraced[before:]

    def add_scripts(self) -> None:
        """Trace the top-level lines, and functions that are given a model."""
        seen = {hint.span.line for hint in self.hints}
        for found in traced_scripts(self._file, self.probed, seen, self._plugins):
            self.hints += hints_of(found, self._file.source, self._file.sites)

    def _examples(self, name: str) -> Iterator[Example]:
        """Calls of a target that are known: in the last run, in the file, in those beside it."""
        owner, _, method = name.partition(".")
        if self._object:
            return
        for each in self._known:
            if each.origin == "last run" and each.target == name:
                with contextlib.suppress(BadSpec):  # values that a specification can't have
                    yield read_spec(each.inputs).inputs, "last run"
        if method:
            for each in self.probed:
                if method == "training_step" and each.target.qualname == owner:
                    yield from step_examples(each.target.inputs)
            return
        kind = self._file.namespace.get(owner)
        for given in calls_of(self._file, self.values, kind):
            yield given, "call"
        for given in self.beside.calls(owner):
            yield given, "call"

    def _castings(self, name: str) -> Castings:
        """The autocasts under which a class is called, in the file, or else in those beside it."""
        name, _, method = name.partition(".")
        kind = self._file.namespace.get(name)
        if self._object or not inspect.isclass(kind) or method not in ("", "training_step"):
            return ()
        found = castings_of(self._file, self.values, kind, alone=self._alone)
        return found or joined(self.beside.castings(name, alone=self._alone))

    def _turn(
        self, found: Probed, symbolic: Symbolic, declared: list[str], limits: list[Limit]
    ) -> None:
        """Add what fails on the other sides of branches, where nothing is said yet.

        Where what comes out is something else there, the call's shapes assume this side.
        """
        assert self._ask is not None
        rules = limits_on(declared, found.target.symbols)
        if said(found.target):  # what fails beyond them has been said
            rules += [limit.rule for limit in limits]
        began = time.monotonic()
        flips = Flips(
            *(found, self._file.source, self._file.sites),
            *(_smt(rules), self._ask, self._at_most(min(_FLIP_SECONDS, self._flip_seconds))),
        )
        places = {each.span for each in self.diagnostics}
        self.diagnostics += [f for f in flips.faults(symbolic) if f.span not in places]
        assumed = dict.fromkeys([*self.calls[-1].assumptions, *(c.text for c in flips.deciding)])
        self.calls[-1] = dataclasses.replace(self.calls[-1], assumptions=tuple(assumed))
        self._flip_seconds -= time.monotonic() - began


def _settings(known: Sequence[KnownCall]) -> dict[str, tuple[Spec, str]]:
    """What the project says of its targets: inputs, and what makes the module."""
    return {
        each.target: (read_spec(each.inputs), each.factory)
        for each in known
        if each.origin == "spec"
    }


def _joined(specs: Sequence[Spec]) -> Spec:
    """All of them; what an earlier one says of an input stands."""
    joined = Spec()
    for each in specs:
        joined.inputs = {**each.inputs, **joined.inputs}
        joined.limits += [limit for limit in each.limits if limit not in joined.limits]
    return joined


def _not_taken(spec: Spec, every: Mapping[str, Made]) -> str:
    """What a specification says of arguments that none of these takes, with those that they do."""
    for argument in spec.inputs if every else ():
        if all(argument in unknown_of(made.module, spec) for made in every.values()):
            known = [f"{name}({', '.join(parameters_of(m.module))})" for name, m in every.items()]
            return (
                f"a specification says what {argument} is, but there is no such argument: "
                f"{' or '.join(known)}"
            )
    return ""


def _without_size(spec: Spec, calls: Sequence[TracedCall]) -> str:
    """A limit of a size that no input has, with those that there are."""
    sizes = dict.fromkeys(name for call in calls for name in call.sizes)
    for limit in spec.limits if calls else ():
        name = limit.split()[0]
        if name not in sizes:
            known = f"there are {', '.join(sizes)}" if sizes else "they are all numbers"
            return f"the limit {limit}: no input has a size {name}; {known}"
    return ""


def _smt(limits: list[str]) -> tuple[str, ...]:
    """`T <= 512` as SMT-LIB 2."""
    found: list[str] = []
    for limit in limits:
        *left, operator, right = limit.split()
        term = f"(mod {left[0]} {left[2]})" if len(left) == 3 else left[0]
        found.append(f"({'=' if operator == '==' else operator} {term} {right})")
    return tuple(found)


def _why_not(name: str, failed: Sequence[Failed], source: Source) -> str:
    """Why a class has no shapes, and what to do."""
    tried = [each for each in failed if each.crashed and each.crashed[0].error is not None]
    if not tried:
        return f"{name}: its inputs are not known; say them: # tensorpoint: x: f32[B, 3, H, W]"
    called = [each for each in tried if any(one.origin == "call" for one in each.target.inputs)]
    # What came furthest is the likeliest.
    best = max(called or tried, key=lambda each: len(each.crashed[0].observations))
    target, error = best.target, best.crashed[0].error
    assert error is not None
    inputs = ", ".join(f"{each.name}: {spec_text(each.value)}" for each in target.inputs)
    fault, place = fault_of(error, source), place_of(error, source)
    where = f"line {place.line}: " if place is not None else ""
    text = first_line(error) if fault is None else fault.message
    what = f"{where}{type(error).__name__}: {text}".rstrip(": ")
    if not target.inputs:
        return f"{name} does not run: {what}"
    if called:
        return f"{name} does not run with {inputs}, as it is called: {what}"
    if said(target):
        return f"{name} does not run with {inputs}, as specified: {what}"
    return (
        f"{name} does not run with the inputs that were guessed: {what}. "
        f"Say what they are, in the place of # tensorpoint: {inputs}"
    )


def _call(probed: Probed, source: Source, node: Any, limits: list[str]) -> TracedCall:
    target = probed.target
    if isinstance(node, ast.ClassDef):
        forward = next((each for each in node.body if getattr(each, "name", "") == "forward"), None)
    else:
        forward = node
    assumptions = [f"{name} == {size}" for name, size in probed.plan.fixed.items()]
    known = {rule.split()[0] for rule in target.assumptions if "%" in rule}
    limits = limits_on(limits, target.symbols)
    assumptions += [
        f"{name} % {step} == 0" for name, step in probed.plan.multiples.items() if name not in known
    ]
    return TracedCall(
        target.qualname,
        target.constructor,
        _name_span(source, node),
        _name_span(source, forward) if forward is not None else None,
        tuple(
            TracedInput(each.name, *_flat(each, probed), origin=each.origin)
            for each in target.inputs
        ),
        text_of([probed.output]) if probed.output else "",
        sum(each.numel() for each in target.module.parameters()),
        probed.flops,
        (*target.assumptions, *assumptions),
        probed.runs[0].sizes,
        tuple(limits),
        _smt(limits),
    )


def _flat(each: Input, probed: Probed) -> tuple[str, tuple[str, ...]]:
    if isinstance(each.value, TensorSpec):
        fixed = probed.plan.fixed
        return each.value.dtype, tuple(str(fixed.get(size, size)) for size in each.value.shape)
    return spec_text(each.value), ()


def _name_span(source: Source, node: Any) -> Span:
    """The name in a `class` or `def` line."""
    text = source.lines[node.lineno - 1]
    col = text.find(node.name, source.column(node.lineno, node.col_offset))
    return Span(node.lineno, col, node.lineno, col + len(node.name))


def _dependencies(last: str, beside: list[str]) -> list[str]:
    """Files of the user's that the file imports, and those beside it that were looked at.

    Imported since `last` was: a fork takes 8 ms to look at all modules, whose pages are copied.
    """
    # Not by `sys.prefix`: that may be /usr, with the user's files in /usr/src.
    installed = [
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    ]
    others = tuple(folder + os.sep for folder in (_OURS, *installed))
    found = [*beside]
    for name in [*itertools.takewhile(lambda name: name != last, reversed(sys.modules))]:
        path = getattr(sys.modules[name], "__file__", None)
        if path and Path(path).suffix == ".py" and not path.startswith(others):
            if not {"site-packages", "dist-packages"} & set(Path(path).parts):
                found.append(path)
    return sorted(set(found))

"""One request: the text of a file in, the table of its shapes out, both as JSON."""

from __future__ import annotations

import dataclasses
import os
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from ...wire.shapes import (
    Condition,
    ShapeDiagnostic,
    ShapeHint,
    ShapeRequest,
    ShapeTable,
    Span,
    TracedCall,
    TracedInput,
)
from .breaks import CannotExplain, graph_breaks
from .devices import device_faults
from .errors import first_line
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
from .guessing import likely_inputs
from .hints import hints_of, merged, text_of
from .inputs import BadSpec, Input, Spec, TensorSpec, limits_on, read_spec
from .numeric import numeric_faults
from .objects import load_object, make_object
from .plugins import Plugins
from .probing import Failed, Probed, probe
from .quiet import keep_quiet
from .rewriting import Source
from .running import Target
from .source import FileModule
from .symbolic import Symbolic, agreeing, conditions_of, trace_symbolic
from .targets import CannotMake, Made, definitions, make_module, roots, specs_in

#: A pass that takes longer ends with what it has.
_SYMBOLIC_SECONDS = 20.0
#: For the other sides of branches: of one call, and of all in a file.
_FLIP_SECONDS, _ALL_FLIP_SECONDS = 6.0, 15.0
_OURS = str(Path(__file__).parents[2])


def trace(payload: dict[str, Any], ask: Ask | None = None) -> dict[str, Any]:
    """The job: a `ShapeRequest` as JSON; answers a `ShapeTable` as JSON. `ask` asks a solver."""
    keep_quiet()
    lists = {name: tuple(payload.get(name, ())) for name in ("specs", "plugins")}
    fields: dict[str, Any] = {**payload, **lists}
    request = ShapeRequest(**fields)
    return dataclasses.asdict(table_of(request, ask))


def table_of(request: ShapeRequest, ask: Ask | None = None) -> ShapeTable:
    """Trace every root of the file."""
    began = time.perf_counter()
    before = set(sys.modules)
    try:
        given = _given(request.specs)
        if request.object:
            file, name = load_object(request.object)
            names, specs = [name], {}
        else:
            file = FileModule(Source(request.text, request.path))
            specs = specs_in(file.source)
            file.load()
            names = roots(file, request.class_name)
    except SyntaxError as error:
        return ShapeTable(request.path, untraced=(f"line {error.lineno}: {error.msg}",))
    except (BadSpec, CannotMake) as error:
        return ShapeTable(request.path, untraced=(str(error),))
    plugins = Plugins()
    plugins.load(request.plugins)
    plugins.put_in_place(file.namespace)
    table = _Table(file, request, ask, plugins)
    table.untraced += [*file.problems, *plugins.problems]
    for name in names:
        try:
            made = (
                make_object(file, name, request.config)
                if request.object
                else make_module(file, name)
            )
        except CannotMake as error:
            table.untraced.append(str(error))
            continue
        table.add(name, made, _joined(specs.get(name, Spec()), given))
    if request.class_name and not names:
        table.untraced.append(f"there is no module {request.class_name!r} in {request.path}")
    return ShapeTable(
        file.source.path,
        tuple(table.calls),
        tuple(merged(table.hints)),
        tuple(table.diagnostics),
        tuple(table.untraced),
        tuple(_dependencies(before)),
        time.perf_counter() - began,
        tuple(table.conditions),
    )


class _Table:
    """Collects what is known of a file's targets."""

    def __init__(
        self, file: FileModule, request: ShapeRequest, ask: Ask | None, plugins: Plugins
    ) -> None:
        self._file, self._ask, self._plugins = file, ask, plugins
        self._thorough, self._breaks = request.symbolic, request.breaks
        self._flip_seconds = _ALL_FLIP_SECONDS
        self._nodes = definitions(file.source)
        self.calls: list[TracedCall] = []
        self.hints: list[ShapeHint] = []
        self.diagnostics: list[ShapeDiagnostic] = []
        self.untraced: list[str] = []
        self.conditions: list[Condition] = []

    def add(self, name: str, made: Made, spec: Spec) -> None:
        """Trace one target."""
        node, source = self._nodes[name], self._file.source
        found = try_inputs(self._file, name, made, spec, self._plugins)
        if isinstance(found, Probed):
            limits = limits_of(found, spec.limits) if self._thorough else []
            found.target.assumptions += [limit.rule for limit in limits]
            self.calls.append(_call(found, source, node, spec.limits))
            if not self._thorough:
                self.hints += hints_of(found, source, self._file.sites)
                return
            symbolic = trace_symbolic(found, source, _SYMBOLIC_SECONDS)
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
        faults = list(failures(found, source)) if found else []
        self.diagnostics += faults
        if not faults:
            self.untraced.append(_why_not(name, found))

    def _turn(
        self, found: Probed, symbolic: Symbolic, declared: list[str], limits: list[Limit]
    ) -> None:
        """Add what fails on the other sides of branches, where nothing is said yet."""
        assert self._ask is not None
        rules = limits_on(declared, found.target.symbols)
        if said(found.target):  # what fails beyond them has been said
            rules += [limit.rule for limit in limits]
        began = time.monotonic()
        flips = Flips(
            *(found, self._file.source, self._file.sites),
            *(_smt(rules), self._ask, min(_FLIP_SECONDS, self._flip_seconds)),
        )
        places = {each.span for each in self.diagnostics}
        self.diagnostics += [f for f in flips.faults(symbolic) if f.span not in places]
        self._flip_seconds -= time.monotonic() - began


def _given(texts: tuple[str, ...]) -> Spec:
    spec = Spec()
    for text in texts:
        more = read_spec(text)
        spec.inputs.update(more.inputs)
        spec.limits += more.limits
    return spec


def _joined(written: Spec, given: Spec) -> Spec:
    return Spec({**written.inputs, **given.inputs}, [*written.limits, *given.limits])


def try_inputs(
    file: FileModule, name: str, made: Made, spec: Spec, plugins: Plugins | None = None
) -> Probed | Failed | None:
    """The first of the likely inputs at which it runs; else how the likeliest failed."""
    first: Failed | None = None
    for inputs in likely_inputs(made.module, spec, file.source.path):
        target = Target(
            *(name, made.constructor, made.module, inputs, file.recorder),
            plugins=plugins or Plugins(),
        )
        found = probe(target, spec.limits)
        if isinstance(found, Probed):
            return found
        first = first or found
    return first


def _smt(limits: list[str]) -> tuple[str, ...]:
    """`T <= 512` as SMT-LIB 2."""
    found: list[str] = []
    for limit in limits:
        *left, operator, right = limit.split()
        term = f"(mod {left[0]} {left[2]})" if len(left) == 3 else left[0]
        found.append(f"({'=' if operator == '==' else operator} {term} {right})")
    return tuple(found)


def _why_not(name: str, failed: Failed | None) -> str:
    """Why a class has no shapes, and what to do."""
    if failed is None or not failed.crashed or failed.crashed[0].error is None:
        return f"{name}: its inputs are not known; say them: # tensorpoint: x: f32[B, 3, H, W]"
    target, error = failed.target, failed.crashed[0].error
    inputs = ", ".join(f"{each.name}: {each.value}" for each in target.inputs)
    what = f"{type(error).__name__}: {first_line(error)}".rstrip(": ")
    if not target.inputs:
        return f"{name} does not run: {what}"
    if said(target):
        return f"{name} does not run with {inputs}, as specified: {what}"
    return (
        f"{name} does not run with the inputs that were guessed: {what}. "
        f"Say what they are, in the place of # tensorpoint: {inputs}"
    )


def _call(probed: Probed, source: Source, node: Any, limits: list[str]) -> TracedCall:
    target = probed.target
    forward = next(
        (each for each in getattr(node, "body", ()) if getattr(each, "name", "") == "forward"), None
    )
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
    return str(each.value), ()


def _name_span(source: Source, node: Any) -> Span:
    """The name in a `class` or `def` line."""
    text = source.lines[node.lineno - 1]
    col = text.find(node.name, source.column(node.lineno, node.col_offset))
    return Span(node.lineno, col, node.lineno, col + len(node.name))


def _dependencies(before: set[str]) -> list[str]:
    """Files of the user's that the file imports."""
    # Not by `sys.prefix`: that may be /usr, with the user's files in /usr/src.
    installed = [
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    ]
    others = tuple(folder + os.sep for folder in (_OURS, *installed))
    found: list[str] = []
    for name in sys.modules.keys() - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path and Path(path).suffix == ".py" and not path.startswith(others):
            if not {"site-packages", "dist-packages"} & set(Path(path).parts):
                found.append(path)
    return sorted(found)

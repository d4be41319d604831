"""One request: the text of a file in, the table of its shapes out, both as JSON."""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path
from typing import Any

from ...wire.shapes import (
    ShapeDiagnostic,
    ShapeHint,
    ShapeRequest,
    ShapeTable,
    Span,
    TracedCall,
    TracedInput,
)
from .guessing import likely_inputs
from .hints import hints_of, merged, text_of
from .inputs import BadSpec, Input, Spec, TensorSpec, read_spec
from .probing import Failed, Probed, probe
from .quiet import keep_quiet
from .rewriting import Source
from .running import Target
from .source import FileModule
from .targets import CannotMake, Made, definitions, make_module, roots, specs_in


def trace(payload: dict[str, Any]) -> dict[str, Any]:
    """The job: a `ShapeRequest` as JSON; answers a `ShapeTable` as JSON."""
    keep_quiet()
    fields: dict[str, Any] = {**payload, "specs": tuple(payload.get("specs", ()))}
    request = ShapeRequest(**fields)
    return dataclasses.asdict(table_of(request))


def table_of(request: ShapeRequest) -> ShapeTable:
    """Trace every root of the file."""
    began = time.perf_counter()
    before = set(sys.modules)
    try:
        source = Source(request.text, request.path)
        given = _given(request.specs)
        specs = specs_in(source)
    except SyntaxError as error:
        return ShapeTable(request.path, untraced=(f"line {error.lineno}: {error.msg}",))
    except BadSpec as error:
        return ShapeTable(request.path, untraced=(str(error),))
    file = FileModule(source)
    file.load()
    calls: list[TracedCall] = []
    hints: list[ShapeHint] = []
    diagnostics: list[ShapeDiagnostic] = []
    untraced: list[str] = []
    nodes = definitions(source)
    for name in roots(file, request.class_name):
        try:
            made = make_module(file, name)
        except CannotMake as error:
            untraced.append(str(error))
            continue
        spec = _joined(specs.get(name, Spec()), given)
        found = _try_inputs(file, name, nodes[name].lineno, made, spec)
        if isinstance(found, Probed):
            calls.append(_call(found, source, nodes[name]))
            hints += hints_of(found, file.sites)
        else:
            untraced.append(_why_not(name, found))
    if request.class_name and not calls and not untraced:
        untraced.append(f"there is no module {request.class_name!r} in {request.path}")
    return ShapeTable(
        request.path,
        tuple(calls),
        tuple(merged(hints)),
        tuple(diagnostics),
        tuple(untraced),
        tuple(_dependencies(before)),
        time.perf_counter() - began,
    )


def _given(texts: tuple[str, ...]) -> Spec:
    spec = Spec()
    for text in texts:
        more = read_spec(text)
        spec.inputs.update(more.inputs)
        spec.limits += more.limits
    return spec


def _joined(written: Spec, given: Spec) -> Spec:
    return Spec({**written.inputs, **given.inputs}, [*written.limits, *given.limits])


def _try_inputs(
    file: FileModule, name: str, line: int, made: Made, spec: Spec
) -> Probed | Failed | None:
    """The first of the likely inputs at which it runs; else how the likeliest failed."""
    first: Failed | None = None
    for inputs in likely_inputs(made.module, made.module, spec, file.source.path):
        target = Target(
            name, line, made.constructor, made.module, made.module, inputs, file.recorder
        )
        found = probe(target, spec.limits)
        if isinstance(found, Probed):
            return found
        first = first or found
    return first


def _why_not(name: str, failed: Failed | None) -> str:
    if failed is None or not failed.crashed:
        return f"{name}: its inputs are not known; say them: # tensorpoint: x: f32[B, 3, H, W]"
    error = failed.crashed[0].error
    message = (str(error).strip().split("\n") or [""])[0][:300]
    inputs = ", ".join(f"{each.name}: {each.value}" for each in failed.target.inputs)
    return (
        f"{name} does not run with {inputs}: {type(error).__name__}: {message}. If its inputs are "
        f"others, say them: # tensorpoint: x: f32[B, 3, H, W]"
    )


def _call(probed: Probed, source: Source, node: Any) -> TracedCall:
    target, module = probed.target, probed.target.module
    forward = next(
        (each for each in getattr(node, "body", ()) if getattr(each, "name", "") == "forward"), None
    )
    assumptions = [f"{name} == {size}" for name, size in probed.plan.fixed.items()]
    assumptions += [f"{name} % {step} == 0" for name, step in probed.plan.multiples.items()]
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
        sum(each.numel() for each in module.parameters()) if module is not None else None,
        None,
        (*target.assumptions, *assumptions),
        probed.runs[0].sizes,
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
    found: list[str] = []
    for name in sys.modules.keys() - before:
        path = getattr(sys.modules[name], "__file__", None)
        if path and "site-packages" not in path and Path(path).suffix == ".py":
            if not path.startswith((sys.base_prefix, sys.prefix)):
                found.append(path)
    return sorted(found)

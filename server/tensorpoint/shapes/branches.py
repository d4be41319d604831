"""What the conditions of a file's branches prove, with Z3: in our own process, from SMT-LIB 2.

A branch is dead if no sizes that keep to the declared limits lead into it: the limits together with
the negated condition have no model. Each condition is asked once; nothing is enumerated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import z3 as _z3  # pyright: ignore[reportMissingTypeStubs]

from ..wire.shapes import Condition, ShapeDiagnostic, ShapeTable, TracedCall

z3: Any = _z3  # its types are those of its arguments' defaults

_MILLISECONDS = 500
#: SMT-LIB has neither.
_FUNCTIONS = """\
(define-fun min ((a Int) (b Int)) Int (ite (<= a b) a b))
(define-fun max ((a Int) (b Int)) Int (ite (>= a b) a b))
"""
PRELUDE = f"(set-logic QF_NIA)\n{_FUNCTIONS}"


def with_branches(table: ShapeTable) -> ShapeTable:
    """The table with its dead branches."""
    found = [diagnostic for call in table.calls if call.limits for diagnostic in _dead(table, call)]
    return dataclasses.replace(table, diagnostics=(*table.diagnostics, *found)) if found else table


def _dead(table: ShapeTable, call: TracedCall) -> Iterator[ShapeDiagnostic]:
    solver = z3.Solver()
    solver.set("timeout", _MILLISECONDS)
    symbols = {name: z3.Int(name) for name in call.sizes}
    declared = [f"(assert (>= {name} 1))" for name in symbols]
    declared += [f"(assert {limit})" for limit in call.limits_smt]
    solver.add(z3.parse_smt2_string(_FUNCTIONS + "\n".join(declared), decls=symbols))
    for condition in table.conditions:
        if not condition.own or condition.call != call.qualname:
            continue
        solver.push()
        try:
            solver.add(
                z3.parse_smt2_string(f"{_FUNCTIONS}(assert (not {condition.smt}))", decls=symbols)
            )
            dead: bool = solver.check() == z3.unsat
        except z3.Z3Exception:
            dead = False
        solver.pop()
        if dead:
            yield _diagnostic(condition, call)


def _diagnostic(condition: Condition, call: TracedCall) -> ShapeDiagnostic:
    return ShapeDiagnostic(
        condition.span,
        "hint",
        "dead-branch",
        f"one branch is never taken for {', '.join(call.limits)}: {condition.text} always holds",
    )

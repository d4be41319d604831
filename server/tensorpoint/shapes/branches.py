"""What the conditions of a file's branches prove, with Z3: in our own process, from SMT-LIB 2.

- A branch is dead if no sizes that keep to the declared limits lead into it: the limits together
  with the negated condition have no model.
- A tracer that wants to see the other side of a branch asks for sizes that lead there
  (`sizes_for`), as near to those it has as they can be: `T = 513`, not `T = 67112034`.

Each condition is asked once; nothing is enumerated. Z3 is one per process, and not for two threads.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import z3 as _z3  # pyright: ignore[reportMissingTypeStubs]

from ..wire.shapes import (
    Condition,
    Question,
    ShapeDiagnostic,
    ShapeTable,
    TracedCall,
    names_in,
)

z3: Any = _z3  # its types are those of its arguments' defaults

_LOCK = threading.Lock()
_MILLISECONDS = 500
#: For one question; what is left then has no answer.
_SECONDS = 4.0
#: SMT-LIB has neither.
_FUNCTIONS = """\
(define-fun min ((a Int) (b Int)) Int (ite (<= a b) a b))
(define-fun max ((a Int) (b Int)) Int (ite (>= a b) a b))
"""
PRELUDE = f"(set-logic QF_NIA)\n{_FUNCTIONS}"


class _Sizes:
    """A solver over sizes: each is at least 1."""

    def __init__(self, names: Iterable[str], limits: tuple[str, ...]) -> None:
        self.symbols = {name: z3.Int(name) for name in names}
        self.solver = z3.Solver()
        self.solver.set("timeout", _MILLISECONDS)
        self.solver.add(*[symbol >= 1 for symbol in self.symbols.values()])
        for limit in limits:
            self.solver.add(self.term(limit))

    def term(self, smt: str) -> Any:
        """A condition. Raises `z3.Z3Exception` if it is none."""
        [term] = z3.parse_smt2_string(f"{_FUNCTIONS}(assert {smt})", decls=self.symbols)
        return term

    def model(self, *more: Any) -> dict[str, int] | None:
        """Sizes that fulfil all of it; None if there are none, or none were found in time."""
        if self.solver.check(*more) != z3.sat:
            return None
        model = self.solver.model()
        return {
            name: model.eval(symbol, model_completion=True).as_long()
            for name, symbol in self.symbols.items()
        }

    def nearest(self, base: dict[str, int], about: set[str]) -> dict[str, int] | None:
        """Of the sizes that fulfil all of it some with few others than `base`, and near to it.

        `about` are those that have to change; the others do so only if there is no other way.
        """
        others = [self.symbols[name] == size for name, size in base.items() if name not in about]
        found = self.model(*others)
        if found is not None:
            self.solver.add(*others)
        else:
            about, found = set(base), self.model()
        if found is None:
            return None
        for name in base:
            if name in about:
                found = self._nearer(found, name, base[name])
                self.solver.add(self.symbols[name] == found[name])
        return found

    def _nearer(self, found: dict[str, int], name: str, base: int) -> dict[str, int]:
        """With the size of this name as near to `base` as it can be."""
        symbol, low = self.symbols[name], 0
        while low < (high := abs(found[name] - base)):
            middle = (low + high) // 2
            nearer = self.model(symbol <= base + middle, symbol >= base - middle)
            if nearer is None:
                low = middle + 1
            else:
                found = nearer
        return found


def sizes_for(question: Question) -> list[dict[str, int] | None]:
    """The answers to a tracer's question."""
    with _LOCK:
        try:
            sizes = _Sizes(question.base, question.limits)
            path = [sizes.term(condition) for condition in question.path]
        except z3.Z3Exception:  # a name that SMT-LIB does not know as one
            return [None] * len(question.wanted)
        answers: list[dict[str, int] | None] = []
        end = time.monotonic() + _SECONDS
        for others in question.wanted:
            if time.monotonic() > end:
                answers.append(None)
                continue
            sizes.solver.push()
            for index, term in enumerate(path[: max(others) + 1]):
                sizes.solver.add(z3.Not(term) if index in others else term)
            about = {name for index in others for name in names_in(question.path[index])}
            answers.append(sizes.nearest(question.base, about))
            sizes.solver.pop()
        return answers


def with_branches(table: ShapeTable) -> ShapeTable:
    """The table with its dead branches."""
    with _LOCK:
        found = [dead for call in table.calls if call.limits for dead in _dead(table, call)]
    return dataclasses.replace(table, diagnostics=(*table.diagnostics, *found)) if found else table


def _dead(table: ShapeTable, call: TracedCall) -> Iterator[ShapeDiagnostic]:
    try:
        sizes = _Sizes(call.sizes, call.limits_smt)
    except z3.Z3Exception:
        return
    for condition in table.conditions:
        if not condition.own or condition.call != call.qualname:
            continue
        try:
            dead: bool = sizes.solver.check(z3.Not(sizes.term(condition.smt))) == z3.unsat
        except z3.Z3Exception:
            dead = False
        if dead:
            yield _diagnostic(condition, call)


def _diagnostic(condition: Condition, call: TracedCall) -> ShapeDiagnostic:
    return ShapeDiagnostic(
        condition.span,
        "hint",
        "dead-branch",
        f"one branch is never taken for {', '.join(call.limits)}: {condition.text} always holds",
    )

"""Conditions that can never hold, and why: the ranges of the metrics, asked of Z3.

What is asked is whether `evaluate` could ever say True, so the arithmetic is that of floats, not of
real numbers. A norm that overflowed is inf, the entropy of a NaN is NaN, and people write
`not (loss < 10)` to catch just that. So a number is NaN, +inf, -inf or a finite real, by cases
(`_Float`), with IEEE's rules between them: `grad_norm() == grad_norm() + 1` can hold (at inf),
`absmax("*") >= 1e400` too, `absmax("*") > 1e400` cannot. The range of a metric bounds its finite
values and says on which side it may be infinite; any measured number may be NaN.

Rounding is over-approximated: a sum, product or quotient is some real within half a unit in the
last place of the exact one, on the same side of every value that floats can say exactly (operands,
literals, bounds), as rounding never crosses a float. Hence nothing that can hold is refused, and
what needs no rounding to be impossible is. What Z3 cannot decide in two seconds is let through,
and so is a condition of many operations.

Most conditions can hold at a few obvious values; trying those first spares loading Z3.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

from .evaluate import Sample, evaluate
from .metrics import METRICS
from .tree import (
    And,
    Arithmetic,
    Compare,
    Condition,
    Input,
    Negate,
    Node,
    Not,
    Number,
    Or,
    Read,
    Truth,
    children_of,
    metric_of,
    text_of,
)

_SECONDS = 2.0
_MAX_OPERATIONS = 40

# Z3's default context serves one thread at a time.
_lock = threading.Lock()


def unsatisfiable(condition: Condition) -> str | None:
    """Why the condition can never hold, in a sentence; None if it can or if that is not known."""
    return None if _holds_somewhere_obvious(condition) else ask_z3(condition)


def ask_z3(condition: Condition) -> str | None:
    """As `unsatisfiable`, without trying obvious values first."""
    if _operations(condition.tree) > _MAX_OPERATIONS:
        return None
    with _lock:
        return _Question(condition).reason()


def _holds_somewhere_obvious(condition: Condition) -> bool:
    for found, number in product((True, False), (0.0, 0.05, 0.5, 0.95, 1.0, 12.0, 1e3, 1e9, -1e3)):

        def lookup(source: Input, found: bool = found, number: float = number) -> Sample:
            metric = metric_of(source)
            if metric.kind == "bool":
                return Sample(found, 0)
            low = number if metric.low is None else max(metric.low, number)
            value = low if metric.high is None else min(metric.high, low)
            return Sample(float(int(value)) if metric.counter else value, 0)

        if evaluate(condition, lookup) is True:
            return True
    return False


def _operations(node: Node) -> int:
    own = isinstance(node, (Arithmetic, Compare))
    return own + sum(_operations(child) for child in children_of(node))


# Z3's Python interface is untyped: expressions are Any here.
@dataclass(frozen=True)
class _Float:
    """A float by cases: at most one of nan, pinf, ninf holds; where none does it is `real`.

    `unknown` holds where `evaluate` would have no value, below a quotient by zero.
    """

    unknown: Any
    nan: Any
    pinf: Any
    ninf: Any
    real: Any


@dataclass(frozen=True)
class _Verdict:
    """Whether an expression is True, and whether it is False; neither is "not known"."""

    true: Any
    false: Any


_LARGEST = (2**53 - 1) * 2**971  # the largest finite float; from half a unit above it on, inf
_OVERFLOW = _LARGEST + 2**970


class _Question:
    """One condition put to Z3. Ranges and the parts of a conjunction are separate assumptions,
    so that the answer can say which of them clash."""

    def __init__(self, condition: Condition) -> None:
        import z3  # pyright: ignore[reportMissingTypeStubs]

        self._z3: Any = z3
        self._solver: Any = self._z3.Solver()
        self._deadline = time.monotonic() + _SECONDS
        self._inputs: dict[Input, _Float] = {}
        self._truths: dict[Input, Any] = {}
        self._ranges: dict[str, Any] = {}
        self._numbers: dict[Node, _Float] = {}
        self._exact: list[Any] = [self._z3.RealVal(0)]
        self._condition = condition

    def reason(self) -> str | None:
        tree = self._condition.tree
        parts = tree.items if isinstance(tree, And) else (tree,)
        for source in self._condition.inputs:
            self._declare(source)
        for literal in _literals(tree):
            real = self._number(literal).real
            self._exact += [real, -real]
        parts_assumed = {
            part: self._assume(self._verdict(part).true) for part in dict.fromkeys(parts)
        }
        assumed: list[Any] = [*self._ranges.values(), *parts_assumed.values()]
        if not self._clash(assumed):
            return None
        # Ranges go first, so that none is blamed that the parts do not need.
        for one in list(assumed):
            rest = [other for other in assumed if other is not one]
            if self._clash(rest):
                assumed = rest
        blamed = [part for part, term in parts_assumed.items() if any(term is a for a in assumed)]
        ranges = [name for name, term in self._ranges.items() if any(term is a for a in assumed)]
        return _sentence(blamed, ranges)

    def _clash(self, assumed: list[Any]) -> bool:
        left = int((self._deadline - time.monotonic()) * 1000)
        if left <= 0:
            return False
        self._solver.set("timeout", left)
        return self._solver.check(*assumed) == self._z3.unsat

    def _assume(self, statement: Any) -> Any:
        name = self._z3.FreshBool()
        self._solver.add(self._z3.Implies(name, statement))
        return name

    def _declare(self, source: Input) -> None:
        z3, metric = self._z3, metric_of(source)
        if metric.kind == "bool":
            self._truths[source] = z3.FreshBool()
            return
        number = _Float(
            z3.BoolVal(False), z3.FreshBool(), z3.FreshBool(), z3.FreshBool(), z3.FreshReal()
        )
        self._inputs[source] = number
        self._exact.append(number.real)
        self._solver.add(z3.AtMost(number.nan, number.pinf, number.ninf, 1))
        self._solver.add(number.real <= _LARGEST, number.real >= -_LARGEST)
        limits: list[Any] = []
        if metric.low is not None:
            limits += [z3.Not(number.ninf), number.real >= metric.low]
        if metric.high is not None:
            limits += [z3.Not(number.pinf), number.real <= metric.high]
        if metric.counter:
            whole = number.real == z3.ToReal(z3.FreshInt())
            limits += [whole, z3.Not(number.nan), z3.Not(number.pinf)]
        if limits:
            assumed = self._ranges.setdefault(metric.name, z3.FreshBool())
            self._solver.add(z3.Implies(assumed, z3.And(*limits)))

    def _verdict(self, node: Node) -> _Verdict:
        z3 = self._z3
        if isinstance(node, Truth):
            return _Verdict(z3.BoolVal(node.value), z3.BoolVal(not node.value))
        if isinstance(node, Read):
            found = self._truths[node.source]
            return _Verdict(found, z3.Not(found))
        if isinstance(node, Not):
            inner = self._verdict(node.item)
            return _Verdict(inner.false, inner.true)
        if isinstance(node, Compare):
            numbers = [self._number(operand) for operand in node.operands]
            links = zip(node.ops, pairwise(numbers), strict=True)
            verdicts = [self._compared(op, left, right) for op, (left, right) in links]
        else:
            assert isinstance(node, (And, Or))
            verdicts = [self._verdict(item) for item in node.items]
        trues, falses = [v.true for v in verdicts], [v.false for v in verdicts]
        if isinstance(node, Or):
            return _Verdict(z3.Or(*trues), z3.And(*falses))
        return _Verdict(z3.And(*trues), z3.Or(*falses))

    def _compared(self, op: str, a: _Float, b: _Float) -> _Verdict:
        z3 = self._z3
        nan = z3.Or(a.nan, b.nan)
        finite = z3.And(self._finite(a), self._finite(b))
        equal = z3.And(
            z3.Not(nan),
            z3.Or(
                z3.And(a.pinf, b.pinf),
                z3.And(a.ninf, b.ninf),
                z3.And(finite, a.real == b.real),
            ),
        )

        def less(x: _Float, y: _Float) -> Any:
            by_infinity = z3.Or(z3.And(x.ninf, z3.Not(y.ninf)), z3.And(y.pinf, z3.Not(x.pinf)))
            return z3.And(z3.Not(nan), z3.Or(by_infinity, z3.And(finite, x.real < y.real)))

        holds: dict[str, Callable[[], Any]] = {
            "==": lambda: equal,
            "!=": lambda: z3.Not(equal),
            "<": lambda: less(a, b),
            "<=": lambda: z3.Or(less(a, b), equal),
            ">": lambda: less(b, a),
            ">=": lambda: z3.Or(less(b, a), equal),
        }
        known, held = z3.Not(z3.Or(a.unknown, b.unknown)), holds[op]()
        return _Verdict(z3.And(known, held), z3.And(known, z3.Not(held)))

    def _finite(self, number: _Float) -> Any:
        return self._z3.Not(self._z3.Or(number.nan, number.pinf, number.ninf))

    def _number(self, node: Node) -> _Float:
        """The number that an expression is; the same one wherever it is written the same way."""
        if node not in self._numbers:
            self._numbers[node] = self._computed(node)
        return self._numbers[node]

    def _computed(self, node: Node) -> _Float:
        z3 = self._z3
        if isinstance(node, Read):
            return self._inputs[node.source]
        if isinstance(node, Number):
            no, exact = z3.BoolVal(False), _exactly(node.value)
            is_inf = z3.BoolVal(exact is None)
            return _Float(no, no, is_inf, no, z3.RealVal(exact or "0"))
        if isinstance(node, Negate):
            item = self._number(node.item)
            return _Float(item.unknown, item.nan, item.ninf, item.pinf, -item.real)
        assert isinstance(node, Arithmetic)
        left, right = self._number(node.left), self._number(node.right)
        if node.op == "-":
            right = _Float(right.unknown, right.nan, right.ninf, right.pinf, -right.real)
        if node.op in "+-":
            return self._sum(left, right)
        return self._product(left, right) if node.op == "*" else self._quotient(left, right)

    def _sum(self, a: _Float, b: _Float) -> _Float:
        z3 = self._z3
        clash = z3.Or(z3.And(a.pinf, b.ninf), z3.And(a.ninf, b.pinf))
        return self._rounded(
            a, b, z3.BoolVal(False), clash, z3.Or(a.pinf, b.pinf), z3.Or(a.ninf, b.ninf),
            a.real + b.real,
        )  # fmt: skip

    def _product(self, a: _Float, b: _Float) -> _Float:
        z3 = self._z3
        infinite = z3.Or(a.pinf, a.ninf, b.pinf, b.ninf)
        negative = z3.Xor(self._negative(a), self._negative(b))
        clash = z3.And(infinite, z3.Or(self._zero(a), self._zero(b)))
        return self._rounded(
            a, b, z3.BoolVal(False), clash, z3.And(infinite, z3.Not(negative)),
            z3.And(infinite, negative), a.real * b.real,
        )  # fmt: skip

    def _quotient(self, a: _Float, b: _Float) -> _Float:
        z3 = self._z3
        over, under = z3.Or(a.pinf, a.ninf), z3.Or(b.pinf, b.ninf)
        negative = z3.Xor(self._negative(a), self._negative(b))
        ratio = z3.FreshReal()
        self._solver.add(z3.Implies(b.real != 0, ratio * b.real == a.real))
        exact = z3.If(under, z3.RealVal(0), ratio)
        return self._rounded(
            a, b, self._zero(b), z3.And(over, under), z3.And(over, z3.Not(negative)),
            z3.And(over, negative), exact,
        )  # fmt: skip

    def _negative(self, number: _Float) -> Any:
        return self._z3.Or(number.ninf, self._z3.And(self._finite(number), number.real < 0))

    def _zero(self, number: _Float) -> Any:
        return self._z3.And(self._finite(number), number.real == 0)

    def _rounded(
        self, a: _Float, b: _Float, unknown: Any, clash: Any, pinf: Any, ninf: Any, exact: Any
    ) -> _Float:
        """The float nearest to `exact`, or where an operand is not finite what the cases say."""
        z3 = self._z3
        real, size = z3.FreshReal(), z3.If(exact < 0, -exact, exact)
        slack = size / z3.RealVal(2**53) + z3.RealVal(1) / z3.RealVal(2**1075)
        self._solver.add(real - exact <= slack, exact - real <= slack)
        for value in self._exact:
            self._solver.add(z3.Implies(exact <= value, real <= value))
            self._solver.add(z3.Implies(exact >= value, real >= value))
        self._exact.append(real)
        nan = z3.Or(a.nan, b.nan, clash)
        special = z3.Or(nan, pinf, ninf)
        return _Float(
            unknown=z3.Or(a.unknown, b.unknown, unknown),
            nan=nan,
            pinf=z3.Or(z3.And(z3.Not(nan), pinf), z3.And(z3.Not(special), exact >= _OVERFLOW)),
            ninf=z3.Or(z3.And(z3.Not(nan), ninf), z3.And(z3.Not(special), exact <= -_OVERFLOW)),
            real=real,
        )


def _exactly(value: float | int) -> str | None:
    """The float nearest to a literal as a fraction that Z3 reads; None for inf."""
    try:
        numerator, denominator = float(value).as_integer_ratio()
    except OverflowError:
        return None
    return f"{numerator}/{denominator}"


def _literals(node: Node) -> Iterable[Number]:
    if isinstance(node, Number):
        yield node
    for child in children_of(node):
        yield from _literals(child)


def _sentence(blamed: list[Node], ranges: list[str]) -> str:
    culprit = text_of(blamed[0] if len(blamed) == 1 else And(tuple(blamed)))
    if not ranges:
        return f"{culprit} can never hold, whatever the values are"
    facts = " and ".join(f"{name} {METRICS[name].range_in_words}" for name in ranges)
    return f"{facts}, so {culprit} can never hold"

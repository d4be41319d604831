"""Conditions on sizes as a person writes them in Python: `T % 2 == 0`, `T//4 < 10`."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

_QUOTIENT = PRECEDENCE["Mul"]


class _Python(StrPrinter):
    """Torch's functions of integers, and relations, as operators."""

    printmethod = "_as_python"  # torch's functions have a `_sympystr` of their own

    def _print_Relational(self, expr: Any) -> str:  # noqa: N802  sympy's names
        return f"{self._print(expr.lhs)} {expr.rel_op} {self._print(expr.rhs)}"

    def _operator(self, expr: Any, operator: str) -> str:
        left, right = expr.args
        return operator.join(
            (self.parenthesize(left, _QUOTIENT - 1), self.parenthesize(right, _QUOTIENT))
        )

    def _print_Mod(self, expr: Any) -> str:  # noqa: N802
        return self._operator(expr, " % ")

    def _print_FloorDiv(self, expr: Any) -> str:  # noqa: N802
        return self._operator(expr, "//")

    _print_PythonMod = _print_Mod  # noqa: N815
    _print_CleanDiv = _print_FloorDiv  # noqa: N815

    def _print_Max(self, expr: Any) -> str:  # noqa: N802
        return f"max({', '.join(self._print(each) for each in expr.args)})"

    def _print_Min(self, expr: Any) -> str:  # noqa: N802
        return f"min({', '.join(self._print(each) for each in expr.args)})"

    def _print_And(self, expr: Any) -> str:  # noqa: N802
        return " and ".join(self._print(each) for each in expr.args)

    def _print_Or(self, expr: Any) -> str:  # noqa: N802
        return " or ".join(self._print(each) for each in expr.args)


def readable(expression: Any, names: dict[Any, str]) -> str:
    """The expression, with symbols by their names."""
    named = {symbol: sympy.Symbol(name, integer=True) for symbol, name in names.items()}
    return _Python().doprint(expression.xreplace(named))


def opposite(expression: Any, names: dict[Any, str]) -> str:
    """The same of what holds where it does not."""
    return readable(sympy.to_nnf(sympy.Not(expression), simplify=False), names)

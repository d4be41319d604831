"""Conditions on sizes as SMT-LIB 2, from sympy with torch's functions; all are integers."""

from __future__ import annotations

from typing import Any

_OPERATORS = {
    "Add": "+", "Mul": "*", "Max": "max", "Min": "min", "Mod": "mod", "PythonMod": "mod",
    "FloorDiv": "div", "CleanDiv": "div", "And": "and", "Or": "or", "Not": "not",
    "Equality": "=", "Unequality": "distinct", "StrictLessThan": "<", "LessThan": "<=",
    "StrictGreaterThan": ">", "GreaterThan": ">=",
}  # fmt: skip


class Unprintable(Exception):
    """A function that sizes of programs hardly have: logarithms, roots, floats."""


def smt(expression: Any, names: dict[Any, str]) -> str:
    """The expression, with symbols by their names."""
    if expression in names:
        return names[expression]
    if expression in (True, False) and not hasattr(expression, "is_Integer"):
        return str(bool(expression)).lower()
    if getattr(expression, "is_Integer", False):
        number = int(expression)
        return str(number) if number >= 0 else f"(- {-number})"
    kind = type(expression).__name__
    if kind == "BooleanTrue" or kind == "BooleanFalse":
        return kind.removeprefix("Boolean").lower()
    arguments = [smt(each, names) for each in getattr(expression, "args", ())]
    if kind in ("Pow", "PowByNatural"):
        power = getattr(expression.args[1], "is_Integer", False) and int(expression.args[1])
        if power and 0 < power < 8:
            return f"(* {' '.join([arguments[0]] * power)})" if power > 1 else arguments[0]
    operator = _OPERATORS.get(kind)
    if operator is None or not arguments:
        raise Unprintable(str(expression))
    result = f"({operator} {' '.join(arguments)})"
    if operator in ("min", "max") and len(arguments) > 2:
        result = arguments[0]
        for each in arguments[1:]:
            result = f"({operator} {result} {each})"
    return result

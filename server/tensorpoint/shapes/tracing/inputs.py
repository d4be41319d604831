"""Inputs with named sizes: what is written in a specification, and tensors made from it.

x: f32[B, 3, H, W]              a tensor; sizes are numbers, names, or both: `2*T`, `H//2`
mask: bool[B, T] = None         optional spaces and defaults don't matter
state: (f32[1, B, 64], f32[1, B, 64])     tuples, lists in [], dicts in {key: ...}
flag: True                      any other Python literal stands for itself
T <= 512                        a limit of a symbol
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from .snapshots import DTYPES

#: What each symbol stands for in one run.
Sizes = dict[str, int]


class BadSpec(ValueError):
    """A specification that can't be read; the text says where and why."""


@dataclass(frozen=True)
class TensorSpec:
    """A tensor: its dtype, and a Python expression for each size."""

    dtype: str
    shape: tuple[str, ...]

    def make(self, sizes: Sizes) -> torch.Tensor:
        shape = [evaluate(size, sizes) for size in self.shape]
        return torch.zeros(shape, dtype=DTYPES[self.dtype])

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(self.shape)}]"


@dataclass(frozen=True)
class Input:
    """An argument: `value` is a `TensorSpec`, a literal, or a container of these."""

    name: str
    value: Any
    #: See `wire.shapes.TracedInput.origin`.
    origin: str
    keyword: bool = False
    #: Whether nothing speaks for it: it is one of some that are often right.
    blind: bool = False

    def symbols(self) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for spec in tensors(self.value):
            for size in spec.shape:
                found.update(dict.fromkeys(re.findall(r"[A-Za-z_]\w*", size)))
        return tuple(found)


@dataclass
class Spec:
    """What a comment or an option says: inputs by name, limits of symbols."""

    inputs: dict[str, Any] = field(default_factory=dict[str, Any])
    #: `T <= 512`, `H % 32 == 0`: symbol, operators and numbers, with one space between them.
    limits: list[str] = field(default_factory=list[str])


def evaluate(size: str, sizes: Sizes) -> int:
    """The value of one size. What stands for the symbols may be symbols again, of FX."""
    value: Any = int(size) if size.isdecimal() else eval(size, {"__builtins__": {}}, dict(sizes))
    return int(value) if isinstance(value, float) else value


def tensors(value: Any) -> list[TensorSpec]:
    """All tensors of an input's value."""
    if isinstance(value, TensorSpec):
        return [value]
    if isinstance(value, (tuple, list)):
        return [spec for item in value for spec in tensors(item)]
    if isinstance(value, dict):
        return [spec for item in value.values() for spec in tensors(item)]
    return []


def build(value: Any, sizes: Sizes) -> Any:
    """The value with tensors in the places of their specifications."""
    if isinstance(value, TensorSpec):
        return value.make(sizes)
    return with_items(value, lambda item: build(item, sizes))


def with_items(value: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same kind with other items; what is none stays."""
    if isinstance(value, (tuple, list)):
        items = [change(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: change(item) for key, item in value.items()}
    return value


def is_plain(value: Any) -> bool:
    """Whether a specification can have it."""
    if isinstance(value, (tuple, list)):
        return all(map(is_plain, value))
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    return isinstance(value, (TensorSpec, bool, int, float, str, type(None)))


def spec_text(value: Any) -> str:
    """The value as it is specified; `…` for what can't be written."""
    if isinstance(value, TensorSpec):
        return str(value)
    if isinstance(value, (tuple, list)):
        inside = ", ".join(map(spec_text, value))
        if isinstance(value, list):
            return f"[{inside}]"
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {spec_text(item)}' for key, item in value.items())}}}"
    return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else "…"


def make(inputs: tuple[Input, ...], sizes: Sizes) -> tuple[list[Any], dict[str, Any]]:
    """Positional and keyword arguments."""
    positional = [build(each.value, sizes) for each in inputs if not each.keyword]
    return positional, {each.name: build(each.value, sizes) for each in inputs if each.keyword}


_LIMIT = re.compile(r"\s*([A-Za-z_]\w*)(?:\s*%\s*(\d+))?\s*(<=|>=|<|>|==)\s*(\d+)\s*")


def read_spec(text: str) -> Spec:
    """One specification: inputs and limits, separated by commas outside of brackets or by `;`."""
    spec = Spec()
    for part in _split(text):
        limit = _LIMIT.fullmatch(part)
        if limit:
            spec.limits.append(_limit(limit))
            continue
        name, colon, rest = part.partition(":")
        if not colon or not name.strip().isidentifier():
            raise BadSpec(
                f"{part.strip()!r} is not NAME: DTYPE[SIZES], nor a limit such as T <= 512"
            )
        spec.inputs[name.strip()] = _value(rest.strip())
    return spec


def _limit(match: re.Match[str]) -> str:
    """With one space between its parts, which is how it is read elsewhere."""
    symbol, divisor, operator, number = match.groups()
    if divisor is None:
        return f"{symbol} {operator} {int(number)}"
    if int(divisor) == 0:
        raise BadSpec(f"{match[0].strip()!r} divides by 0")
    return f"{symbol} % {int(divisor)} {operator} {int(number)}"


def limits_on(limits: Iterable[str], symbols: Container[str]) -> list[str]:
    """The limits that are about one of the symbols: a specification can be that of a whole file."""
    return [limit for limit in limits if limit.split()[0] in symbols]


def _split(text: str) -> list[str]:
    parts, depth, current = [], 0, ""
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        if sign in ",;" and depth == 0:
            parts.append(current)
            current = ""
        else:
            current += sign
    return [part for part in [*parts, current] if part.strip()]


def _value(text: str) -> Any:
    try:
        return _convert(ast.parse(re.sub(r"(\w)\[\s*\]", r"\1", text), mode="eval").body)
    except SyntaxError as error:
        raise BadSpec(f"{text!r}: {error.msg}") from None


def _convert(node: ast.expr) -> Any:
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        dtype = node.value.id
        if dtype not in DTYPES:
            raise BadSpec(
                f"{dtype!r} is no dtype; known are f32, f16, bf16, f64, i64, i32, u8, bool"
            )
        inside = node.slice
        sizes = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        for size in sizes:
            for part in ast.walk(size):
                if not isinstance(
                    part, (ast.Name, ast.Constant, ast.BinOp, ast.operator, ast.Load)
                ):
                    raise BadSpec(f"{ast.unparse(size)!r} is no size: a number, a name, or both")
        return TensorSpec(dtype, tuple(ast.unparse(size) for size in sizes))
    if isinstance(node, ast.Name) and node.id in DTYPES:
        return TensorSpec(node.id, ())
    if isinstance(node, ast.Tuple):
        return tuple(_convert(item) for item in node.elts)
    if isinstance(node, ast.List):
        return [_convert(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _convert(item) for key, item in zip(node.keys, node.values)}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise BadSpec(f"{ast.unparse(node)!r} is neither a tensor nor a literal") from None


def _key(node: ast.expr | None) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    if not isinstance(node, (ast.Constant, ast.UnaryOp)):
        raise BadSpec("a key of a dict is a name, a string or a number")
    return ast.literal_eval(node)

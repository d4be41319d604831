"""What of a file's autocasts hangs on the machine, and which machines there may be.

A trace runs as on a machine without a GPU. What a file makes of such a question,
`dtype = torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16`, is another dtype
where there is one. So names are followed to such questions, by their text and whatever their scope;
the rules of GPUs with and without bfloat16 are tried where they lead to one.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch

_ASKS = re.compile(
    r"is_available\(|is_bf16_supported|is_\w+_available\(|get_device_(capability|name|properties)"
    r"|device_count\(|current_accelerator"
)
_ARGUMENTS = ("device_type", "dtype", "enabled")


@dataclass(frozen=True)
class Machine:
    """`dtype` is what programs choose on a GPU; None where there is none."""

    dtype: torch.dtype | None


HERE = Machine(None)
_NEWER, _OLDER = Machine(torch.bfloat16), Machine(torch.float16)


def others(hanging: Collection[str]) -> list[Machine]:
    """The machines on which autocasts may be others, by which of their arguments hang on it."""
    if not hanging:
        return []
    return [_NEWER, _OLDER] if "dtype" in hanging else [_NEWER]


def hanging(path: str, line: int) -> Collection[str]:
    """Which arguments of the autocast that is made in this line of a file hang on the machine."""
    return _by_line("".join(linecache.getlines(path))).get(line, ())


def arguments_hanging(path: str, arguments: Iterable[ast.expr]) -> bool:
    """Whether one of these expressions of a file hangs on the machine."""
    text = "".join(linecache.getlines(path))
    if not _ASKS.search(text):
        return False
    names = _names_of(text)
    return any(_hangs(each, names) for each in arguments)


@lru_cache(8)
def _names_of(text: str) -> set[str]:
    return _hanging_names(ast.parse(text))


@lru_cache(8)
def _by_line(text: str) -> dict[int, frozenset[str]]:
    if "autocast" not in text or not _ASKS.search(text):
        return {}
    tree, names = ast.parse(text), _names_of(text)
    found: dict[int, frozenset[str]] = {}
    for node in ast.walk(tree):
        if called_autocast(node) is None:
            continue
        assert isinstance(node, ast.Call)
        given = arguments_of(node).items()
        those = frozenset(name for name, value in given if _hangs(value, names))
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            found[line] = those
    return found


def called_autocast(node: ast.AST) -> ast.Call | None:
    """A call of something of that name."""
    if isinstance(node, ast.Call) and last_name(node.func) == "autocast":
        return node
    return None


def arguments_of(call: ast.Call) -> dict[str, ast.expr]:
    """What is passed to an autocast, by name. Those of a device, `torch.cuda.amp`, have no type."""
    first = call.args[0] if call.args else None
    is_typed = isinstance(first, ast.Constant) and isinstance(first.value, str)
    is_typed |= isinstance(first, (ast.Attribute, ast.IfExp)) or "type" in ast.unparse(call)
    given = dict(zip(_ARGUMENTS if is_typed else ("enabled", "dtype"), call.args))
    return {**given, **{each.arg: each.value for each in call.keywords if each.arg}}


def assigned_autocasts(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """The calls of an autocast in what is assigned to a name, or to an attribute."""
    for each in _values_of(tree, name):
        yield from filter(None, map(called_autocast, ast.walk(each)))


def assigned_calls(tree: ast.AST, name: str) -> Iterator[ast.Call]:
    """The calls that are assigned to a name, or to an attribute."""
    for each in _values_of(tree, name):
        if isinstance(each, ast.Call):
            yield each


def _values_of(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    return (value for assigned, value in _assigned(tree) if assigned == name)


def _hanging_names(tree: ast.AST) -> set[str]:
    """Names, and attributes, that are made of the answer to a question about the machine."""
    pairs = list(_assigned(tree))
    names: set[str] = set()
    while True:
        more = {name for name, value in pairs if name not in names and _hangs(value, names)}
        if not more:
            return names
        names |= more


def _assigned(tree: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = node.targets
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            targets = [node.target]
        else:
            continue
        for target in targets:
            name = last_name(target)
            if name and node.value is not None:
                yield name, node.value


def _hangs(value: ast.expr, names: Collection[str]) -> bool:
    if any(last_name(node) in names for node in ast.walk(value)):
        return True
    return bool(_ASKS.search(ast.unparse(value)))


def last_name(node: ast.AST) -> str:
    """Of a name or an attribute."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

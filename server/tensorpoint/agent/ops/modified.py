"""Backward fails since a tensor was changed in place: which one, and where that may have been.

Nothing is recorded beforehand. After the exception the graph is still there: the node that failed
is the one whose saved tensor can't be read any more, and an operation in place that autograd knows
and that led to the loss is in the graph behind the tensor that it changed. Its line is then looked
for in the source of the program's functions and modules, by the kind of operation. What autograd
doesn't know (under `no_grad`, through `.data`) leaves no trace but the version; a parameter is told
by that. So what is said of the operation and its line is what may have been, unless it is a
parameter.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from ..frames import short_file
from .syntax import body_of, in_order, parse

_MESSAGE = re.compile(
    r"modified by an inplace operation: \[[^\[\]]*\[(?P<shape>[^\]]*)\]\]"
    r"(?:, which is output \d+ of (?P<maker>[\w:]+),)?"
    r" is at version (?P<version>\d+); expected version (?P<expected>\d+)"
)
_ENGINE = "_engine_run_backward"
_MOST_NODES = 20_000
_MOST_MODULES = 2_000
_MOST_LINES = 3
_UNSEEN = "by what did not lead to this loss, or in no_grad or through .data."
_AUGMENTED: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
}


@dataclass(frozen=True)
class _Statement:
    """An operation in place in the source."""

    kind: str
    place: str
    text: str


def explain_modified(
    message: str,
    frames: Sequence[FrameType],
    roots: Iterable[Any],
    name_of: Callable[[Any], str],
) -> list[str]:
    """Sentences on torch's "modified by an inplace operation"; [] for any other message.

    `frames` are those of the traceback, `roots` modules that the program has called, `name_of`
    names a parameter.
    """
    told = _MESSAGE.search(message)
    if told is None:
        return []
    nodes = list(_graph(frames))
    failed, what = _failed(nodes)
    sentences: list[str] = []
    times = int(told["version"]) - int(told["expected"])
    often = "once" if times == 1 else f"{times} times"
    if failed is not None:
        operation = _operation(failed.name())
        sentences.append(
            f"The backward of {operation} needs {what} as it was in the forward; it was changed in "
            f"place {often} since."
        )
    shape = [int(size) for size in told["shape"].split(",") if size.strip()]
    is_leaf = told["maker"] is None or _operation(told["maker"]) in _VIEWS
    parameter = _parameter(failed, shape, int(told["version"])) if is_leaf else None
    if parameter is not None:
        sentences.append(
            f"It is {name_of(parameter)}, a parameter: an optimizer step wrote it between the "
            "forward and this backward, or other code did."
        )
        return sentences
    kinds = _kinds_behind(nodes, failed, told["maker"])
    lines = _lines(kinds, frames, roots)
    users = " or ".join(sorted(kinds))
    if lines:
        listed = "; ".join(f"{item.place}: {item.text}" for item in lines[:_MOST_LINES])
        more = f" and {len(lines) - _MOST_LINES} more" if len(lines) > _MOST_LINES else ""
        one = "The only line found" if len(lines) == 1 else "Lines found"
        sentences.append(
            f"What uses it in the graph is {users}. {one} that may have changed it so: "
            f"{listed}{more}."
        )
    elif kinds:
        sentences.append(
            f"What uses it in the graph is {users}: that was in place, or it was changed {_UNSEEN}"
        )
    else:  # a tensor without a gradient isn't in the graph
        why = f": {_UNSEEN}" if failed is not None and told["maker"] is not None else "."
        sentences.append(f"Where is not recorded{why}")
    return sentences


# The graph ----------------------------------------------------------------------------------------


def _graph(frames: Sequence[FrameType]) -> Iterator[Any]:
    """The nodes of the backward pass that failed."""
    engine = next((f for f in reversed(frames) if f.f_code.co_name == _ENGINE), None)
    outputs: Any = () if engine is None else engine.f_locals.get("t_outputs") or ()
    waiting = [getattr(output, "grad_fn", None) for output in outputs]
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [after for after, _ in node.next_functions]


def _failed(nodes: Iterable[Any]) -> tuple[Any, str]:
    """The node whose saved tensor was changed, and what that is to it."""
    for node in nodes:
        for name in dir(node):
            if not name.startswith("_saved_"):
                continue
            try:
                getattr(node, name)
            except RuntimeError as error:
                if "modified by an inplace operation" in str(error):
                    return node, _WORDS.get(name, f"its argument {name.removeprefix('_saved_')}")
            except Exception:  # a custom Function's own
                continue
    return None, ""


_WORDS = {"_saved_result": "its result", "_saved_self": "its input", "_saved_input": "its input"}
#: Nodes whose result is a view of their input.
_VIEWS = frozenset(
    {
        *("alias", "asStrided", "expand", "permute", "reshapeAlias", "select", "slice", "squeeze"),
        *("t", "transpose", "unsqueeze", "view"),
    }
)


def _operation(name: str) -> str:
    """Of a node: "ExpBackward0" is of exp."""
    short = re.sub(r"(Backward)?\d*$", "", name.rpartition("::")[2])
    return short[:1].lower() + short[1:]


def _parameter(failed: Any, shape: list[int], version: int) -> Any:
    """The leaf that the changed tensor is, or is a view of; None if it isn't one, or is unclear."""
    found = [
        leaf
        for leaf in (() if failed is None or not version else _leaves_behind(failed))
        if leaf._version == version and sorted(leaf.shape) == sorted(shape)
    ]
    return found[0] if len(found) == 1 else None


def _leaves_behind(node: Any) -> Iterator[Any]:
    """The leaves that a node is given itself, or views of."""
    for after, _ in node.next_functions:
        while after is not None and _operation(after.name()) in _VIEWS:
            after = after.next_functions[0][0]
        leaf = getattr(after, "variable", None)
        if hasattr(leaf, "_version"):
            yield leaf


def _kinds_behind(nodes: Sequence[Any], failed: Any, maker: str | None) -> set[str]:
    """What kinds of operations use the changed tensor, besides the one that needs it.

    `maker` made it: that is the one that needs it, or one before. The number of its output in
    torch's message is not to be relied on.
    """
    if failed is None:
        return set()
    is_result = _is_named(failed, maker)
    given = {edge for edge in failed.next_functions if _is_named(edge[0], maker)}
    if maker is not None and not is_result and not given:
        return {_operation(maker)}  # it had no gradient before, which gave it that operation's
    return {
        _operation(node.name())
        for node in nodes
        if node is not failed
        and any(edge in given or (is_result and edge[0] is failed) for edge in node.next_functions)
    }


def _is_named(node: Any, maker: str | None) -> bool:
    if node is None or maker is None:
        return False
    return node.name().removesuffix("Backward0") == maker.removesuffix("Backward0")


# The source ---------------------------------------------------------------------------------------


def _lines(kinds: set[str], frames: Sequence[FrameType], roots: Iterable[Any]) -> list[_Statement]:
    wanted = {kind.lower() for kind in kinds}
    if not wanted:
        return []
    found: dict[str, _Statement] = {}
    for code in _functions(frames, roots):
        for statement in _in_place(code):
            if statement.kind in wanted:
                found.setdefault(statement.place, statement)
    return list(found.values())


def _functions(frames: Sequence[FrameType], roots: Iterable[Any]) -> Iterator[CodeType]:
    """The program's functions that may have run: of the stack, and the forwards of its modules."""
    torch = sys.modules["torch"]
    folder = os.path.dirname(torch.__file__ or "") + os.sep
    modules: dict[int, Any] = {id(root): root for root in roots}
    codes: dict[CodeType, None] = {}
    for frame in frames:
        if frame.f_code.co_filename.startswith(folder):
            continue
        codes[frame.f_code] = None
        held = [*frame.f_locals.values(), *frame.f_globals.values()]
        modules |= {id(item): item for item in held if isinstance(item, torch.nn.Module)}
    count = 0
    for root in modules.values():
        for module in root.modules():
            count += 1
            if count > _MOST_MODULES:
                break
            code = getattr(inspect.getattr_static(module, "forward", None), "__code__", None)
            if code is not None and not code.co_filename.startswith(folder):
                codes[code] = None
    yield from codes


def _in_place(code: CodeType) -> Iterator[_Statement]:
    """The operations in place in a function's source."""
    lines = linecache.getlines(code.co_filename)
    try:
        tree = parse("".join(lines))
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return
    body = body_of(tree, code)
    for path in in_order(body) if body is not None else ():
        kind = _kind_in_place(path[-1])
        if kind is not None:
            line: int = getattr(path[-1], "lineno", 0)
            place = f"{short_file(code.co_filename)}:{line}"
            yield _Statement(kind, place, lines[line - 1].partition("#")[0].strip())


def _kind_in_place(node: ast.AST) -> str | None:
    if isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Subscript):
            return "copyslices"
        return _AUGMENTED.get(type(node.op))
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Subscript) for t in node.targets):
        return "copyslices"
    if isinstance(node, ast.Call):
        name = (
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        )
        if name.endswith("_") and not name.endswith("__"):
            return name.removesuffix("_").replace("_", "")
        if any(
            keyword.arg == "inplace" and getattr(keyword.value, "value", None) is True
            for keyword in node.keywords
        ):
            return name.lower()
    return None

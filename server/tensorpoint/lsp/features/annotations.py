"""Shapes as jaxtyping annotations: `x: Float[Tensor, "B 3 H W"]`.

The text is changed only where it says nothing yet, or just `Tensor`.
"""

from __future__ import annotations

import ast
import re
import tokenize

from lsprotocol import types

from ...wire.shapes import ShapeHint, TracedCall
from ..view import View

Function = ast.FunctionDef | ast.AsyncFunctionDef

#: What jaxtyping calls kinds of dtypes; floats of any width are `Float`, since a model is cast.
_KINDS = {"f": "Float", "bf": "Float", "i": "Int", "u": "UInt", "c": "Complex", "bool": "Bool"}
#: A dim that it understands as it is: a size, a name.
_PLAIN = re.compile(r"\d+|[A-Za-z_]\w*")
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")


def edits(view: View, call: TracedCall) -> list[types.TextEdit]:
    """What annotates the traced function; nothing if there is nothing to add."""
    # `forward` may be in another cell of the notebook than its class.
    if call.forward is None or not view.holds(call.forward) or view.tree is None:
        return []
    function = function_at(view, call.forward.line)
    if function is None:
        return []
    tensor, imports = _tensor(view.tree)
    found: list[types.TextEdit] = []
    kinds: set[str] = set()

    def annotate(dtype: str, dims: tuple[str, ...]) -> str | None:
        kind = _KINDS.get(re.sub(r"\d.*", "", dtype))
        if kind is None:
            return None
        kinds.add(kind)
        return f'{kind}[{tensor}, "{" ".join(map(_dim, dims))}"]'

    shapes = {given.name: (given.dtype, given.shape) for given in call.inputs}
    arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    for argument in arguments:
        if argument.arg not in shapes or not _open(argument.annotation):
            continue
        text = annotate(*shapes[argument.arg])
        if text is None:
            continue
        if argument.annotation is None:
            col = _column(view, argument.lineno, argument.col_offset) + len(argument.arg)
            found.append(insertion(view, argument.lineno, col, f": {text}"))
        else:
            found.append(_replace(view, argument.annotation, text))
    output = _output(view, function)
    if output is not None and _open(function.returns):
        text = annotate(output.dtype, output.shape)
        if text is not None and function.returns is not None:
            found.append(_replace(view, function.returns, text))
        elif text is not None and (place := _before_colon(view, function)) is not None:
            found.append(insertion(view, *place, f" -> {text}"))
    if found:
        found += _imports(view, function, kinds, imports)
    return found


def function_at(view: View, line: int) -> Function | None:
    """The function whose `def` is in a line of the source."""
    for node in ast.walk(view.tree) if view.tree is not None else ():
        if isinstance(node, Function) and node.lineno == line:
            return node
    return None


def insertion(view: View, line: int, col: int, text: str) -> types.TextEdit:
    """Text that is put into a place of the source."""
    place = view.position(line, col)
    return types.TextEdit(types.Range(place, place), text)


def _dim(dim: str) -> str:
    """A dim in jaxtyping's words; `_`, for any size, where it has none."""
    if _PLAIN.fullmatch(dim):
        return dim
    # It evaluates expressions, but knows neither ceil nor floor, nor alternatives, nor spaces.
    rounded = re.fullmatch(r"(ceil|floor)\((\w+) ?/ ?(\d+)\)", dim)
    if rounded:
        sign = "-" if rounded[1] == "ceil" else ""
        return f"{sign}({sign}{rounded[2]}//{rounded[3]})"
    if "|" in dim or "(" in dim or "/" in dim.replace("//", ""):
        return "_"
    return dim.replace(" ", "")


def _open(annotation: ast.expr | None) -> bool:
    """Whether there is no annotation, or one that says no more than that it is a tensor."""
    return annotation is None or ast.unparse(annotation) in ("Tensor", "torch.Tensor")


def _output(view: View, function: Function) -> ShapeHint | None:
    """What the function returns, if all its returns agree on one tensor."""
    last = function.end_lineno or function.lineno
    found = [
        hint
        for hint in view.hints
        if hint.kind == "return" and function.lineno <= hint.span.line <= last
    ]
    if not found or not found[0].dtype or any(hint.text != found[0].text for hint in found):
        return None
    return found[0]


def _tensor(tree: ast.Module) -> tuple[str, list[str]]:
    """How this file names `Tensor`, and what has to be imported for that."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "torch":
            if any(name.name == "Tensor" and not name.asname for name in node.names):
                return "Tensor", []
    for node in tree.body:
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.name == "torch":
                    return f"{name.asname or 'torch'}.Tensor", []
    return "Tensor", ["from torch import Tensor"]


def _imports(
    view: View, function: Function, kinds: set[str], others: list[str]
) -> list[types.TextEdit]:
    """Imports of what the annotations name, below those that are above the function."""
    body = [] if view.tree is None else view.tree.body
    above = [node for node in body if node.lineno < function.lineno]
    have = {
        name.name
        for node in above
        if isinstance(node, ast.ImportFrom) and node.module == "jaxtyping"
        for name in node.names
    }
    missing = sorted(kinds - have)
    texts = [f"from jaxtyping import {', '.join(missing)}"] if missing else []
    texts += others
    if not texts:
        return []
    line = view.part.first + 1
    for node in above:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or (docstring and node is above[0]):
            line = (node.end_lineno or node.lineno) + 1
    if not view.part.first < line <= view.part.first + len(view.part.lines):
        return []
    return [insertion(view, line, 0, "".join(f"{text}\n" for text in texts))]


def _before_colon(view: View, function: Function) -> tuple[int, int] | None:
    """Where ` -> ...` goes: behind the parenthesis that ends the arguments."""
    lines = map(view.line, range(function.lineno, (function.end_lineno or function.lineno) + 1))
    text = (f"{line}\n" for line in lines)
    depth = 0
    place: tuple[int, int] | None = None
    for token in tokenize.generate_tokens(lambda: next(text, "")):
        if token.string == ":" and depth == 0:
            break
        depth += (token.string in _OPENING) - (token.string in _CLOSING)
        if token.string == ")" and depth == 0:
            row, col = token.end
            place = function.lineno + row - 1, col
    return place


def _replace(view: View, node: ast.expr, text: str) -> types.TextEdit:
    start = view.position(node.lineno, _column(view, node.lineno, node.col_offset))
    end_line, end_col = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    end = view.position(end_line, _column(view, end_line, end_col))
    return types.TextEdit(types.Range(start, end), text)


def _column(view: View, line: int, offset: int) -> int:
    """A column in characters, of one in bytes."""
    return len(view.line(line).encode()[:offset].decode(errors="ignore"))

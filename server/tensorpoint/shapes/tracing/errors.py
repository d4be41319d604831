"""Where in the file an error arose, and what it is about.

An error is a fault of shapes or dtypes only if torch itself raised it: an AttributeError,
an assertion, a missing package are the file's own, or come of how we run it, and are not for us to
say.
"""

from __future__ import annotations

import ast
import os
import re
from dataclasses import dataclass
from typing import Any

import torch

from ...wire.shapes import Span
from .divisions import uneven
from .positions import span_of
from .rewriting import Source
from .snapshots import render, sizes_of, snap

#: What torch says, and what it is about; "": not a fault of the file. The groups are what clashes:
#: they may not depend on the sizes of a guessed input.
_MESSAGES: tuple[tuple[str, str], ...] = (
    (r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x\d+\)", "shape-mismatch"),
    (r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)", "shape-mismatch"),
    (r"expected input\[.*\] to have (\d+) channels?, but got (\d+) channels?", "shape-mismatch"),
    (r"Expected (\d+)D.* input to .*, but got input of size", "shape-mismatch"),
    (r"shape '\[.*\]' is invalid for input of size (\d+)", "shape-mismatch"),
    (r"Attempting to broadcast dimension of length (\d+) at -?\d+! .* shape", "shape-mismatch"),
    (r"must be equal to input_size\. Expected (\d+), got (\d+)", "shape-mismatch"),
    (r"Given normalized_shape=\[([\d, ]+)\], expected input with shape", "shape-mismatch"),
    (r"running_mean should contain (\d+) elements not (\d+)", "shape-mismatch"),
    (r"Sizes of tensors must match except in dimension", "shape-mismatch"),
    (r"[Ee]xpected .*dtype|the same dtype|dtypes? .* (not equal|mismatch)", "dtype-mismatch"),
    (r"expected scalar type|[Ff]ound dtype|result type .* can't be cast", "dtype-mismatch"),
    (r"Input type \(.*\) and (weight|bias) type", "dtype-mismatch"),
    (r"two devices|same device", ""),  # of how we run it: the file's devices are not there
    (r"size|shape|dimension|stride|channel|numel|broadcast", "shape-mismatch"),
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """An error that torch raised in a call of the file."""

    span: Span
    owner: str
    code: str
    message: str
    #: What clashes, as far as the message says it.
    clash: tuple[str, ...]
    #: Names and shapes of what the call was given: `x: f32[3, 20]`.
    operands: tuple[tuple[str, str], ...]


def fault_of(error: BaseException, source: Source) -> Fault | None:
    """The fault, or None if the error is of another kind."""
    if not isinstance(error, (RuntimeError, ValueError, IndexError, TypeError)):
        return None
    # A RuntimeError too, but about a kernel that there is not for a device, whatever its sizes: its
    # text has the operation's name, such as `reshape`.
    if isinstance(error, NotImplementedError):
        return None
    found = _frames(error, source.path)
    if found is None:
        return None
    frame, span, from_torch = found
    message = first_line(error)
    code, clash = _about(message)
    if not code or not from_torch or _raised_there(source, span):
        return None
    owner = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)
    operands = _operands(frame, span, source)
    words, divisor = uneven(message, _node_at(source, span), lambda node: _look_up(node, frame))
    if words:
        message, operands = f"{words}: {message}", (*operands, *divisor)
    return Fault(span, owner, code, message, clash, operands)


def _raised_there(source: Source, span: Span) -> bool:
    """Whether the file itself raises there."""
    return any(
        isinstance(node, (ast.Raise, ast.Assert))
        and node.lineno <= span.line <= (node.end_lineno or node.lineno)
        for node in ast.walk(source.tree)
    )


def place_of(error: BaseException, source: Source) -> Span | None:
    """The innermost place of the file that an error went through."""
    found = _frames(error, source.path)
    return found[1] if found else None


def _frames(error: BaseException, path: str) -> tuple[Any, Span, bool] | None:
    """The innermost frame of the file, where it is, and whether what raised was torch."""
    trace, found, after = error.__traceback__, None, []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == path:
            found, after = trace, []
        else:
            after.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    if found is None:
        return None
    folders = (torch.__path__[0], os.path.dirname(__file__))
    from_torch = all(name.startswith((*(f + os.sep for f in folders), "<")) for name in after)
    span = span_of(found.tb_frame.f_code, found.tb_lasti, found.tb_lineno)
    return found.tb_frame, span, from_torch


def _about(message: str) -> tuple[str, tuple[str, ...]]:
    for pattern, code in _MESSAGES:
        match = re.search(pattern, message)
        if match:
            return code, tuple(match.groups()) or (re.sub(r"\s+", " ", message),)
    return "", ()


def first_line(error: BaseException) -> str:
    """What an error says, without its further lines; "" if it says nothing."""
    return (str(error).strip().split("\n") or [""])[0][:300]


def _operands(frame: Any, span: Span, source: Source) -> tuple[tuple[str, str], ...]:
    """Names and attributes in the failing expression that hold tensors, and their shapes."""
    return tuple((name, shape_text(v)) for name, v in _values(frame, span, source).items())


def operand_values(error: BaseException, span: Span, source: Source) -> dict[str, torch.Tensor]:
    """The tensors by the names that they have in the failing expression."""
    found = _frames(error, source.path)
    return _values(found[0], span, source) if found is not None else {}


def _values(frame: Any, span: Span, source: Source) -> dict[str, torch.Tensor]:
    """Nothing is called to get them."""
    node = _node_at(source, span)
    if node is None:
        return {}
    parts = (
        [node.func, *node.args] if isinstance(node, ast.Call) else list(ast.iter_child_nodes(node))
    )
    found: dict[str, torch.Tensor] = {}
    for part in parts:
        for each in ast.walk(part):
            if not isinstance(each, (ast.Name, ast.Attribute)):
                continue
            value = _look_up(each, frame)
            if isinstance(value, torch.nn.Module):
                weight = getattr(value, "weight", None)
                if isinstance(weight, torch.Tensor):
                    found[f"{ast.unparse(each)}.weight"] = weight
            elif isinstance(value, torch.Tensor):
                found[ast.unparse(each)] = value
    return found


def shape_text(value: Any) -> str:
    """The shape of a value, with numbers."""
    snapshot = snap(value)
    sizes = iter(sizes_of(snapshot))
    return render(snapshot, lambda: str(next(sizes)))


def _node_at(source: Source, span: Span) -> ast.expr | None:
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.Call, ast.BinOp, ast.Subscript, ast.Compare, ast.UnaryOp)):
            if (node.lineno, node.end_lineno) == (span.line, span.end_line):
                if (node.col_offset, node.end_col_offset) == (span.col, span.end_col):
                    return node
    return None


def _look_up(node: ast.expr, frame: Any) -> Any:
    """The value of a name or of an attribute path that can be read without running code."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        holder = _look_up(node.value, frame)
        if isinstance(holder, torch.nn.Module):
            for table in (holder.__dict__, holder._parameters, holder._buffers, holder._modules):
                if node.attr in table:
                    return table[node.attr]
    return None

"""Decompositions and solutions: equal singular values in a backward, matrices without inverse."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite, log
from typing import TYPE_CHECKING

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .names import node_kind
from .rule import DOCS, Rule
from .values import exact, numbers_of
from .words import number, place

if TYPE_CHECKING:
    import torch

#: Backward nodes of decompositions: what is decomposed into, and the output with them.
_SPECTRA = {
    "LinalgEighBackward": ("eigenvalues", 0),
    "LinalgSvdBackward": ("singular values", 1),
}
_TRIANGULAR = frozenset({"linalg_solve_triangular", "triangular_solve"})
_SOLVERS = frozenset({"_linalg_solve_ex", "linalg_inv_ex", "linalg_lu_solve", "linalg_solve_ex"})


def _spectrum(operation: Operation, at: Element) -> Cause | None:
    """A gradient of vectors divides by differences of (squared) values, or by the values."""
    what, output = _SPECTRA[node_kind(operation.node or "")]
    if at.name != "div" or at.operand("other") != 0 or len(at.index) < 2:
        return None
    *batch, i, j = at.index
    forward = operation.forward
    values = None
    if forward is not None and "linalg" in forward.name and len(forward.outputs) > output:
        values = numbers_of(forward.outputs[output])
    name = "eigh" if output == 0 else "svd"
    return Cause(
        f"The gradient of the vectors of {name} divides by "
        f"{_difference(what, values, batch, i, j)}.",
        f"Use only the {what} ({'eigvalsh' if output == 0 else 'svdvals'}), whose gradient is "
        "defined, or break the tie by a little noise on the matrix.",
    )


def _difference(what: str, values: torch.Tensor | None, batch: list[int], i: int, j: int) -> str:
    """What is 0, in words: the difference of two values, or a value."""
    row = None if values is None or values.dim() != len(batch) + 1 else values[tuple(batch)]
    if row is None or max(i, j) >= len(row):
        return f"differences of {what}, or by one of them, and that at {[*batch, i, j]} is 0"
    a, b = float(row[i]), float(row[j])
    if i != j and abs(a - b) <= 1e-6 * max(abs(a), abs(b)):
        return (
            f"the difference of {what} {i} and {j}, which is 0: they are {number(a)} and "
            f"{number(b)}"
        )
    k = i if abs(a) < abs(b) else j
    return f"the {what}, of which number {k} is {number(float(row[k]))}"


def _triangular(operation: Operation, at: Element) -> Cause | None:
    """A triangular matrix with a 0 on its diagonal."""
    name = "self" if "solve_triangular" in operation.name else "A"
    return _zero_on_diagonal(at, name, "A triangular matrix")


def _singular(operation: Operation, at: Element) -> Cause | None:
    """A matrix that has no inverse, by the 0 in its factor U or the error code."""
    name = at.first("A", "LU")
    matrix = None if name is None else at.tensor(name)
    if name is None or matrix is None or matrix.dim() < 2:
        return None
    if name == "LU":
        return _zero_on_diagonal(at, name, "The factor U of a matrix")
    batch = at.index[: matrix.dim() - 2]
    for output in operation.outputs:
        info = numbers_of(output)
        if info is None or info.is_floating_point() or info.shape != matrix.shape[:-2]:
            continue
        pivot = int(info[batch].item())
        if pivot > 0:
            return Cause(
                f"{at.called(name)}{_of_batch(batch)} is singular and has no inverse: pivot "
                f"{pivot - 1} of its elimination is 0.",
                "Use torch.linalg.lstsq or pinv, or add a small multiple of the identity.",
            )
    return None


def _of_batch(index: Sequence[int]) -> str:
    """Which matrix of a batch; nothing for one alone."""
    return place([*index, ":", ":"]) if index else ""


def _zero_on_diagonal(at: Element, name: str, what: str) -> Cause | None:
    matrix = at.tensor(name)
    if matrix is None or matrix.dim() < 2:
        return None
    sizes = matrix.shape[:-2]
    lead = at.index[: len(at.index) - 2][len(at.index) - 2 - len(sizes) :] if sizes else ()
    batch = tuple(0 if size == 1 else item for size, item in zip(sizes, lead))
    if len(batch) != len(sizes):
        return None
    zeros = matrix[batch].diagonal() == 0
    if not bool(zeros.any()):
        return None
    k = int(zeros.byte().argmax())
    return Cause(
        f"{what} with a 0 on its diagonal has no inverse: {_called(at, name)}"
        f"{place([*batch, k, k])} is 0.",
        "The matrix that was factorised is singular: use torch.linalg.lstsq, or add a small "
        "multiple of the identity.",
    )


def _called(at: Element, name: str) -> str:
    return name if name == "LU" else at.called(name)


def _determinant(operation: Operation, at: Element) -> Cause | None:
    """log|det| of a singular matrix."""
    if at.value != -inf:
        return None
    return Cause(
        f"log|det| of a singular matrix is -inf: the determinant of "
        f"{at.called('A')}{_of_batch(at.index)} is 0.",
        "Add a small multiple of the identity to the matrix.",
    )


def _exponential(operation: Operation, at: Element) -> Cause | None:
    """The exponential of a matrix, which is as large as that of its largest eigenvalue."""
    matrix = at.tensor("self")
    if matrix is None or isfinite(at.value) or len(at.index) < 2:
        return None
    if matrix.shape != operation.output.shape:
        return None
    square = matrix[at.index[:-2]]
    if not bool(square.isfinite().all()):
        return None
    size = float(exact(square).abs().sum(-1).max())
    if size < 0.99 * log(at.limit):
        return None
    return Cause(
        f"The exponential of a matrix overflows {at.dtype}: the norm (the largest sum of a row) of "
        f"{at.called('self')}{_of_batch(at.index[:-2])} is {number(size)}.",
        "Scale the matrix down, or bound what it is computed from.",
    )


RULES = (
    Rule("equal values in a decomposition", frozenset(_SPECTRA), _spectrum, "pytorch#49886"),
    Rule("zero on the diagonal", _TRIANGULAR, _triangular, DOCS + "linalg.solve_triangular.html"),
    Rule("singular matrix", _SOLVERS, _singular, DOCS + "linalg.inv_ex.html"),
    Rule(
        "determinant of a singular matrix",
        frozenset({"_linalg_slogdet", "linalg_slogdet"}),
        _determinant,
        DOCS + "linalg.slogdet.html",
    ),
    Rule(
        "overflow of matrix_exp",
        frozenset({"linalg_matrix_exp", "matrix_exp"}),
        _exponential,
        DOCS + "linalg.matrix_exp.html",
    ),
)

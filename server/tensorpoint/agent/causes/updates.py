"""Optimizer steps, gradient clipping, loss scaling."""

from __future__ import annotations

from math import isfinite, isinf

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .rule import Rule
from .values import numbers_of
from .words import number


def _divisor(operation: Operation, at: Element) -> Cause | None:
    """What Adam and its kin divide by: sqrt(running average of squares) + eps, which is 0."""
    average, divisor = at.operand("tensor1"), at.operand("tensor2")
    if operation.phase != "update" or divisor != 0 or average is None or not isfinite(average):
        return None
    is_float16 = at.dtype == "float16"
    zero = "eps is 0 in float16" if is_float16 else "eps is 0, or far too small"
    if average == 0:
        what = f"0/0 is NaN: the gradients{at.at} were 0 so far"
    else:
        what = (
            f"{number(average)}/0 makes {number(at.value)}: the squared gradients{at.at} round to 0"
        )
    return Cause(
        f"{what}, and what the optimizer divides by, the root of their mean square + eps, is 0 "
        f"there, since {zero}.",
        "Keep the parameters in float32 for the optimizer (autocast in place of half()), or pass "
        "an eps that is not 0 in their type, such as 1e-4 for float16."
        if is_float16
        else "Pass an eps such as 1e-8.",
    )


def _clipping(operation: Operation, at: Element) -> Cause | None:
    """Clipping multiplies by max_norm / total norm, 0 or NaN if the norm is infinite or NaN."""
    if operation.phase != "update" or not at.is_nan or not operation.name.endswith("_"):
        return None
    name = at.first("other", "scalar") or "other"
    gradient, factor, coefficient = at.operand("self"), at.operand(name), at.tensor(name)
    if gradient is None or factor is None or coefficient is None or coefficient.numel() != 1:
        return None  # an optimizer multiplies by numbers, not by tensors
    if factor == 0 and isinf(gradient):
        return Cause(
            f"Clipping multiplies an infinite gradient by 0: the total norm is inf, and the "
            f"gradient{at.at} is {number(gradient)}, of which 0·inf makes NaN.",
            "Look for where the gradient became infinite; with a GradScaler, call "
            "scaler.unscale_(optimizer) before clipping, and let it skip the step. "
            "clip_grad_norm_(error_if_nonfinite=True) raises instead.",
        )
    if factor != factor:
        return Cause(
            f"Clipping multiplies all gradients by NaN, since the total norm is NaN; the "
            f"gradient{at.at} itself is {number(gradient)}.",
            "Look for the gradient that is NaN; clip_grad_norm_(error_if_nonfinite=True) raises "
            "instead.",
        )
    return None


def _unscaling(operation: Operation, at: Element) -> Cause | None:
    """A gradient scaler finds an infinite gradient."""
    gradients = operation.arguments.get("self")
    inverse = numbers_of(operation.arguments.get("inv_scale"))
    if not isinstance(gradients, (list, tuple)) or operation.place >= len(gradients):
        return None
    gradient = numbers_of(gradients[operation.place])
    if gradient is None or inverse is None or gradient.shape != operation.output.shape:
        return None
    value, factor = float(gradient[at.index].item()), float(inverse.item())
    if isfinite(value) or factor == 0:
        return None
    if factor >= 1:
        return Cause(
            f"The gradient{at.at} is {number(value)} at a loss scale of {number(1 / factor)}: it "
            "is not the scale that makes it so.",
            "Look for where the gradient became bad: no scale will get rid of it.",
        )
    return Cause(
        f"The gradient{at.at} is {number(value)} with the loss scale {number(1 / factor)}.",
        "GradScaler skips such a step and lowers the scale; if it goes on, the gradient is bad by "
        "itself: look for where it became so.",
    )


RULES = (
    Rule("eps of the optimizer is 0", frozenset({"addcdiv"}), _divisor, "pytorch#8860"),
    Rule("clipping by an infinite norm", frozenset({"mul"}), _clipping, "pytorch#46849"),
    Rule(
        "loss scale",
        frozenset({"_amp_foreach_non_finite_check_and_unscale"}),
        _unscaling,
        "https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling",
    ),
)

"""Losses: all targets ignored, means over nothing, squares beyond the limit."""

from __future__ import annotations

from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .overflow import beyond, too_large
from .rule import DOCS, Rule
from .values import exact, is_small, unravel
from .words import count, number, place

if TYPE_CHECKING:
    import torch

_NLL = frozenset(
    {
        "cross_entropy_loss",
        "nll_loss",
        "nll_loss2d",
        "nll_loss2d_forward",
        "nll_loss_forward",
        "nll_loss_nd",
    }
)
_PAIRS = frozenset(
    {
        "binary_cross_entropy",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
    }
)
#: The reduction "mean" in schemas.
_MEAN = 1
_IGNORED = -100
#: What transformers calls the number of labels that count, in its models and its Trainer.
_ITEMS = "num_items_in_batch"


def _no_targets(operation: Operation, at: Element) -> Cause | None:
    """A mean over the targets that count, of which there are none."""
    target = at.tensor("target")
    if target is None or target.is_floating_point() or not at.is_nan or at.index:
        return None
    if operation.arguments.get("reduction", _MEAN) != _MEAN:
        return None
    ignored = operation.arguments.get("ignore_index", _IGNORED)
    counted = target[target != ignored]
    total, weight = target.numel(), at.tensor("weight")
    if total == 0:
        what = "there are no targets"
    elif counted.numel() == 0:
        what = f"all {total} of {at.called('target')} equal ignore_index, {ignored}"
    elif (
        weight is not None and weight.dim() == 1 and float(exact(weight)[counted.cpu()].sum()) == 0
    ):
        what = f"the class weights of all {counted.numel()} of {at.called('target')} are 0"
    else:
        return None
    return Cause(
        f"The mean loss divides 0 by 0: {what}.",
        "Skip such a batch, or use reduction='sum' and divide by max(count, 1).",
    )


def _no_items(operation: Operation, at: Element) -> Cause | None:
    """The division of transformers' Trainer: a sum over labels by how many of them count."""
    if not at.is_nan or at.operand("other") != 0 or at.operand("self") != 0:
        return None
    if at.names.get("other", "").rpartition(".")[2] != _ITEMS:
        return None
    return Cause(
        f"0/0 is NaN: {at.called('other')} is 0, no label of this batch counts: all are -100.",
        "Leave examples without labels out of the data set (often truncation cut the answer off), "
        "or make batches large enough that some label counts.",
    )


def _impossible_target(operation: Operation, at: Element) -> Cause | None:
    """A target whose log-probability is -inf."""
    if at.value != inf:
        return None
    found = _worst_target(operation, at)
    if found is None:
        return None
    index, class_ = found
    return Cause(
        f"The loss is inf since a target is given no probability at all: "
        f"{at.called('self')}{place(index)} is -inf, where the target is {class_}.",
        "Don't mask the class of a target; get log-probabilities from logits by log_softmax.",
    )


def _worst_target(operation: Operation, at: Element) -> tuple[tuple[int, ...], int] | None:
    values, target = at.tensor("self"), at.tensor("target")
    if values is None or target is None or target.is_floating_point() or values.dim() < 2:
        return None
    if target.shape != (values.shape[0], *values.shape[2:]):
        return None
    ignored = operation.arguments.get("ignore_index", _IGNORED)
    counts = target != ignored
    chosen = values.gather(1, (target * counts).unsqueeze(1)).squeeze(1)
    bad = (chosen == -inf) & counts
    if not bool(bad.any()):
        return None
    sample, *rest = _first(bad)
    class_ = int(target[(sample, *rest)])
    return (sample, class_, *rest), class_


def _first(mask: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(item) for item in mask.nonzero()[0])


def _mean_of_nothing(operation: Operation, at: Element) -> Cause | None:
    values = at.tensor("self")
    if values is None or values.numel() or not at.is_nan:
        return None
    return Cause(
        f"The mean loss divides 0 by 0: {at.called('self')} is empty, of shape "
        f"{list(values.shape)}.",
        "Skip such a batch, or use reduction='sum' and divide by max(count, 1).",
    )


def _squared_error(operation: Operation, at: Element) -> Cause | None:
    """A squared difference, or their sum, beyond the limit."""
    values, target = at.tensor("self"), at.tensor("target")
    if values is None or target is None or not at.is_infinite or values.shape != target.shape:
        return None
    if not (values.is_floating_point() and target.is_floating_point()):
        return None
    difference = (values - target).abs()
    if (
        not difference.numel()
        or not is_small(values)
        or not bool(values.isfinite().all() & target.isfinite().all())
    ):
        return None
    index = unravel(int(difference.reshape(-1).argmax()), values.shape)
    x, y = float(values[index]), float(target[index])
    square = (x - y) ** 2
    facts = (
        f"{at.called('self')}{place(index)} is {number(x)} and {at.called('target')}{place(index)} "
        f"is {number(y)}"
    )
    if square > at.limit:
        return too_large(at, f"({number(x)} - {number(y)})² is {beyond(at, square)}: {facts}.")
    total = float((exact(values) - exact(target)).square().sum())
    if not total > at.limit:
        return None
    return too_large(
        at,
        f"The sum of {count(values.numel(), 'square')} is {beyond(at, total)}; the largest "
        f"difference: {facts}.",
    )


def _alignment(operation: Operation, at: Element) -> Cause | None:
    """CTC: a target that is longer than what was heard."""
    if at.value != inf:
        return None
    sample = at.index[0] if at.index else 0
    heard = _length(at.argument("input_lengths"), sample)
    wanted = _length(at.argument("target_lengths"), sample)
    if heard is None or wanted is None or not isfinite(heard):
        return None
    repeats = _repeats(at.tensor("targets"), sample, wanted)
    if wanted + repeats <= heard:
        return None
    blanks = f" and {count(repeats, 'blank')} between equal ones" if repeats else ""
    return Cause(
        f"CTC has no alignment for sample {sample}: {count(wanted, 'label')}{blanks} need more "
        f"than its {count(heard, 'step')} of input.",
        "Leave such samples out, or pass zero_infinity=True.",
    )


def _length(lengths: Any, sample: int) -> int | None:
    try:
        return int(lengths[sample])
    except (IndexError, OverflowError, RuntimeError, TypeError, ValueError):
        return None


def _repeats(targets: torch.Tensor | None, sample: int, length: int) -> int:
    if targets is None or targets.dim() != 2:
        return 0
    labels = targets[sample][:length].tolist()
    return sum(a == b for a, b in zip(labels, labels[1:]))


RULES = (
    Rule("no target counts", _NLL, _no_targets, "pytorch#116349"),
    Rule("no label counts under Trainer", frozenset({"div"}), _no_items, "transformers#35438"),
    Rule("impossible target", _NLL, _impossible_target, DOCS + "nn.functional.nll_loss.html"),
    Rule("loss of nothing", _PAIRS, _mean_of_nothing, DOCS + "nn.MSELoss.html"),
    Rule(
        "overflow of a squared error",
        frozenset({"mse_loss"}),
        _squared_error,
        DOCS + "nn.MSELoss.html",
    ),
    Rule(
        "no alignment in CTC",
        frozenset({"_ctc_loss", "ctc_loss"}),
        _alignment,
        DOCS + "nn.CTCLoss.html",
    ),
)

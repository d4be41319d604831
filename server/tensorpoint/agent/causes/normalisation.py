"""Normalisation layers: nothing to divide by, variances beyond the limit, poisoned statistics."""

from __future__ import annotations

import sys
from math import isfinite, isnan
from typing import TYPE_CHECKING

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element
from .overflow import too_large
from .rule import DOCS, Rule
from .values import exact, is_inside, is_small
from .words import number, place

if TYPE_CHECKING:
    import torch

_LAYER = frozenset({"layer_norm", "native_layer_norm"})
_GROUP = frozenset({"group_norm", "native_group_norm"})
_ROOT_MEAN_SQUARE = frozenset({"_fused_rms_norm", "rms_norm"})
_BATCH = frozenset(
    {
        "_batch_norm_no_update",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "batch_norm",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_batch_norm",
    }
)


def _layer(operation: Operation, at: Element) -> Cause | None:
    return _row(operation, at, centred=True)


def _root_mean_square(operation: Operation, at: Element) -> Cause | None:
    return _row(operation, at, centred=False)


def _row(operation: Operation, at: Element, *, centred: bool) -> Cause | None:
    """The last dimensions, which are normalised together."""
    source, shape = at.tensor("input"), operation.arguments.get("normalized_shape")
    if source is None or not shape or source.dim() < len(shape):
        return None
    lead = at.index[: source.dim() - len(shape)]
    if not is_inside(lead, source):
        return None
    return _normalised(at, source[lead], place([*lead, *":" * len(shape)]), centred=centred)


def _group(operation: Operation, at: Element) -> Cause | None:
    source = at.tensor("input")
    groups = at.operand(at.first("group", "num_groups") or "group")
    if source is None or not groups or len(at.index) < 2 or not is_inside(at.index[:2], source):
        return None
    size = source.shape[1] // int(groups)
    sample, second = at.index[:2]
    group = second if operation.place else second // size  # of mean and rstd, or of a channel
    channels = source[sample, group * size : (group + 1) * size]
    where = place([sample, f"{group * size}:{(group + 1) * size}"])
    return _normalised(at, channels, where, centred=True)


def _normalised(at: Element, part: torch.Tensor, where: str, *, centred: bool) -> Cause | None:
    """What is wrong with the numbers that are normalised together."""
    torch = sys.modules["torch"]
    if not part.is_floating_point() or not is_small(part):
        return None
    values = exact(part).reshape(-1)
    if not len(values) or not bool(values.isfinite().all()):
        return None
    name = "variance" if centred else "mean square"
    spread = values - values.mean() if centred else values
    # torch computes the statistics of short types in float32
    limit = torch.finfo(torch.float64 if part.dtype == torch.float64 else torch.float32).max
    square, eps = float(spread.square().mean()), at.operand("eps")
    what = f"{at.called('input')}{where}"
    if not square < limit:
        return too_large(
            at,
            f"The {name} of {what} is {number(square)}, beyond {number(limit)}, the limit of the "
            "type in which it is computed.",
        )
    total = float(values.sum())
    if abs(total) > limit:
        return too_large(
            at,
            f"The sum of {what}, for its mean, is {number(total)}, beyond {number(limit)}, the "
            "limit of the type in which it is computed.",
        )
    empty = bool((values == (values[0] if centred else 0)).all())
    if not empty or eps is None:
        return None
    rounded = float(part.new_tensor(eps).item())
    if rounded != 0:
        return None
    zero = "eps is 0" if eps == 0 else f"eps = {number(eps)} is 0 in {at.dtype}"
    return Cause(
        f"0/0 is NaN: the {name} of {what} is 0, since all of it is {number(float(values[0]))}, "
        f"and {zero}.",
        "Use a larger eps, such as 1e-5.",
    )


def _statistics(operation: Operation, at: Element) -> Cause | None:
    """Running statistics that were spoilt by an earlier step."""
    if _is_training(operation):
        return None
    channel = at.index[1] if len(at.index) > 1 else None
    for name in ("running_var", "running_mean"):
        statistics = at.tensor(name)
        if channel is None or statistics is None or statistics.dim() != 1:
            continue
        if channel >= len(statistics):
            continue
        value = float(statistics[channel].item())
        eps = at.operand("eps") or 0.0
        if isfinite(value) and not (name == "running_var" and value + eps <= 0):
            continue
        what = "not finite" if not isfinite(value) else "negative" if value < 0 else "0, as is eps"
        return Cause(
            f"The running statistics of channel {channel} are {what}: "
            f"{at.names.get(name, name)}{place([channel])} is {number(value)}.",
            "An earlier batch spoilt them or they were loaded so: call reset_running_stats(), and "
            "look for the first batch that isn't finite.",
        )
    return None


def _is_training(operation: Operation) -> bool:
    return "with_update" in operation.name or bool(operation.arguments.get("training"))


def _batch(operation: Operation, at: Element) -> Cause | None:
    """The mean and variance of a channel of the batch, in training."""
    source = at.tensor("input")
    if source is None or source.dim() < 2 or not _is_training(operation):
        return None
    channel = at.index[1] if operation.output.dim() > 1 else at.index[0] if at.index else None
    if channel is None or channel >= source.shape[1]:
        return None
    where = place([":", channel, *":" * (source.dim() - 2)])
    return _normalised(at, source[:, channel], where, centred=True)


def _weight_norm(operation: Operation, at: Element) -> Cause | None:
    weight, dim = at.tensor("v"), operation.arguments.get("dim", 0)
    if weight is None or not at.is_nan or weight.shape != operation.output.shape:
        return None
    if not isinstance(dim, int) or not at.index:
        return None
    row = weight.select(dim, at.index[dim])
    if bool(row.any()) or isnan(float(row.sum())):
        return None
    return Cause(
        f"weight_norm divides by a norm of 0: {at.names.get('v', 'v')} is 0 throughout for index "
        f"{at.index[dim]} of dimension {dim}.",
        "Initialise the weight so that no row of it is 0 as a whole.",
    )


RULES = (
    Rule("layer_norm of a constant", _LAYER, _layer, "pytorch#41527"),
    Rule("group_norm of a constant", _GROUP, _group, DOCS + "nn.GroupNorm.html"),
    Rule("rms_norm of zeros", _ROOT_MEAN_SQUARE, _root_mean_square, DOCS + "nn.RMSNorm.html"),
    Rule("poisoned running statistics", _BATCH, _statistics, DOCS + "nn.BatchNorm2d.html"),
    Rule("batch_norm of large numbers", _BATCH, _batch, DOCS + "nn.BatchNorm2d.html"),
    Rule(
        "weight_norm of zeros",
        frozenset({"_weight_norm_interface", "_weight_norm"}),
        _weight_norm,
        DOCS + "nn.utils.parametrizations.weight_norm.html",
    ),
)

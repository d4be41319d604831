"""The watches: a file for each metric, or for a few that are measured alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ..judge import Judge
from ..modules import Names
from .base import Watch
from .entropy import Entropy, EntropyShift
from .grad_norm import GradNorm
from .no_grad import NoGrad
from .nonfinite import Nonfinite
from .nonfinite_backward import NonfiniteBackward
from .nonfinite_update import NonfiniteUpdate
from .output_stats import AbsMax, ZeroFraction
from .scalars import Loss, MemoryGrowth, Scale, Score
from .update_size import UpdateNorm, UpdateRatio

if TYPE_CHECKING:
    import torch


def all_watches(
    names: Names,
    judge: Judge,
    scale_of: Callable[[torch.Tensor | None], float | None],
    known_norms: Callable[[Iterable[torch.Tensor]], list[float | None]],
) -> tuple[Watch, ...]:
    """One of each.

    `scale_of` says what the gradient of a parameter is multiplied by at the moment, if anything;
    of None, what gradients to come will be. `known_norms` says of each parameter the 2-norm of its
    gradient, if that was taken already.
    """
    return (
        AbsMax(judge),  # before nonfinite, which it may spare a look
        Nonfinite(names, judge),
        NonfiniteBackward(names, judge, scale_of),
        NonfiniteUpdate(names, judge, scale_of, known_norms),
        GradNorm(names, judge, scale_of, known_norms),
        ZeroFraction(judge),
        UpdateNorm(names, judge),
        UpdateRatio(names, judge),
        Loss(judge, scale_of),
        Scale(judge),
        MemoryGrowth(judge),
        Score(judge),
        Entropy(names, judge),
        EntropyShift(names, judge),
        NoGrad(names, judge),
    )

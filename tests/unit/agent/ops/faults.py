"""One line each that makes a bad value of an activation `x`: in a forward, or in its backward.

Among them are the patterns of numeric bug reports: a root and a norm by hand at 0, a hidden branch
of `where`, acos at 1, a fully masked row, no labels, logsumexp of nothing, p·log p, log of softmax,
svd with ties, a residual and a linear layer in float16, an exploding recurrence.

The line is marked; the operation is the one that is to be named. What looks alike and is fine is
here as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional


def zeros(x: torch.Tensor) -> torch.Tensor:
    """0 for each element of `x`, as a function of it."""
    return x - x


def large(x: torch.Tensor) -> torch.Tensor:
    """Near the limit of float32 and bfloat16."""
    return x.float() * 0 + 3e38


def log_of_negative(x: torch.Tensor) -> torch.Tensor:
    below = zeros(x) - 1.0
    return x + torch.log(below)  # <- log


def log_of_zero(x: torch.Tensor) -> torch.Tensor:
    nothing = zeros(x)
    return x * nothing.log()  # <- log


def log1p_of_minus_one(x: torch.Tensor) -> torch.Tensor:
    return x * torch.log1p(zeros(x) - 1.0)  # <- log1p


def root_of_negative(x: torch.Tensor) -> torch.Tensor:
    below = zeros(x) - 0.5
    return x + below.sqrt()  # <- sqrt


def inverse_root_of_zero(x: torch.Tensor) -> torch.Tensor:
    return x + zeros(x).rsqrt()  # <- rsqrt


def zero_by_zero(x: torch.Tensor) -> torch.Tensor:
    total = zeros(x).sum(-1, keepdim=True)
    return zeros(x) / total  # <- div


def one_by_zero(x: torch.Tensor) -> torch.Tensor:
    return x + 1.0 / zeros(x).abs()  # <- reciprocal


def division_in_place(x: torch.Tensor) -> torch.Tensor:
    copy = x.clone()
    copy.div_(0.0)  # <- div_
    return copy


def infinity_minus_infinity(x: torch.Tensor) -> torch.Tensor:
    scores = torch.where(x == x, float("inf"), x)
    return scores - scores.amax(-1, keepdim=True)  # <- sub


def exponential(x: torch.Tensor) -> torch.Tensor:
    return x + (zeros(x).float() + 1000.0).exp()  # <- exp


def power(x: torch.Tensor) -> torch.Tensor:
    return x + (zeros(x).float() + 10.0) ** 60  # <- pow


def product_of_two(x: torch.Tensor) -> torch.Tensor:
    return x + large(x) * 10.0  # <- mul


def product_of_all(x: torch.Tensor) -> torch.Tensor:
    return x + large(x).prod(-1, keepdim=True)  # <- prod


def sum_of_all(x: torch.Tensor) -> torch.Tensor:
    return x + large(x).sum(-1, keepdim=True)  # <- sum


def to_half(x: torch.Tensor) -> torch.Tensor:
    return x + large(x).half()  # <- _to_copy


def matrix_product(x: torch.Tensor) -> torch.Tensor:
    flat = large(x).flatten(0, -2)
    with torch.autocast("cpu", enabled=False):
        return x + (flat @ flat.mT).amax()  # <- mm


def inverse_cosine(x: torch.Tensor) -> torch.Tensor:
    return x + torch.acos(zeros(x) + 1.5)  # <- acos


def inverse_hyperbolic_tangent(x: torch.Tensor) -> torch.Tensor:
    return x + torch.atanh(zeros(x) + 1.0)  # <- atanh


def logit_of_one(x: torch.Tensor) -> torch.Tensor:
    return x + torch.logit(zeros(x) + 1.0)  # <- logit


def inverse_error_function(x: torch.Tensor) -> torch.Tensor:
    return x + torch.erfinv(zeros(x) + 2.0)  # <- erfinv


def masked_row(x: torch.Tensor) -> torch.Tensor:
    masked = x.masked_fill(x == x, float("-inf"))
    return masked.softmax(-1)  # <- _softmax


def variance_of_one(x: torch.Tensor) -> torch.Tensor:
    return x + x[..., :1].var(-1, keepdim=True)  # <- var


def mean_of_none(x: torch.Tensor) -> torch.Tensor:
    return x + x[..., :0].mean(-1, keepdim=True)  # <- mean


def all_ignored(x: torch.Tensor) -> torch.Tensor:
    rows = x.flatten(0, -2).float()
    none = torch.full((len(rows),), -100)
    return x + functional.cross_entropy(rows, none)  # <- nll_loss_forward


def normalised_without_eps(x: torch.Tensor) -> torch.Tensor:
    return functional.normalize(zeros(x), dim=-1, eps=0.0)  # <- div


def digamma_at_zero(x: torch.Tensor) -> torch.Tensor:
    return x * torch.digamma(zeros(x))  # <- digamma


def entropy_at_zero(x: torch.Tensor) -> torch.Tensor:
    p = zeros(x).relu()
    return x - p * p.log()  # <- log


def logarithm_of_softmax(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[-1]) * 1000.0
    probs = (zeros(x).float() + steps).softmax(-1)
    return x + probs.log()  # <- log


def logsumexp_of_nothing(x: torch.Tensor) -> torch.Tensor:
    scores = x.masked_fill(x == x, float("-inf"))
    return x + scores.logsumexp(-1, keepdim=True)  # <- logsumexp


def residual_in_half(x: torch.Tensor) -> torch.Tensor:
    stream = (zeros(x).float() + 60000.0).half()
    return x + (stream + stream)  # <- add


def linear_in_half(x: torch.Tensor) -> torch.Tensor:
    wide = (zeros(x).float() + 300.0).half().flatten(0, -2)
    with torch.autocast("cpu", enabled=False):
        return x + functional.linear(wide, wide).amax()  # <- mm


def recurrence(x: torch.Tensor) -> torch.Tensor:
    h = zeros(x).float() + 1.0
    for _ in range(50):
        h = h * 10.0  # <- mul
    return x + h


FORWARD: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(log_of_negative, log_of_zero, log1p_of_minus_one, root_of_negative, inverse_root_of_zero),
    *(zero_by_zero, one_by_zero, division_in_place, infinity_minus_infinity, exponential, power),
    *(product_of_two, product_of_all, sum_of_all, to_half, matrix_product, inverse_cosine),
    *(inverse_hyperbolic_tangent, logit_of_one, inverse_error_function, masked_row),
    *(variance_of_one, mean_of_none, all_ignored, normalised_without_eps, digamma_at_zero),
    *(entropy_at_zero, logarithm_of_softmax, residual_in_half, linear_in_half, recurrence),
)


def root_at_zero(x: torch.Tensor) -> torch.Tensor:
    return x + zeros(x).sqrt()  # <- sqrt


def norm_by_hand(x: torch.Tensor) -> torch.Tensor:
    squares = zeros(x).pow(2).sum(-1, keepdim=True)
    return x + squares.sqrt()  # <- sqrt


def fractional_power_at_zero(x: torch.Tensor) -> torch.Tensor:
    return x + zeros(x) ** 0.7  # <- pow


def inverse_cosine_at_one(x: torch.Tensor) -> torch.Tensor:
    return x + torch.acos(zeros(x) + 1.0)  # <- acos


def masked_logarithm(x: torch.Tensor) -> torch.Tensor:
    logs = zeros(x).log()  # <- log
    return torch.where(x == x, x, logs)


def masked_quotient(x: torch.Tensor) -> torch.Tensor:
    ratio = x / zeros(x)  # <- div
    return torch.where(x == x, x, ratio)


def masked_exponential(x: torch.Tensor) -> torch.Tensor:
    grown = (x + 1000.0).exp()  # <- exp
    return torch.where(x == x, x, grown)


def masked_log2(x: torch.Tensor) -> torch.Tensor:
    gain = zeros(x).log2()  # <- log2
    return torch.where(x == x, x, gain)


def svd_of_ties(x: torch.Tensor) -> torch.Tensor:
    matrix = torch.eye(3) + zeros(x).float().sum()
    u, _, v = torch.linalg.svd(matrix)  # <- _linalg_svd
    return x + (u * v).sum()


BACKWARD: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(root_at_zero, norm_by_hand, fractional_power_at_zero, inverse_cosine_at_one),
    *(masked_logarithm, masked_quotient, masked_exponential, masked_log2, svd_of_ties),
)


# What looks alike and is fine: nothing bad comes out of it, nor out of its backward ---------------


def norm_at_zero(x: torch.Tensor) -> torch.Tensor:
    return x + torch.linalg.vector_norm(zeros(x), dim=-1, keepdim=True)


def fractional_norm(x: torch.Tensor) -> torch.Tensor:
    return x + zeros(x).norm(p=1.5, dim=-1, keepdim=True)


def spread_of_constants(x: torch.Tensor) -> torch.Tensor:
    return x + (zeros(x) + 2.0).std(-1, keepdim=True)


def normalised_zeros(x: torch.Tensor) -> torch.Tensor:
    return functional.normalize(zeros(x), dim=-1) + functional.layer_norm(x * 0, x.shape[-1:])


def _scores(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Products of all rows, and which are of a later one."""
    scores = x @ x.mT
    return scores, torch.ones_like(scores, dtype=torch.bool).triu(1)


def causal_attention(x: torch.Tensor) -> torch.Tensor:
    scores, later = _scores(x)
    return scores.masked_fill(later, float("-inf")).softmax(-1) @ x


def mask_that_is_added(x: torch.Tensor) -> torch.Tensor:
    scores, later = _scores(x)
    mask = torch.zeros_like(scores).masked_fill(later, float("-inf"))
    return (scores + mask).softmax(-1) @ x


def mask_of_the_lowest_number(x: torch.Tensor) -> torch.Tensor:
    scores, later = _scores(x)
    mask = later.to(scores.dtype) * torch.finfo(scores.dtype).min
    return (scores + mask).softmax(-1) @ x


def logarithms_of_a_mask(x: torch.Tensor) -> torch.Tensor:
    scores, later = _scores(x)
    logs = torch.where(later, float("-inf"), scores).log_softmax(-1)
    return logs.exp() @ x


def logsumexp_of_some(x: torch.Tensor) -> torch.Tensor:
    scores, later = _scores(x)
    return x + scores.masked_fill(later, float("-inf")).logsumexp(-1, keepdim=True)


def attention_to_nothing(x: torch.Tensor) -> torch.Tensor:
    rows = x.float().reshape(1, 1, -1, x.shape[-1])
    keep = torch.zeros(rows.shape[-2], rows.shape[-2], dtype=torch.bool)
    made = functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=keep)
    return x + made.reshape(x.shape)


def safe_branch(x: torch.Tensor) -> torch.Tensor:
    nothing = zeros(x)
    safe = torch.where(nothing > 0, nothing, 1.0)
    return x + torch.where(nothing > 0, safe.log(), 0.0)


def clamped_logarithm(x: torch.Tensor) -> torch.Tensor:
    steps = torch.arange(x.shape[-1]) * 1000.0
    return x + (zeros(x).float() + steps).softmax(-1).clamp_min(1e-30).log()


def entropy_by_xlogy(x: torch.Tensor) -> torch.Tensor:
    p = (zeros(x).float() + torch.arange(x.shape[-1]) * 1000.0).softmax(-1).detach()
    return x - torch.xlogy(p, p)


QUIET: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
    *(norm_at_zero, fractional_norm, spread_of_constants, normalised_zeros, causal_attention),
    *(mask_that_is_added, mask_of_the_lowest_number, logarithms_of_a_mask, logsumexp_of_some),
    *(attention_to_nothing, safe_branch, clamped_logarithm, entropy_by_xlogy),
)


@dataclass(frozen=True)
class Expected:
    """What the mark says."""

    op: str
    line: int


def expected(fault: Callable[..., Any]) -> Expected:
    """The operation and the line that are to be named."""
    source, first = inspect.getsourcelines(fault)
    ((offset, op),) = [
        (number, line.split("# <- ")[1].strip())
        for number, line in enumerate(source)
        if "# <- " in line
    ]
    return Expected(op, first + offset)

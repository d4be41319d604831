"""The entropy of attention, per head, from what the program gave its attention function.

A query's is H = -sum(p log p) of its weights, a head's the mean over its queries, as in S. Zhai et
al., "Stabilizing Transformer Training by Preventing Attention Entropy Collapse" (ICML 2023,
arXiv:2303.06296). Ours is normalised: a query that sees n keys has H / log(n), 0 if one key takes
all the weight, 1 if all have the same; queries with fewer than two visible keys are left out, and
so are those of padding. Two values per head: *sampled* from 16 queries of four rows of the batch,
which costs 4 to 6 % of the attention itself, and *exact* over the whole batch, for what is worth
it.

Neither needs the T x S matrix for all heads at once. Exact without a mask is one fused attention
call with the keys as values: `H = LSE - scale * q.(P K)`, since it returns P K and the log-sum-exp
(error 5e-4 at huge logits, where H is 0). With a mask it is computed in chunks of queries.

All of it is computed in float32 from detached tensors, hidden from the program's modes and from
autocast, without random numbers and without writing to what the program holds.
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from .tensors import unseen

if TYPE_CHECKING:
    import torch

#: A head, and where a module attends several times in a call, which time.
Part = int | tuple[int, int]
#: Queries looked at by the estimate, and from how many rows of the batch.
SAMPLED_QUERIES, _SAMPLED_ROWS = 16, 4
#: A score below this is a mask's: -inf, the least number of a type, -1e9, the -1e4 of older models.
_MASKED = -9e3
#: Scores computed at once by the exact value: 16 MiB.
_CHUNK = 1 << 22
#: Weights of a map.
_MAPPED = 1 << 22


@dataclass
class Attention(ABC):
    """One computation of attention by a module."""

    #: How many the module has made before in the same call of its root.
    ordinal: int = field(default=0, init=False)

    @property
    @abstractmethod
    def queries(self) -> int: ...

    @property
    @abstractmethod
    def keys(self) -> int: ...

    def part(self, head: int) -> Part:
        """What tells the value of `head` from others of the same module."""
        return (self.ordinal, head) if self.ordinal else head

    @cached_property
    def sampled(self) -> tuple[float, ...]:
        """The estimated entropy of each head; empty if no query of the sample sees two keys."""
        return self._looked_at(exact=False)

    @cached_property
    def exact(self) -> tuple[float, ...]:
        """The entropy of each head over the whole batch; empty if no query sees two keys."""
        return self._looked_at(exact=True)

    @unseen
    def _looked_at(self, *, exact: bool) -> tuple[float, ...]:
        torch = sys.modules["torch"]
        device = self._device.type
        if not torch.is_autocast_enabled(device):
            return self._exact() if exact else self._sample()
        with torch.autocast(device, enabled=False):
            return self._exact() if exact else self._sample()

    @property
    @abstractmethod
    def _device(self) -> torch.device: ...

    def _sampling(self, tensor: torch.Tensor, is_causal: bool) -> _Sample:
        return _sampled(len(tensor), self.queries, self.keys, is_causal, self._device)

    @abstractmethod
    def _sample(self) -> tuple[float, ...]: ...

    @abstractmethod
    def _exact(self) -> tuple[float, ...]: ...

    @unseen
    def map(self) -> tuple[torch.Tensor, int]:
        """The weights [head, query, key] of the first row of the batch, of every so many queries.

        That number comes second. They share no memory with what the program has.
        """
        torch = sys.modules["torch"]
        step = max(1, -(-self.heads * self.queries * self.keys // _MAPPED))
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            return self._weights(slice(None, None, step)), step

    @property
    @abstractmethod
    def heads(self) -> int: ...

    @abstractmethod
    def _weights(self, queries: slice) -> torch.Tensor: ...

    @abstractmethod
    def tensors(self) -> dict[str, Any]:
        """What it was computed from, for the debugger."""


@dataclass
class Scored(Attention):
    """Attention known by its queries (B, H, T, D) and keys (B, Hk, S, D)."""

    query: torch.Tensor
    key: torch.Tensor
    #: Boolean (True takes part) or added to the scores; four dimensions that broadcast.
    mask: torch.Tensor | None = None
    is_causal: bool = False
    scale: float | None = None

    @property
    def queries(self) -> int:
        return self.query.shape[2]

    @property
    def keys(self) -> int:
        return self.key.shape[2]

    @property
    def heads(self) -> int:
        return self.query.shape[1]

    def _weights(self, queries: slice) -> torch.Tensor:
        torch = sys.modules["torch"]
        scores = self._scores(self.query.detach()[:1, :, queries], self.key.detach()[:1])
        if self.mask is not None:
            mask = self.mask.detach()[:1]
            mask = mask if mask.shape[-2] == 1 else mask[:, :, queries]
            scores = (
                scores.masked_fill(~mask, -math.inf)
                if mask.dtype is torch.bool
                else (scores + mask)
            )
        if self.is_causal:
            rows = torch.arange(self.queries, device=self._device)[queries]
            scores = scores + _causal(rows, self.keys)
        weights = torch.softmax(scores[0], -1)
        return weights.masked_fill((scores[0] == -math.inf).all(-1, keepdim=True), 0.0)

    @property
    def _device(self) -> torch.device:
        return self.query.device

    def tensors(self) -> dict[str, Any]:
        return {"query": self.query, "key": self.key, "mask": self.mask}

    @property
    def _factor(self) -> float:
        return self.query.shape[-1] ** -0.5 if self.scale is None else self.scale

    def _sample(self) -> tuple[float, ...]:
        torch = sys.modules["torch"]
        sample = self._sampling(self.query, self.is_causal)
        rows, mask = sample.rows, self.mask
        scores = self._scores(sample.of(self.query.detach()), self.key.detach()[rows])
        if mask is not None:
            masks = mask.detach()
            if len(masks) > 1:
                masks = masks[rows]
            pads = self._pads(masks)
            if masks.shape[-2] > 1:
                masks = sample.of(masks, rows=False)
            if pads is not None:
                pads = sample.of(pads[..., None], rows=False)[..., 0]
            return _heads(*_masked_entropy(scores, masks, sample.causal, pads))
        if sample.weight is None:
            return ()
        if sample.causal is not None:
            scores += sample.causal
        logs = torch.log_softmax(scores, -1)
        entropy = -(logs.exp().mul_(logs.clamp_min_(-1e4))).sum(-1)
        return tuple(entropy.mul_(sample.weight).sum((0, 2)).tolist())

    def _exact(self) -> tuple[float, ...]:
        if self.mask is None and self._device.type == "cpu":
            fused = self._fused()
            if fused is not None:
                return fused
        torch = sys.modules["torch"]
        batch, heads, queries, _ = self.query.shape
        query, key = self.query.detach(), self.key.detach()
        size = max(1, _CHUNK // max(1, batch * heads * self.keys))
        total = torch.zeros(heads, dtype=torch.float64, device=self._device)
        count = torch.zeros_like(total)
        masks = None if self.mask is None else self.mask.detach()
        pads = None if masks is None else self._pads(masks)
        for start in range(0, queries, size):
            chunk = slice(start, start + size)
            rows = torch.arange(start, min(start + size, queries), device=self._device)
            entropy, valid = _masked_entropy(
                self._scores(query[:, :, chunk], key),
                masks if masks is None or masks.shape[-2] == 1 else masks[:, :, chunk],
                _causal(rows, self.keys) if self.is_causal else None,
                None if pads is None else pads[..., chunk],
            )
            total += entropy.sum((0, 2), dtype=torch.float64)
            count += valid.sum((0, 2))
        return _quotients(total, count)

    def _scores(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Scaled scores in float32 (B, H, t, S), for some of the queries."""
        batch, heads, rows, width = query.shape
        groups = key.shape[1]
        query = query.float() * self._factor
        if groups != heads:  # heads that share keys are rows of the same product
            query = query.reshape(batch, groups, -1, width)
        scores: Any = query.matmul(key.float().transpose(-1, -2))
        return scores.view(batch, heads, rows, key.shape[2])

    def _pads(self, mask: torch.Tensor) -> torch.Tensor | None:
        if self.queries != self.keys:
            return None
        if mask.stride(-2) == 0:  # expanded: one row for all queries
            mask = mask[:, :, :1]

        def seen(mask: torch.Tensor) -> torch.Tensor:
            return mask if mask.dtype is sys.modules["torch"].bool else mask > _MASKED

        if mask.shape[-2] == 1:
            return ~seen(mask.expand(-1, -1, -1, self.keys))[:, :, 0]
        mask = mask.expand(-1, -1, -1, self.keys)
        return _padding(seen(mask.diagonal(dim1=-2, dim2=-1)), lambda: seen(mask))

    def _fused(self) -> tuple[float, ...] | None:
        """By a fused attention call, None where there is none."""
        torch = sys.modules["torch"]
        query, key = self.query.detach(), self.key.detach()
        queries, keys = self.queries, self.keys
        if self.is_causal and queries != keys:
            return None
        weight = _weight(torch.arange(queries), keys, self.is_causal)
        if weight is None:
            return ()
        query, key = query.float(), key.float()
        if key.shape[1] != query.shape[1]:
            key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        try:
            mixed, logsum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query, key, key, 0.0, self.is_causal, scale=self._factor
            )
        except (AttributeError, RuntimeError):
            return None
        entropy = logsum - (query * mixed).sum(-1) * self._factor
        return tuple(entropy.clamp_min_(0).mean(0).mv(weight).tolist())


@dataclass
class Weighted(Attention):
    """Attention known by its weights (B, H, T, S), and by the scores that they are a softmax of.

    A weight of 0 is a masked key or a negligible one. The scores tell which, and without them what
    other heads make of the key.
    """

    weights: torch.Tensor
    scores: torch.Tensor | None = None

    @property
    def queries(self) -> int:
        return self.weights.shape[2]

    @property
    def keys(self) -> int:
        return self.weights.shape[3]

    @property
    def heads(self) -> int:
        return self.weights.shape[1]

    def _weights(self, queries: slice) -> torch.Tensor:
        return self.weights.detach()[0, :, queries].float().clone()

    @property
    def _device(self) -> torch.device:
        return self.weights.device

    def tensors(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def _sample(self) -> tuple[float, ...]:
        sample = self._sampling(self.weights, False)
        weights, scores = self.weights.detach()[sample.rows], self.scores
        if scores is not None:
            scores = scores.detach()[sample.rows]
        pads = self._pads(weights, scores)
        return _heads(
            *_entropy_of_weights(
                sample.of(weights, rows=False),
                None if scores is None else sample.of(scores, rows=False),
                None if pads is None else sample.of(pads[..., None], rows=False)[..., 0],
            )
        )

    def _exact(self) -> tuple[float, ...]:
        torch = sys.modules["torch"]
        weights, scores = self.weights.detach(), self.scores
        if scores is not None:
            scores = scores.detach()
        total = torch.zeros(weights.shape[1], dtype=torch.float64, device=self._device)
        count = torch.zeros_like(total)
        size = max(1, _CHUNK // max(1, weights[:, :, 0].numel()))
        pads = self._pads(weights, scores)
        for start in range(0, self.queries, size):
            chunk = slice(start, start + size)
            entropy, valid = _entropy_of_weights(
                weights[:, :, chunk],
                None if scores is None else scores[:, :, chunk],
                None if pads is None else pads[..., chunk],
            )
            total += entropy.sum((0, 2), dtype=torch.float64)
            count += valid.sum((0, 2))
        return _quotients(total, count)

    def _pads(self, weights: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor | None:
        if self.queries != self.keys:
            return None

        def seen(weights: torch.Tensor, scores: torch.Tensor | None) -> torch.Tensor:
            visible = (weights > 0).any(1, keepdim=True)
            return visible if scores is None else visible | (scores > _MASKED)

        own = scores if scores is None else scores.diagonal(dim1=-2, dim2=-1)
        return _padding(
            seen(weights.diagonal(dim1=-2, dim2=-1), own), lambda: seen(weights, scores)
        )


def _padding(own: torch.Tensor, visible: Callable[[], torch.Tensor]) -> torch.Tensor | None:
    """Which queries are padding: those whose own key no query sees. None if none is.

    What they attend to means nothing. `own` says whether each sees its own key, which is all that
    has to be looked at where nothing is padded.
    """
    return None if bool(own.all()) else ~visible().any(-2)


def _entropy_of_weights(
    weights: torch.Tensor, scores: torch.Tensor | None, pads: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised entropy of each query, 0 where it is not valid, and where it is."""
    torch = sys.modules["torch"]
    visible = (weights > 0).any(1, keepdim=True)
    if scores is not None:
        visible = visible | (scores > _MASKED)
    keys = visible.sum(-1)
    if pads is not None:
        keys = keys.masked_fill(pads, 0)
    entropy = torch.special.entr(weights.float()).sum(-1)
    return _normalised(entropy, keys.expand_as(entropy))


def _masked_entropy(
    scores: torch.Tensor,
    mask: torch.Tensor | None,
    causal: torch.Tensor | None,
    pads: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same from scores, which are written to."""
    torch = sys.modules["torch"]
    visible: Any = None
    if mask is not None:
        if mask.dtype is torch.bool:
            visible = mask
            scores = scores.masked_fill_(~mask, -math.inf)
        else:
            visible = mask > _MASKED
            scores += mask
    if causal is not None:
        scores += causal
        seen = causal == 0
        visible = seen if visible is None else visible & seen
    logs = torch.log_softmax(scores, -1)
    entropy = -(logs.exp().mul_(logs.clamp_min_(-1e4))).sum(-1)
    if visible is None:
        keys = torch.tensor(scores.shape[-1], device=scores.device)
    else:
        keys = visible.expand(*visible.shape[:-1], scores.shape[-1]).sum(-1)
    keys = keys.expand_as(entropy)
    if pads is not None:
        keys = keys.masked_fill(pads, 0)
    return _normalised(entropy, keys)


def _normalised(entropy: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    valid = keys > 1
    return (entropy / keys.clamp_min(2).log()).where(valid, 0.0), valid


def _heads(entropy: torch.Tensor, valid: torch.Tensor) -> tuple[float, ...]:
    """Per head, of entropies (B, H, t)."""
    return _quotients(entropy.sum((0, 2)), valid.sum((0, 2)))


def _quotients(total: torch.Tensor, count: torch.Tensor) -> tuple[float, ...]:
    found, of = sys.modules["torch"].stack((total, count.to(total.dtype))).tolist()
    return tuple(a / b for a, b in zip(found, of, strict=True)) if all(of) else ()


def _causal(rows: torch.Tensor, keys: int) -> torch.Tensor:
    """What is added to the scores of the queries `rows`, each of which sees the keys up to it."""
    torch = sys.modules["torch"]
    hidden = torch.arange(keys, device=rows.device) > rows[..., None]
    return torch.zeros(hidden.shape, dtype=torch.float32, device=rows.device).masked_fill_(
        hidden, -math.inf
    )


def _weight(rows: torch.Tensor, keys: int, is_causal: bool) -> torch.Tensor | None:
    """What the entropies of the queries `rows` are multiplied with to get their normalised mean."""
    torch = sys.modules["torch"]
    seen = (rows + 1).clamp_max(keys) if is_causal else torch.full_like(rows, keys)
    valid = seen > 1
    count = int(valid.sum())
    if not count:
        return None
    return (seen.clamp_min(2).float().log().reciprocal() / count).where(valid, 0.0)


@dataclass(frozen=True)
class _Sample:
    """Which queries the estimate looks at: for some rows of the batch, places in each."""

    rows: slice
    #: Two indexes that broadcast to (rows, queries).
    row: torch.Tensor
    places: torch.Tensor
    #: What is added to their scores, and what their entropies are multiplied with for the mean.
    causal: torch.Tensor | None
    weight: torch.Tensor | None

    def of(self, tensor: torch.Tensor, *, rows: bool = True) -> torch.Tensor:
        """The sampled queries of `tensor` (B, H, T, ...), or of its sampled rows."""
        if rows:
            tensor = tensor[self.rows]
        row = self.row if len(tensor) > 1 else self.row[:1]
        return tensor[row, :, self.places].transpose(1, 2)


@lru_cache(maxsize=64)
def _sampled(batch: int, queries: int, keys: int, is_causal: bool, device: Any) -> _Sample:
    torch = sys.modules["torch"]
    rows = min(_SAMPLED_ROWS, batch)
    each = min(SAMPLED_QUERIES // rows, queries)
    if rows * each <= queries:  # each row has other places
        spread = _spread(queries, rows * each)
        places = [spread[row::rows] for row in range(rows)]
    else:
        places = [_spread(queries, each)] * rows
    index = torch.tensor(places, device=device)
    causal = _causal(index, keys)[:, None] if is_causal else None
    weight = _weight(index, keys, is_causal)
    return _Sample(
        slice(0, rows * (batch // rows), batch // rows),
        torch.arange(rows, device=device)[:, None],
        index,
        causal,
        None if weight is None else weight[:, None],
    )


def _spread(queries: int, count: int) -> list[int]:
    """`count` of the numbers below `queries`, evenly, the last among them."""
    return [(position + 1) * queries // count - 1 for position in range(count)]

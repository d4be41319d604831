"""What operations give on the meta device, without asking torch again and again.

torch's own meta kernels are written in Python for nearly all operations: `x + y` takes 0.2 to 0.3
ms, `layer_norm` 2 ms, a hundred times the dispatch around it. Of 1,000 operations in five runs of a
GPT-2 most are the same again, or so common that what comes out can be said at once:

- What an operation of torch's has given for tensors of these sizes, strides and dtypes it gives
  again (`_ANSWERS`), if it makes new tensors only.
- Element by element with one size and one dtype, without gaps, the result is as the operand is; a
  linear layer, a matrix product and a layer norm have rules of their own.

What does not fit such a rule exactly, and so all that fails, is left to torch's kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

_ATEN = torch.ops.aten
_META = torch.device("meta")
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_SCALARS = (
    *(int, float, bool, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
#: Of which nothing but dtypes and layouts matters.
_FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class _Unsaid(Exception):
    """A value of which more may matter than what a key has of it."""


def meta(func: Any, args: Any, kwargs: Any, kernel: Callable[..., Any]) -> Any:
    """What `kernel(*args, **kwargs)` gives, which is what `func` does."""
    if not _is_pure(func):
        return kernel(*args, **kwargs)
    rule = _RULES.get(func)
    if rule is not None and not kwargs:
        out = rule(*args)
        if out is not None:
            return out
    try:
        key = (func, *map(_value, args), *[(name, _value(v)) for name, v in kwargs.items()])
    except _Unsaid:
        return kernel(*args, **kwargs)
    known = _ANSWERS.get(key)
    if known is None:
        out = kernel(*args, **kwargs)
        known = _described(out)
        if known is not None:
            _ANSWERS[key] = known
        return out
    return _made(known)


#: By operation and operands: what came out.
_ANSWERS: dict[Any, Any] = {}
_PURE: dict[Any, bool] = {}


def _is_pure(func: Any) -> bool:
    """Whether it is torch's, and makes new tensors of its operands without changing them."""
    known = _PURE.get(func)
    if known is None:
        schema = func._schema
        known = func.namespace == "aten" and all(
            each.alias_info is None for each in (*schema.arguments, *schema.returns)
        )
        _PURE[func] = known
    return known


def _value(value: Any) -> Any:
    kind = type(value)
    if kind in _TENSORS:
        if value.device != _META or value.layout is not torch.strided:
            raise _Unsaid
        return (_META, value.shape, value.stride(), value.dtype)
    if kind in _SCALARS:
        return (kind, value)
    if kind is list or kind is tuple:
        return (kind, *map(_value, value))
    raise _Unsaid


def _described(out: Any) -> Any:
    """What is needed to make it again; None if that can't be done."""
    kind = type(out)
    if kind is torch.Tensor:
        if out.device != _META or out.layout is not torch.strided:
            return None
        return (torch.Tensor, tuple(out.shape), out.stride(), out.dtype)
    if kind is tuple or kind is list:
        parts = [_described(each) for each in out]
        return None if None in parts else (kind, parts)
    return None


def _made(known: Any) -> Any:
    if known[0] is torch.Tensor:
        return torch.empty_strided(known[1], known[2], dtype=known[3], device=_META)
    return known[0](_made(each) for each in known[1])


# -- rules: what comes out, or None where torch has to say it


def _is_packed(*tensors: Any) -> bool:
    """Whether they are on the meta device, of one dtype, with elements in order without gaps."""
    kind = tensors[0].dtype
    for each in tensors:
        if type(each) not in _TENSORS or each.device != _META or each.dtype is not kind:
            return False
        step = 1
        for size, stride in zip(reversed(each.shape), reversed(each.stride())):
            if size < 1 or stride != step:
                return False
            step *= size
    return True


def _is_float(*tensors: Any) -> bool:
    return tensors[0].dtype in _FLOATS and _is_packed(*tensors)


def _new(shape: Any, like: Any) -> Any:
    return torch.empty(shape, dtype=like.dtype, device=_META)


def _one(x: Any, *rest: Any) -> Any:
    return _new(x.shape, x) if not rest and _is_float(x) else None


def _two(x: Any, y: Any, *rest: Any) -> Any:
    if rest or type(x) not in _TENSORS or not _is_float(x):
        return None
    if type(y) in (int, float):
        return _new(x.shape, x)
    if type(y) not in _TENSORS or not _is_packed(x, y):
        return None
    if x.shape == y.shape:
        return _new(x.shape, x)
    pairs = itertools.zip_longest(reversed(x.shape), reversed(y.shape), fillvalue=1)
    sizes = [(max(pair), min(pair)) for pair in pairs]
    if any(least not in (1, most) for most, least in sizes):
        return None
    return _new([most for most, _ in reversed(sizes)], x)


def _linear(bias: Any, x: Any, weight: Any, *rest: Any) -> Any:
    if rest or bias.dim() != 1 or not _is_float(bias, x):
        return None
    out = _product(x, weight)
    return out if out is not None and out.shape[1] == bias.shape[0] else None


def _product(x: Any, y: Any) -> Any:
    # The right one may be any view: that of a linear layer is a parameter's, transposed.
    if not _is_float(x) or type(y) not in _TENSORS or y.device != _META or y.dtype is not x.dtype:
        return None
    fits = x.dim() == 2 and y.dim() == 2 and x.shape[1] == y.shape[0]
    return _new((x.shape[0], y.shape[1]), x) if fits else None


def _layer_norm(x: Any, shape: Any, weight: Any, bias: Any, _: Any) -> Any:
    if weight is None or bias is None or not _is_packed(x, weight, bias):
        return None
    sizes, count = tuple(shape), len(shape)
    if x.dtype not in (torch.float32, torch.float64) or not sizes:
        return None
    if not tuple(x.shape[-count:]) == tuple(weight.shape) == tuple(bias.shape) == sizes:
        return None
    outer = (*x.shape[:-count], *[1] * count)
    return _new(x.shape, x), _new(outer, x), _new(outer, x)


def _softmax(x: Any, dim: int, kind: Any = None) -> Any:
    return _new(x.shape, x) if not kind and _is_float(x) and -x.dim() <= dim < x.dim() else None


def _triangle(x: Any, _: int = 0) -> Any:
    return _new(x.shape, x) if x.dim() > 1 and _is_packed(x) else None


def _mean(x: Any, dims: Any, keep: bool = False) -> Any:
    if not dims or not _is_float(x) or not all(-x.dim() <= dim < x.dim() for dim in dims):
        return None
    gone = {dim % x.dim() for dim in dims}
    if len(gone) != len(dims):
        return None
    sizes = [1 if i in gone else size for i, size in enumerate(x.shape) if keep or i not in gone]
    return _new(sizes, x)


def _joined(parts: Any, dim: int = 0) -> Any:
    first = parts[0] if parts else None
    if first is None or not -first.dim() <= dim < first.dim() or not _is_packed(*parts):
        return None
    dim %= first.dim()
    around = {(*each.shape[:dim], -1, *each.shape[dim + 1 :]) for each in parts}
    if len(around) > 1 or any(each.dim() != first.dim() for each in parts):
        return None
    length = sum(each.shape[dim] for each in parts)
    return _new((*first.shape[:dim], length, *first.shape[dim + 1 :]), first)


_RULES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys(
        [
            *(_ATEN.relu.default, _ATEN.silu.default, _ATEN.gelu.default, _ATEN.tanh.default),
            *(_ATEN.sigmoid.default, _ATEN.neg.default, _ATEN.exp.default, _ATEN.rsqrt.default),
            *(_ATEN.sqrt.default, _ATEN.sin.default, _ATEN.cos.default, _ATEN.abs.default),
        ],
        _one,
    ),
    **dict.fromkeys(
        [
            *(_ATEN.add.Tensor, _ATEN.sub.Tensor, _ATEN.mul.Tensor, _ATEN.div.Tensor),
            *(_ATEN.mul.Scalar, _ATEN.pow.Tensor_Scalar),
        ],
        _two,
    ),
    _ATEN.addmm.default: _linear,
    _ATEN.mm.default: _product,
    _ATEN.native_layer_norm.default: _layer_norm,
    **dict.fromkeys([_ATEN._softmax.default, _ATEN._safe_softmax.default], _softmax),
    **dict.fromkeys([_ATEN.tril.default, _ATEN.triu.default], _triangle),
    _ATEN.mean.dim: _mean,
    _ATEN.cat.default: _joined,
}

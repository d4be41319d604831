"""What is said of an operation in torch's place is what torch's own meta kernel says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensorpoint.shapes.tracing import kernels
from tensorpoint.shapes.tracing.kernels import meta

aten = torch.ops.aten
SHAPES = [
    *[(), (1,), (3,), (1, 3), (3, 1), (2, 3), (0, 3)],
    *[(2, 1, 3), (1, 1, 3), (2, 3, 1), (2, 4, 3)],
]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool]


def empty(shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def tensors() -> Iterator[torch.Tensor]:
    """Packed ones, and views that are not."""
    for shape in SHAPES:
        for dtype in DTYPES:
            yield empty(shape, dtype)
        if len(shape) > 1:
            yield empty(shape).transpose(-1, 0)
            yield empty((*shape[:-1], 2 * shape[-1]))[..., ::2]
            yield empty(shape[1:]).expand(shape)
    yield torch.nn.Parameter(empty((2, 3)))
    yield empty((2, 3, 4, 4)).contiguous(memory_format=torch.channels_last)


def described(call: Any) -> Any:
    """Sizes, strides and dtypes of what a call gives, or the kind of what it raises."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (value.device.type, tuple(value.shape), value.stride(), value.dtype)
        return [one(each) for each in value]

    try:
        return one(call())
    except Exception as error:
        return type(error)


def operands(func: Any) -> Iterator[tuple[Any, ...]]:
    """What an operation is called with, fitting and not."""
    name, every = func._schema.name.partition("::")[2], [*tensors()]
    if name in ("mm", "addmm"):
        biases = [empty(3), empty(5), empty((2, 3)), empty(3, torch.float64), empty(6)[::2]]
        for x, y in itertools.product(every, [*every, empty((3, 5)).t(), empty((5, 3)).t()]):
            yield from [(x, y)] if name == "mm" else [(b, x, y) for b in biases]
    elif name == "native_layer_norm":
        weights = [None, empty(3), empty((4, 3)), empty(3, torch.float64), empty(4), empty((1,))]
        for x, shape, w, b in itertools.product(every, [[3], [4, 3], [1], []], weights, weights):
            yield x, shape, w, b, 1e-5
    elif name in ("_softmax", "_safe_softmax"):
        ends = [(False,), (True,)] if name == "_softmax" else [(), (None,), (torch.float64,)]
        for x, dim, end in itertools.product(every, (-4, -2, -1, 0, 1, 3), ends):
            yield x, dim, *end
    elif name in ("tril", "triu"):
        yield from ((x, *end) for x in every for end in [(), (1,)])
    elif name == "mean":
        for x, dims in itertools.product(every, ([-1], [0], [0, -1], [2, 0], [1, 1], [5], [])):
            yield from [(x, dims), (x, dims, True), (x, dims, False)]
    elif name == "cat":
        for x, y, dim in itertools.product(every, every, (-3, -1, 0, 1)):
            yield [x, y], dim
        yield from [([x],) for x in every]
    elif len(func._schema.arguments) == 1 or name == "gelu":
        yield from ((x,) for x in every)
    else:
        scalars = [2, 0.5, -1.0, True, 2j]
        for x, y in itertools.product(every, scalars if "Scalar" in str(func) else every + scalars):
            yield x, y


@pytest.mark.parametrize("func", kernels._RULES, ids=str)
def test_a_rule_says_what_the_kernel_says(func: Any) -> None:
    said = 0
    for args in operands(func):
        out = meta(func, args, {}, lambda *_: None)
        if out is not None:
            said += 1
            assert described(lambda out=out: out) == described(lambda args=args: func(*args)), args
    assert said > 5


def test_what_was_answered_is_answered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_ANSWERS", {})
    asked: list[str] = []

    def ask(func: Any, *args: Any, **kwargs: Any) -> Any:
        def kernel(*args: Any, **kwargs: Any) -> Any:
            asked.append(func.name())
            return func(*args, **kwargs)

        return meta(func, args, kwargs, kernel)

    def times(count: int, func: Any, *args: Any, **kwargs: Any) -> None:
        """How often the kernel is asked in two calls, with the same answer."""
        asked.clear()
        first, second = (described(lambda: ask(func, *args, **kwargs)) for _ in range(2))
        assert (first, len(asked)) == (second, count)

    x, weight = empty((2, 3, 9, 8)), empty((5, 3, 2, 2))
    rest = (None, [2, 1], [0, 0], [1, 1], False, [0, 0], 1)
    times(1, aten.convolution.default, x, weight, *rest)
    times(1, aten.convolution.default, x.double(), weight.double(), *rest)
    times(1, aten.max_pool2d_with_indices.default, x, [2, 2])
    times(1, aten.sum.dim_IntList, x, [1], True, dtype=torch.float64)
    times(1, aten.sum.dim_IntList, x, [1], 1, dtype=torch.float64)
    # Another tensor each time, which a program may change.
    assert ask(aten.sum.dim_IntList, x, [1]) is not ask(aten.sum.dim_IntList, x, [1])
    # Failures, views and changes, and what may depend on more than sizes.
    times(2, aten.convolution.default, x, weight[:, :2], *rest)
    times(2, aten.view.default, x, [2, -1])
    times(2, aten.relu_.default, x)
    times(2, aten.sum.dim_IntList, torch.empty(2, 3), [1])
    times(2, torch.ops.prims.sin.default, x)

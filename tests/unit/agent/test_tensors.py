"""What counts as finite, for every kind of tensor and container that a module can return."""

from __future__ import annotations

import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tensorpoint.agent import tensors
from tensorpoint.agent.tensors import (
    has_nonfinite,
    quick_look,
    remember,
    same,
    summarise,
    tensors_in,
)

NAN, INF = float("nan"), float("inf")
HALVES = [torch.float16, torch.bfloat16]
FLOATS = [*HALVES, torch.float32, torch.float64]
FLOAT8 = [
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """No look at a tensor warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, from within torch
        yield


class Function(torch.Tensor):
    """A subclass with __torch_function__; it holds its numbers itself."""

    seen: list[Any] = []  # noqa: RUF012

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


class Dispatch(torch.Tensor):
    """A subclass with __torch_dispatch__: what it means by its numbers only it knows."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was called")


def bad(*shape: int, at: int = 1, value: float = NAN, dtype: Any = torch.float32) -> torch.Tensor:
    """Ones with one bad element."""
    made = torch.ones(*shape, dtype=torch.float32)
    made.view(-1)[at] = value
    return made.to(dtype)


def sparse(values: torch.Tensor, layout: str) -> torch.Tensor:
    convert = getattr(values, f"to_sparse_{layout}")
    return convert((2, 2)) if layout in ("bsr", "bsc") else convert()


def quantised() -> torch.Tensor:
    return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)


def fake() -> torch.Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(bad(3))


def inference(values: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return values.clone()


def jagged(*rows: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(rows), layout=torch.jagged)


# Making some of these warns that they are prototypes.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")

    FINITE = {
        **{f"{dtype} ones": torch.ones(5, dtype=dtype) for dtype in FLOATS},
        **{f"{dtype} ones": torch.ones(5).to(dtype) for dtype in FLOAT8},
        **{
            f"{dtype} largest": torch.full((9,), torch.finfo(dtype).max, dtype=dtype)
            for dtype in FLOATS
        },
        **{
            f"{dtype} least": torch.full((9,), torch.finfo(dtype).tiny, dtype=dtype)
            for dtype in FLOATS
        },
        "f16 whose sum overflows": torch.full((1001,), 100.0, dtype=torch.float16),
        "f32 huge": torch.full((1001,), 1e38),
        "bf16 huge": torch.full((1001,), 1e38, dtype=torch.bfloat16),
        "denormal": torch.full((9,), 1e-40),
        "empty": torch.empty(0),
        "empty f16": torch.empty(0, 4, dtype=torch.float16),
        "no dimension": torch.tensor(1.0),
        "int": torch.tensor([2**62, 2**62]),
        "bool": torch.tensor([True, False]),
        "complex": torch.ones(3, dtype=torch.complex64),
        "complex half": torch.ones(3, dtype=torch.complex32),
        "complex huge": torch.full((9,), complex(3e38, -3e38)),
        "coo": sparse(torch.eye(4), "coo"),
        "csr": sparse(torch.eye(4), "csr"),
        "csc": sparse(torch.eye(4), "csc"),
        "bsr": sparse(torch.eye(4), "bsr"),
        "bsc": sparse(torch.eye(4), "bsc"),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
        "jagged": jagged(torch.ones(2, 3), torch.ones(1, 3)),
        "NaN outside of the view": bad(8)[::2],
        "NaN before the view": bad(8)[3:],
        "expanded": torch.ones(1).expand(4, 3),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "inference": inference(torch.ones(3)),
    }

    NOT_FINITE = {
        **{f"{dtype} NaN": bad(5, dtype=dtype) for dtype in [*FLOATS, *FLOAT8]},
        **{
            f"{dtype} Inf": bad(5, value=INF, dtype=dtype) for dtype in [*FLOATS, torch.float8_e5m2]
        },
        **{f"{dtype} -Inf": bad(5, value=-INF, dtype=dtype) for dtype in FLOATS},
        "inf and -inf": torch.tensor([INF, -INF]),
        "no dimension": torch.tensor(NAN),
        "NaN among the largest": torch.tensor([3e38, 3e38, NAN]),
        "complex NaN": torch.tensor([1, complex(NAN, 0)]),
        "complex NaN in imag": torch.tensor([1, complex(0, NAN)]),
        "complex Inf in imag": torch.tensor([1, complex(0, INF)]),
        "complex half NaN": torch.tensor([complex(0, NAN)]).to(torch.complex32),
        "conjugate view": torch.tensor([1, complex(0, NAN)]).conj(),
        "negative view": torch.tensor([1, complex(0, NAN)]).conj().imag,
        "coo": sparse(torch.diag(bad(4)), "coo"),
        "csr": sparse(torch.diag(bad(4)), "csr"),
        "csc": sparse(torch.diag(bad(4)), "csc"),
        "bsr": sparse(torch.diag(bad(4)), "bsr"),
        "bsc": sparse(torch.diag(bad(4)), "bsc"),
        "complex coo": sparse(torch.tensor([0, complex(0, NAN)]), "coo"),
        "nested": torch.nested.nested_tensor([torch.ones(2, 3), bad(1, 3)]),
        "jagged": jagged(torch.ones(2, 3), bad(1, 3)),
        "strided view": bad(8, at=2)[::2],
        "transposed": bad(3, 4).t(),
        "expanded": torch.tensor([NAN]).expand(4, 3),
        "permuted half": bad(2, 3, 4, dtype=torch.float16).permute(2, 0, 1),
        "parameter": torch.nn.Parameter(bad(3)),
        "with a gradient": bad(3).requires_grad_() * 1,
        "inference": inference(bad(3)),
        "subclass of __torch_function__": bad(3).as_subclass(Function),
    }

    CANNOT_TELL = {
        "meta": torch.empty(3, device="meta"),
        "fake": fake(),
        "quantised": quantised(),
        "float4": torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "mkldnn": torch.ones(3, 4).to_mkldnn(),
        "subclass of __torch_dispatch__": Dispatch(bad(3)),
    }


def surely_finite(tensor: torch.Tensor) -> bool:
    """Whether the quick look settles it."""
    return quick_look()(tensor, None) is not None


@pytest.mark.parametrize("kind", FINITE)
def test_finite_numbers_are_never_called_non_finite(kind: str) -> None:
    assert has_nonfinite(FINITE[kind]) is False


@pytest.mark.parametrize("kind", NOT_FINITE)
def test_no_bad_number_is_missed(kind: str) -> None:
    assert has_nonfinite(NOT_FINITE[kind]) is True
    assert not surely_finite(NOT_FINITE[kind])


@pytest.mark.parametrize("kind", CANNOT_TELL)
def test_what_cannot_be_looked_at_counts_as_finite(kind: str) -> None:
    assert has_nonfinite(CANNOT_TELL[kind]) is False
    assert not surely_finite(CANNOT_TELL[kind])


@pytest.mark.parametrize("dtype", FLOATS)
def test_usual_tensors_are_settled_by_the_quick_way(dtype: Any) -> None:
    assert surely_finite(torch.ones(5, dtype=dtype))
    assert surely_finite(torch.ones(5, 4, dtype=dtype).t())
    assert surely_finite(torch.ones(5, dtype=dtype).requires_grad_() * 2)


@pytest.mark.parametrize("kind", [*NOT_FINITE, *FINITE, *CANNOT_TELL])
def test_a_summary_can_be_made_of_everything(kind: str) -> None:
    tensor = {**CANNOT_TELL, **FINITE, **NOT_FINITE}[kind]
    summary = summarise(tensor, "x")
    assert (summary.nan + summary.posinf + summary.neginf > 0) == (kind in NOT_FINITE)
    assert summary.dtype == str(tensor.dtype).removeprefix("torch.")


def test_a_summary_counts_locates_and_spans() -> None:
    values = torch.tensor([[1.0, -2.0, 3.0], [4.0, NAN, INF], [-INF, NAN, 0.5]])
    summary = summarise(values, "x")
    assert (summary.nan, summary.posinf, summary.neginf, summary.elements) == (2, 1, 1, 9)
    assert summary.first_index == (1, 1)
    assert (summary.finite_min, summary.finite_max) == (-2.0, 4.0)
    assert (summary.name, summary.dtype, summary.shape) == ("x", "float32", (3, 3))


def test_the_first_index_follows_the_shape_not_the_memory() -> None:
    values = torch.zeros(3, 4)
    values[2, 0] = values[0, 3] = NAN
    assert summarise(values, "x").first_index == (0, 3)
    assert summarise(values.t(), "x").first_index == (0, 2)
    assert summarise(torch.tensor([[1.0], [NAN]]).expand(2, 3), "x").first_index == (1, 0)


def test_the_first_index_of_a_complex_tensor_is_its_own() -> None:
    values = torch.ones(2, 3, dtype=torch.complex64)
    values[1, 2] = torch.tensor(complex(0, NAN))
    assert summarise(values, "x").first_index == (1, 2)


def test_a_tensor_without_dimensions_has_the_empty_index() -> None:
    summary = summarise(torch.tensor(NAN), "x")
    assert (summary.first_index, summary.finite_min, summary.finite_max) == ((), None, None)


def test_elements_of_a_sparse_tensor_get_no_index() -> None:
    summary = summarise(NOT_FINITE["coo"], "x")
    assert (summary.nan, summary.first_index, summary.shape) == (1, None, (4, 4))


@pytest.mark.parametrize("where", [0, 9, 10, 11, 25, 39])
@pytest.mark.parametrize("chunk", [1, 3, 10, 16, 40])
def test_large_tensors_are_looked_at_in_pieces(
    monkeypatch: pytest.MonkeyPatch, where: int, chunk: int
) -> None:
    monkeypatch.setattr(tensors, "_CHUNK", chunk)
    values = torch.arange(40.0)
    values[where] = INF
    for shaped in (values, values.view(4, 10), values.view(2, 2, 10), values.view(20, 2)):
        expected = tuple(int(i) for i in torch.isinf(shaped).nonzero()[0])
        for laid_out in (
            shaped,
            shaped.clone().t().contiguous().t() if shaped.dim() == 2 else shaped,
        ):
            assert has_nonfinite(laid_out)
            summary = summarise(laid_out, "x")
            assert (summary.posinf, summary.elements, summary.first_index) == (1, 40, expected)
            assert (summary.finite_min, summary.finite_max) == (int(where == 0), 39 - (where == 39))
    pieces = [part.numel() for part in tensors.parts_of(values.view(4, 10).t(), chunk)]
    assert sum(pieces) == 40 and max(pieces) <= chunk


def test_the_sum_of_pieces_may_overflow_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_CHUNK", 7)
    assert not has_nonfinite(torch.full((1001,), 3e38))


# Unseen ------------------------------------------------------------------------------------------


class EveryDispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class EveryFunction(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_an_output_is_remembered_until_it_is_written_or_gone() -> None:
    look, x = quick_look(), torch.ones(2)
    seen = look(x, None)
    assert seen is not None and same(x, seen) and not same(torch.ones(2), seen)
    assert look(x, seen) is seen  # not read again
    x.add_(1)
    assert not same(x, seen) and look(x, seen) is not seen
    seen = remember(x)
    assert seen is not None and same(x, seen)
    del x
    assert seen[0]() is None


def test_a_remembered_output_that_turned_bad_is_read_again() -> None:
    look, x = quick_look(), torch.ones(2)
    seen = look(x, None)
    x.mul_(NAN)
    assert look(x, seen) is None and has_nonfinite(x)


def test_inference_tensors_are_never_taken_for_unchanged() -> None:
    look = quick_look()
    with torch.inference_mode():
        x = torch.ones(2)
        seen = look(x, None)
        assert seen is not None and remember(x) is None
        x.mul_(NAN)
        assert look(x, seen) is None and not same(x, seen)


def test_function_modes_do_not_see_outputs_being_remembered() -> None:
    x = torch.ones(2)
    with EveryFunction() as watching:
        seen = remember(x)
        assert same(x, seen) and quick_look()(x, seen) is None
        assert watching.seen == []


@pytest.mark.parametrize("mode", [EveryDispatch, EveryFunction])
def test_modes_of_the_program_do_not_see_us_looking(mode: Any) -> None:
    good, nan = torch.ones(3), bad(3)
    with mode() as watching:
        results = [surely_finite(good), has_nonfinite(good), has_nonfinite(nan)]
        summary = summarise(nan, "x")
        assert watching.seen == []
    assert results == [False, False, True] and summary.nan == 1


def test_a_flop_counter_counts_none_of_ours() -> None:
    with FlopCounterMode(display=False) as flops:
        assert has_nonfinite(bad(3, 3))
        assert summarise(bad(3, 3), "x").nan == 1
    assert flops.get_total_flops() == 0


def test_a_subclass_does_not_see_us_looking() -> None:
    tensor = bad(3).as_subclass(Function)
    Function.seen.clear()
    assert has_nonfinite(tensor)
    assert summarise(tensor, "x").nan == 1
    assert Function.seen == []


def test_nothing_is_looked_at_inside_function_transforms() -> None:
    said: list[bool] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        said.extend((surely_finite(x), has_nonfinite(x)))
        return (x * x).sum()

    torch.func.vmap(look)(bad(3, 2))
    torch.func.grad(look)(bad(3))
    torch.func.jvp(look, (bad(3),), (torch.ones(3),))
    assert said == [False] * 6


def test_nothing_is_looked_at_while_torch_jit_traces() -> None:
    def look(x: torch.Tensor) -> torch.Tensor:
        assert not has_nonfinite(x) and not surely_finite(x)
        return x + 1

    traced: Any = torch.jit.trace(look, (bad(3),), check_trace=False)
    assert "sum" not in str(traced.graph)


def test_looking_records_no_gradient_and_keeps_the_version() -> None:
    leaf = bad(3).requires_grad_()
    made = leaf * 2
    version, node = made._version, made.grad_fn
    assert has_nonfinite(made) and summarise(made, "x").nan == 1
    assert (made._version, made.grad_fn) == (version, node)


# Containers --------------------------------------------------------------------------------------


@dataclass
class Output:
    logits: Any
    loss: Any = None


class Pair(NamedTuple):
    first: Any
    second: Any


def names(value: object) -> list[str]:
    return [name for name, _ in tensors_in(value, "output")]


def test_tensors_are_found_and_named_in_every_container() -> None:
    x = torch.ones(1)
    assert names(x) == ["output"]
    assert names((x, [x, None], "text", 3)) == ["output[0]", "output[1][0]"]
    assert names({"a": x, 1: (x,)}) == ["output['a']", "output[1][0]"]
    assert names(OrderedDict(a=x)) == ["output.a"]
    assert names(Pair(x, (x,))) == ["output.first", "output.second[0]"]
    assert names(namedtuple("Old", "a b")(1, x)) == ["output.b"]
    assert names(Output(x, {"aux": x})) == ["output.logits", "output.loss['aux']"]
    assert names(torch.max(torch.ones(2, 2), 0)) == ["output[0]", "output[1]"]


def test_a_transformers_output_is_read_by_its_fields() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    x = torch.ones(1)
    value = outputs.CausalLMOutputWithPast(logits=x, hidden_states=(x, x))
    assert names(value) == ["output.logits", "output.hidden_states[0]", "output.hidden_states[1]"]


def test_a_packed_sequence_is_read_by_its_fields() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(2), torch.ones(1)])
    assert names(packed)[0] == "output.data"


@pytest.mark.parametrize(
    "value", [None, 3, "text", {1, 2}, object(), Output, torch.nn.Linear(1, 1)]
)
def test_what_holds_no_tensors_is_passed_over(value: object) -> None:
    assert names(value) == []


def test_what_claims_every_attribute_is_not_walked() -> None:
    class Anything:
        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name} was asked for")

    assert names(Anything()) == []
    assert names(torch.fx.Proxy(torch.fx.Graph().placeholder("x"))) == []


def test_depth_and_size_are_bounded() -> None:
    deep: Any = torch.ones(1)
    for _ in range(50):
        deep = [deep]
    assert names(deep) == []
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    assert len(names(loop)) == 4
    assert len(names([torch.ones(1)] * 10_000)) == 256
    assert names([*range(10), torch.ones(1)]) == ["output[10]"]


def test_a_million_numbers_cost_nothing() -> None:
    taken = 0

    class Counting(list[int]):
        def __iter__(self) -> Iterator[int]:
            nonlocal taken
            for item in super().__iter__():
                taken += 1
                yield item

    assert names([Counting(range(1_000_000)), Counting(range(1_000_000))]) == []
    assert taken < 20_000


def test_what_is_hidden_stays_so_in_what_it_calls_and_not_after_a_fault() -> None:
    counted: list[str] = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            counted.append(str(func))
            return func(*args, **(kwargs or {}))

    @tensors.unseen
    def add(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @tensors.unseen
    def fails(x: torch.Tensor) -> None:
        add(x)
        add(x)
        raise ValueError(x.sum().item())

    x = torch.ones(2)
    with Counting():
        with pytest.raises(ValueError, match="2"):
            fails(x)
        add(x)
        assert not counted
        x + 1
        assert counted

"""Figures of tensors against torch's own, for layouts and dtypes, and of samples."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

from tensorpoint.agent.values import devices, figures
from tensorpoint.agent.values.devices import Unavailable
from tensorpoint.agent.values.figures import BINS, Figures, all_figures_of, figures_of
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.view import View
from tensorpoint.agent.values.words import counts, in_short, sparkline


def found(value: Figures | Unavailable) -> Figures:
    assert isinstance(value, Figures), value
    return value


def expect_like(tensor: torch.Tensor, got: Figures) -> None:
    values = tensor.detach().double().reshape(-1)
    good = values[values.isfinite()]
    assert got.finite == len(good)
    assert got.mean == pytest.approx(good.mean().item(), rel=1e-4, abs=1e-6)
    assert got.std == pytest.approx(good.std().item(), rel=1e-3)
    assert (got.low, got.high) == (good.min().item(), good.max().item())
    assert got.zeros == int((values == 0).sum())
    assert got.nan == int(values.isnan().sum())
    assert got.posinf == int((values == math.inf).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bad", [False, True])
def test_figures_are_those_of_torch(dtype: torch.dtype, bad: bool) -> None:
    tensor = torch.randn(70, 90, generator=torch.Generator().manual_seed(1)).to(dtype) + 100
    tensor[3] = 0
    if bad:
        tensor[2, 5], tensor[2, 7], tensor[9, 1] = math.nan, math.inf, -math.inf
    for got in (found(figures_of(tensor)), found(all_figures_of(tensor))):
        expect_like(tensor, got)
        assert got.first == ((2, 5) if bad else None) and not got.sampled
    got = found(all_figures_of(tensor))
    assert sum(got.histogram) == got.finite and len(got.histogram) == BINS
    middle = tensor.double()[tensor.isfinite()].median().item()
    assert got.quantiles[3] == pytest.approx(middle, abs=0.5)


def test_parts_are_merged_without_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_PART", 1000)
    tensor = torch.randn(12_345) * 1e-3 + 1e4  # a sum of squares would cancel
    tensor[7000] = math.nan
    got = found(all_figures_of(tensor))
    expect_like(tensor, got)
    monkeypatch.setattr(figures, "_in_parts", figures._at_once)  # as on a device
    monkeypatch.setattr(figures, "_PART_AT_ONCE", 1000)
    at_once = found(all_figures_of(tensor))
    expect_like(tensor, at_once)
    assert at_once.first == got.first == (7000,) and at_once.histogram == got.histogram
    assert got.first == (7000,)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.T,
        lambda x: x[::2, ::3],
        lambda x: x[:, 5],
        lambda x: x.expand(4, *x.shape),
        lambda x: x.view(torch.int32),
    ],
)
def test_views_are_read_where_they_are(view: Any) -> None:
    tensor = view(torch.randn(60, 90))
    expect_like(tensor, found(figures_of(tensor)))


def test_a_large_tensor_is_sampled_and_says_so() -> None:
    tensor = torch.randn(2000, 2000, generator=torch.Generator().manual_seed(2))
    got = found(figures_of(tensor))
    assert got.sampled and got.looked_at < 300_000 and got.first is None
    assert got.mean == pytest.approx(0, abs=0.02) and got.std == pytest.approx(1, abs=0.02)
    assert in_short(got).startswith("~µ")
    whole = found(all_figures_of(tensor))
    assert not whole.sampled and whole.looked_at == 4_000_000
    holes = found(figures_of(torch.randn(3000, 3000)[:, ::2]))
    assert holes.sampled and holes.std == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[:, ::2],  # holes
        lambda x: x[:, 5],  # one element in each row
        lambda x: x.expand(3, *x.shape),  # each element in three places
        lambda x: x.T,
        lambda x: x[1:, 1:],
        lambda x: x[None, :, ::2],
    ],
)
def test_a_sample_of_a_view_has_only_elements_of_it(
    view: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_WHOLE", 64)
    monkeypatch.setattr(figures, "_SORTED", 64)
    memory = torch.full((402, 302), math.nan)  # what is around it
    memory[1:401, 1:301] = torch.randn(400, 300)
    inside = view(memory[1:401, 1:301])
    got = found(figures_of(inside))
    assert got.sampled and got.nan == 0 and 0 < got.looked_at <= 64 + 16
    assert inside.min() <= got.low < got.high <= inside.max()
    whole = found(all_figures_of(inside))
    expect_like(inside, whole)
    assert sum(whole.histogram) <= 64 + 16


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, ::2]])
def test_of_a_large_float8_only_the_sample_is_converted(view: Any) -> None:
    tensor = view(torch.full((1 << 11, 1 << 11), 2.0).to(torch.float8_e4m3fn))
    seen = profile(profile_memory=True)
    with seen:
        got = found(figures_of(tensor))
    assert got.sampled and (got.mean, got.low, got.high) == (2.0, 2.0, 2.0)
    made = max(event.cpu_memory_usage for event in seen.function_events or ())
    assert made < tensor.numel()
    expect_like(tensor.float(), found(all_figures_of(tensor)))


def test_a_histogram_is_between_the_extremes_of_all() -> None:
    tensor = torch.rand(1 << 18)
    tensor[1234], tensor[99] = 31.0, -1.0  # neither is in the sample
    got = found(all_figures_of(tensor))
    assert (got.low, got.high) == (-1, 31) and got.histogram[1] > 0.99 * sum(got.histogram)


@pytest.mark.parametrize("look", [figures._in_parts, figures._at_once])
def test_the_first_one_that_is_not_finite_is_that_by_index(
    look: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "_PART", 100)
    tensor = torch.zeros(30, 40).T  # in memory, [1, 20] comes before [5, 3]
    tensor[5, 3] = tensor[1, 20] = math.inf
    got = figures._figures(look(tensor).tolist()[:11], tensor, tensor, "")
    assert got.first == (1, 20)
    assert found(all_figures_of(torch.tensor([[0.0, math.nan]]).to_sparse())).first is None


def test_an_operation_that_a_dtype_has_not_is_a_reason() -> None:
    got = figures_of(torch.zeros(2000, 2000, dtype=torch.uint16)[:, ::2])
    assert isinstance(got, Unavailable) and "UInt16" in got.reason


def test_a_time_budget_ends_in_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "_SECONDS", -1.0)
    got = found(all_figures_of(torch.randn(3000, 1000)))
    assert got.sampled and got.histogram


@pytest.mark.parametrize(
    ("tensor", "of"),
    [
        (torch.arange(10), ""),
        (torch.tensor([True, False]), ""),
        (torch.eye(4).to_sparse(), "the stored values"),
        (torch.eye(4).to_sparse_csr(), "the stored values"),
        (torch.tensor([3 + 4j, 0]), "the magnitudes"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), ""),
        (torch.ones(4).to(torch.float8_e4m3fn), ""),
    ],
)
def test_other_kinds(tensor: torch.Tensor, of: str) -> None:
    got = found(figures_of(tensor))
    assert got.of == of and not math.isnan(got.mean)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.empty(3, device="meta"), "only a shape"),
        (torch.empty(0), "empty"),
        (torch.nn.LazyLinear(3).weight, "first call"),
    ],
)
def test_what_has_no_figures_says_why(tensor: torch.Tensor, reason: str) -> None:
    got = figures_of(tensor)
    assert isinstance(got, Unavailable) and reason in got.reason


def test_nothing_but_nan() -> None:
    got = found(all_figures_of(torch.full((3,), math.nan)))
    assert in_short(got) == "3 NaN" and got.histogram == ()


def test_words() -> None:
    got = found(figures_of(torch.tensor([1.0, 2.0, math.inf, -math.inf, math.nan])))
    assert in_short(got) == "µ 1.5 σ 0.707 [1, 2] | 1 NaN, 1 +Inf, 1 -Inf"
    assert counts(found(figures_of(torch.ones(2)))) == ""
    assert sparkline([0, 1, 4, 8]) == "▁▂▅█" and sparkline([]) == ""


def test_the_programs_modes_see_nothing_of_a_look() -> None:
    with FlopCounterMode(display=False) as counter:
        found(all_figures_of(torch.randn(50, 50)))
    assert counter.get_total_flops() == 0


def test_cuda_that_the_program_did_not_initialise_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCuda:
        device = torch.device("cuda", 0)

    monkeypatch.setattr(devices, "read", lambda tensor, name: tensor.device)
    assert devices.why_not(OnCuda()) == "CUDA is not initialised in this process"
    assert not torch.cuda.is_initialized()


@contextmanager
def pretended_cuda(monkeypatch: pytest.MonkeyPatch, **answers: Any) -> Iterator[None]:
    """The parts of torch.cuda that are asked before anything runs, with these answers."""
    monkeypatch.setattr(devices, "read", lambda tensor, name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(devices, "_cuda", devices._Cuda())
    yield


def test_nothing_runs_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    with pretended_cuda(monkeypatch, is_current_stream_capturing=lambda: True):
        assert devices.why_not(torch.ones(1)) == "a CUDA graph is being captured"


def test_after_a_sticky_error_only_metadata_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def broken() -> bool:
        asked.append(1)
        raise RuntimeError("CUDA error: device-side assert triggered\nCompile with ...")

    with pretended_cuda(monkeypatch, is_current_stream_capturing=broken):
        reason = devices.why_not(torch.ones(1))
        assert reason is not None and "device-side assert triggered" in reason
        assert devices.why_not(torch.ones(1)) == reason
        assert len(asked) == 1  # nothing is asked of CUDA again


def test_a_capture_of_the_thread_that_stands_still_is_known_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    capturing = [True]
    with pretended_cuda(
        monkeypatch,
        is_current_stream_capturing=lambda: capturing[0],
        current_stream=lambda device: SimpleNamespace(query=lambda: True),
    ):
        tensor = torch.ones(1)
        devices.notice(tensor)  # on the thread that captures
        capturing[0] = False  # as another thread sees it
        assert devices.why_not(tensor) == "a CUDA graph is being captured"
        devices.forget()  # the program goes on
        assert devices.why_not(tensor) is None


def test_an_error_of_one_call_is_not_taken_for_a_broken_context(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_memory(device: Any) -> Any:
        raise RuntimeError("CUDA error: out of memory\nCompile with ...")

    def broken() -> bool:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    stream = SimpleNamespace(query=lambda: True)
    far: Any = SimpleNamespace(device=torch.device("cuda", 0))
    with pretended_cuda(
        monkeypatch,
        Stream=no_memory,
        is_current_stream_capturing=lambda: False,
        current_stream=lambda device: stream,
    ):
        got = devices.fetch(far, lambda: far)
        assert got == Unavailable("CUDA error: out of memory")
        assert devices.why_not(far) is None  # it still answers
        stream.query = broken
        got = devices.fetch(far, lambda: far)
        assert "values can't be read in this process" in got.reason
        stream.query = lambda: True
        assert devices.why_not(far) == got.reason  # nothing is asked of it again


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_look_from_another_thread_does_not_end_a_capture() -> None:
    tensor = torch.ones(4, device="cuda")
    expect_like(tensor.cpu(), found(figures_of(tensor)))
    graph, looks = torch.cuda.CUDAGraph(), list[Any]()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        View(Known()).hint(tensor, "tensor", None)  # a row of the thread that stands still
        twice = tensor * 2
        thread = threading.Thread(target=lambda: looks.append(figures_of(tensor)))
        thread.start()
        thread.join()
    assert looks == [Unavailable("a CUDA graph is being captured")]
    devices.forget()
    graph.replay()
    assert twice.tolist() == [2.0] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_figures_on_a_gpu_do_not_wait_for_a_busy_stream() -> None:
    tensor = torch.randn(1000, 1000, device="cuda")
    expect_like(tensor.cpu(), found(figures_of(tensor)))
    torch.cuda._sleep(int(5e9))  # some seconds on the current stream
    got = figures_of(tensor)
    assert isinstance(got, Unavailable) and "busy" in got.reason
    torch.cuda.synchronize()
    expect_like(tensor.cpu(), found(figures_of(tensor)))

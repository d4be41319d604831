"""Tensors on a device: a hover says what is known and runs nothing there."""

from __future__ import annotations

import base64
import math
import struct
import subprocess
import sys
import time
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from tensorpoint.agent.values import (
    children,
    devices,
    figures,
    measures,
    pages,
    plain,
    reprs,
    summary,
)
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.measures import Measures
from tensorpoint.agent.values.memory import read_memory
from tensorpoint.agent.values.nodes import ALL, Node
from tensorpoint.agent.values.view import View

#: What only looks at metadata, or makes another view.
_FREE = {"aten::detach", "detach", "aten::alias", "aten::as_strided"}
INF, NAN = float("inf"), float("nan")


def operations(act: Callable[[], Any]) -> set[str]:
    """What torch runs meanwhile; also what is hidden from modes."""
    seen = profile()
    with seen:
        act()
    return {event.name for event in seen.function_events or ()}


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU as if they were on a device that can be read."""
    for module in (summary, pages, plain, reprs):
        monkeypatch.setattr(module, "is_on_cpu", lambda tensor: False)


@pytest.mark.usefixtures("on_a_device")
def test_no_kernel_runs_for_a_hover_on_a_device_only_on_request() -> None:
    shown = View(Known())
    for tensor in (torch.ones(30, 40), torch.nn.Parameter(torch.ones(3)), torch.tensor(2.0)):
        for context in (None, "variables", "hover", "watch"):
            assert operations(partial(shown.text, tensor, context)) <= _FREE
    assert str(shown.text(torch.ones(3), "hover")).endswith("| statistics on request")

    rows: dict[str, Any] = {}
    tensor = torch.arange(12.0).view(3, 4)

    def expand() -> None:
        rows.update({row.name: row.value for row in shown.children(tensor, ALL, None) or ()})

    assert operations(expand) <= _FREE
    statistics = rows["statistics"]
    assert isinstance(statistics, Node) and statistics.lazy and statistics.children
    found = statistics.children
    assert "aten::sort" in operations(lambda: found(ALL))


@pytest.mark.usefixtures("on_a_device")
def test_no_kernel_runs_for_the_repr_of_what_holds_a_tensor() -> None:
    named = namedtuple("named", "x loss")(torch.ones(3), torch.tensor(2.0))
    texts: list[str] = []

    def write() -> None:
        with reprs.in_short():
            texts.extend((repr(named), f"loss {named.loss:.3f}", str(torch.ones(2, 3).max(0))))

    assert operations(lambda: torch.ones(2, 3).max(0)) - _FREE == operations(write) - _FREE
    assert texts[:2] == ["named(x=f32[3] cpu, loss=f32[] cpu)", "loss f32[] cpu"]
    assert "values=f32[3] cpu" in texts[2]


def test_what_a_device_has_not_answered_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "run", lambda tensor, work: devices.Unavailable(devices.BUSY))
    tensor = torch.ones(3, 4)
    assert figures.figures_of(tensor) == devices.Unavailable(devices.BUSY)
    assert "busy" in children.statistics_node(tensor).text
    assert "busy" in children.histogram_node(tensor).text


@pytest.fixture
def far_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "is_on_cpu", lambda tensor: False)


VALUES = (
    torch.tensor([[3.0, -4.0, 0.0]]),
    torch.tensor([1.0, NAN]),
    torch.tensor([-INF, 0.0]),
    torch.full((4,), 60000.0).half(),
    torch.tensor([1, -7, 0]),
    torch.empty(0),
    torch.nn.Linear(3, 2),
)


@pytest.mark.parametrize("name", ["nonfinite", "absmax", "norm", "zero_fraction"])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: str(getattr(value, "shape", "module")))
def test_metrics_on_a_device_are_those_of_the_cpu(
    name: str, value: Any, request: pytest.FixtureRequest
) -> None:
    measure = Measures(Known()).functions[name]
    near = measure(value)
    request.getfixturevalue("far_away")
    assert measure(value) == pytest.approx(near, nan_ok=True)


def test_memory_of_a_device_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "fetch", lambda tensor, work: devices.Unavailable(devices.BUSY))
    with pytest.raises(ValueError, match="the device is busy"):
        read_memory(torch.ones(4), 0, 8)


@pytest.mark.usefixtures("far_away")
@pytest.mark.parametrize("name", ["nonfinite", "absmax", "norm", "zero_fraction", "entropy"])
def test_a_metric_does_not_wait_for_a_stream_that_hangs(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is read of a device goes by what polls with a deadline."""
    monkeypatch.setattr(devices, "fetch", lambda tensor, work: devices.Unavailable(devices.BUSY))
    with pytest.raises(TypeError, match=f"{name}: the device is busy"):
        Measures(Known()).functions[name](torch.ones(2, 3))


@pytest.mark.usefixtures("far_away")
def test_the_gradient_norm_does_not_wait_either(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([3.0, 4.0])
    assert Measures(Known()).functions["grad_norm"](weight) == 5.0
    monkeypatch.setattr(devices, "fetch", lambda tensor, work: devices.Unavailable(devices.BUSY))
    with pytest.raises(TypeError, match="grad_norm: the device is busy"):
        Measures(Known()).functions["grad_norm"](weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_metric_gives_up_on_a_busy_gpu() -> None:
    tensor = torch.ones(8, device="cuda")
    torch.cuda._sleep(20_000_000_000)  # some ten seconds
    begin = time.monotonic()
    with pytest.raises(TypeError, match="the device is busy"):
        Measures(Known()).functions["norm"](tensor)
    assert time.monotonic() - begin < 5
    torch.cuda.synchronize()
    assert Measures(Known()).functions["norm"](tensor) == pytest.approx(math.sqrt(8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_memory_of_a_gpu_is_read_in_pages() -> None:
    tensor = torch.arange(8.0, device="cuda")[2:6]
    body = read_memory(tensor, 4, 8)
    assert struct.unpack("<2f", base64.b64decode(body["data"])) == (3.0, 4.0)
    assert int(body["address"], 16) == tensor.data_ptr() + 4
    assert read_memory(tensor, 20, 8)["unreadableBytes"] == 4
    torch.cuda._sleep(20_000_000_000)
    begin = time.monotonic()
    with pytest.raises(ValueError, match="the device is busy"):
        read_memory(tensor, 0, 4)
    assert time.monotonic() - begin < 5
    torch.cuda.synchronize()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_a_hover_and_a_repr_do_not_wait_for_a_busy_gpu() -> None:
    named = namedtuple("named", "x loss")(
        torch.ones(3, device="cuda"), torch.ones((), device="cuda")
    )
    shown = View(Known())
    torch.cuda._sleep(20_000_000_000)
    begin = time.monotonic()
    assert shown.text(named.x, "hover") == "f32[3] cuda:0 | statistics on request"
    with reprs.in_short():
        assert repr(named) == "named(x=f32[3] cuda:0, loss=f32[] cuda:0)"
    assert time.monotonic() - begin < 5
    torch.cuda.synchronize()


BROKEN = """\
import torch
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL
from tensorpoint.agent.values.view import View

kept, shown = torch.ones(3, device="cuda"), View(Known())
try:
    kept[torch.tensor([5], device="cuda")].sum().item()
except Exception as error:
    print(type(error).__name__)
rows = {row.name: row.value for row in shown.children(kept, ALL, None)}
print(shown.text(kept, "hover"))
print(rows["statistics"].children(ALL)[0].value.text)
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_after_a_device_side_assert_there_is_metadata_and_one_message() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BROKEN], capture_output=True, text=True, timeout=120, check=True
    )
    _, hover, statistics = ended.stdout.splitlines()
    assert hover == "f32[3] cuda:0 | statistics on request"
    assert statistics.startswith("CUDA has failed before (")

"""Tensors on a device: a hover says what is known and runs nothing there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd.profiler import profile

from tensorpoint.agent.values import children, devices, figures, pages, plain, summary, view
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL, Node
from tensorpoint.agent.values.view import View

#: What only looks at metadata, or makes another view.
_FREE = {"aten::detach", "detach", "aten::alias", "aten::as_strided"}


def operations(act: Callable[[], Any]) -> set[str]:
    """What torch runs meanwhile; also what is hidden from modes."""
    seen = profile()
    with seen:
        act()
    return {event.name for event in seen.function_events or ()}


@pytest.fixture
def on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU as if they were on a device that can be read."""
    for module in (summary, pages, plain, view):
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


def test_what_a_device_has_not_answered_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "run", lambda tensor, work: devices.Unavailable(devices._BUSY))
    tensor = torch.ones(3, 4)
    assert figures.figures_of(tensor) == devices.Unavailable(devices._BUSY)
    assert "busy" in children.statistics_node(tensor).text
    assert "busy" in children.histogram_node(tensor).text

"""Which expressions an instruction works on; on every Python there is here."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.ops.operands import operands
from tensorpoint.agent.ops.peek import UNKNOWN
from tests.protocol.pythons import other_pythons

CHECK = Path(__file__).with_name("operands_check.py")


@pytest.mark.parametrize("python", [sys.executable, *other_pythons().values()])
def test_operands_are_found_by_every_python_without_running_the_program(python: str) -> None:
    done = subprocess.run([python, CHECK], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


def at_failure(function: Callable[[], object]) -> list[tuple[str, Any]]:
    """The operands of the call in `function` itself that fails."""
    try:
        function()
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code is not function.__code__:
            trace = trace.tb_next
        assert trace is not None
        frame = trace.tb_frame
        return operands(
            frame.f_code, trace.tb_lasti, trace.tb_lineno, frame.f_locals, frame.f_globals
        )
    raise AssertionError("did not fail")


class Net(nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(4, 4)])
        self.register_buffer("table", torch.ones(2))
        self.read: list[str] = []

    @property
    def scale(self) -> torch.Tensor:
        self.read.append("scale")
        return torch.ones(2)


net: Any = Net()
x = torch.ones(3, 4)


def test_parameters_buffers_and_children_are_read_from_a_module() -> None:
    found = at_failure(lambda: torch.matmul(net.fc.weight, net.table))
    assert [name for name, _ in found] == ["net.fc.weight", "net.table"]
    assert found[0][1] is net.fc.weight and found[1][1] is net.table
    found = at_failure(lambda: net.blocks[0].weight @ net.blocks[1].weight)
    assert found == [
        ("net.blocks[0].weight", net.blocks[0].weight),
        ("net.blocks[1].weight", net.blocks[1].weight),
    ]


def test_views_of_a_tensor_count_as_names() -> None:
    (name, value), (other, _) = at_failure(lambda: x.T @ x.T)
    assert (name, other) == ("x.T", "x.T") and tuple(value.shape) == (4, 3)
    found = at_failure(lambda: x[0] @ x)
    assert [name for name, _ in found] == ["x[0]", "x"] and tuple(found[0][1].shape) == (4,)


def test_neither_calls_nor_properties_run() -> None:
    read = len(net.read)
    found = at_failure(lambda: net.fc(torch.ones(3)) + net.scale)
    assert found == [("net.fc(torch.ones(3))", UNKNOWN), ("net.scale", UNKNOWN)]
    assert len(net.read) == read + 1  # by the program itself


def test_the_object_of_a_method_is_an_operand_and_a_module_is_none() -> None:
    n = 5
    assert at_failure(lambda: x.view(n, 5)) == [("x", x), ("n", 5)]
    assert at_failure(lambda: net.fc(x)) == [("x", x)]


def test_without_source_nothing_is_said() -> None:
    code = compile("x @ x", "<made up>", "eval")
    assert operands(code, 0, 1, {"x": x}, {}) == []
    for lasti in range(0, len(code.co_code), 2):
        assert operands(code, lasti, 1, {"x": x}, {}) == []

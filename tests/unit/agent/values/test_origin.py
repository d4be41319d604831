"""What made a tensor: the row says the operation, the layer and the line, as far as is known."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.values.children import Children
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL
from tensorpoint.agent.values.origin import Place, definition, maker, unplaced
from tensorpoint.agent.values.owners import Owners


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)  # defines fc
        self.twice = nn.Linear(4, 4)  # defines twice
        self.inner = nn.Linear(4, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)  # calls fc
        if h.shape[0] > 100:
            h = self.twice(h)
        h = self.twice(h)
        b = self.body(h)[:, :]  # calls body

        def later() -> torch.Tensor:
            return self.inner(h)  # calls inner

        del later
        return b * 2


def known_of(net: nn.Module) -> Known:
    return Known(Owners(lambda: [net]))


def made(tensor: Any, net: nn.Module, frame: FrameType | None = None) -> tuple[str, int]:
    place = maker(tensor, known_of(net), frame)
    assert isinstance(place, Place) and place.file == __file__, place
    return place.text, place.line


def line(text: str) -> int:
    """The line of this file that ends with a comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(at for at, found in enumerate(lines, 1) if found.endswith(text))


def test_the_layer_and_the_line_that_called_it() -> None:
    net = Net()
    at = f"test_origin.py:{line('# calls fc')} in forward"
    assert made(net.fc(torch.ones(2, 4)), net) == (
        f"Addmm of fc (Linear), called at {at}",
        line("# calls fc"),
    )
    at = f"test_origin.py:{line('# calls body')} in forward"
    assert made(net.body[0](torch.ones(2, 4)), net) == (
        f"Addmm of body.0 (Linear), called at {at}",
        line("# calls body"),
    )
    at = f"test_origin.py:{line('# calls inner')} in later"
    assert made(net.inner(torch.ones(2, 4)), net) == (
        f"Addmm of inner (Linear), called at {at}",
        line("# calls inner"),
    )


def test_a_layer_that_is_called_at_several_lines_is_told_where_it_is_defined() -> None:
    net = Net()
    at = f"test_origin.py:{line('# defines twice')} in Net"
    assert made(net.twice(torch.ones(2, 4)), net) == (
        f"Addmm of twice (Linear), defined at {at}",
        line("# defines twice"),
    )


def test_what_is_of_no_layer_was_assigned_somewhere() -> None:
    net, frame = Net(), sys._getframe()
    product = torch.ones(2, requires_grad=True) * 3  # assigns product
    at = f"test_origin.py:{line('# assigns product')} in {frame.f_code.co_name}"
    assert made(product, net, frame) == (
        f"Mul, assigned to product at {at}",
        line("# assigns product"),
    )

    def callee(argument: Any) -> FrameType:
        return sys._getframe()

    plain = torch.ones(2)  # assigns plain
    assert made(plain, net, callee(plain))[1] == line("# assigns plain")
    assert maker(torch.ones(2), known_of(net), frame) is None


def test_anomaly_mode_knows_the_line() -> None:
    net = Net()
    with torch.autograd.detect_anomaly(check_nan=False):
        out = net.fc(torch.ones(2, 4)).exp()  # makes out
    text, number = made(out, net)
    assert number == line("# makes out") and text.startswith("Exp at test_origin.py")


def test_where_a_parameter_is_defined() -> None:
    net = Net()
    place = definition(net.fc.weight, known_of(net))
    assert place is not None and place.line == line("# defines fc")
    assert place.text == f"test_origin.py:{place.line} in Net"


@pytest.mark.parametrize("lost", ["<string>", "/nowhere/at/all.py"])
def test_without_the_source_nothing_is_said(lost: str) -> None:
    names: dict[str, Any] = {"torch": torch, "sys": sys}
    code = compile("def run():\n    x = torch.ones(2)\n    return x, sys._getframe()", lost, "exec")
    exec(code, names)
    found = names["run"]()
    assert maker(found[0], known_of(nn.Linear(1, 1)), found[1]) is None


def test_what_is_not_recorded_is_said() -> None:
    net = Net()
    with torch.no_grad():
        text = unplaced(net.fc(torch.ones(2, 4)), known_of(net))
    assert text == 'not recorded: it has no graph. With precision "op" each operation is'
    known = known_of(nn.Linear(4, 4))  # another model
    assert unplaced(net.fc(torch.ones(2, 4)), known) == "Addmm; its line is not recorded"
    assert unplaced(torch.ones(2), known).startswith("not recorded")
    shown = {row.name: row.value for row in Children(known).of(torch.ones(2), ALL)}
    assert shown["made by"].text.startswith("not recorded")

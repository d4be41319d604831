"""Operands on two devices are found without a second device, and only these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.wire.shapes import ShapeRequest, ShapeTable
from tests.conftest import Write
from tests.unit.shapes.marks import marked

PROGRAM = Path(__file__).parents[2] / "programs" / "shapes" / "devices.py"


def trace(text: str, path: Path = PROGRAM) -> ShapeTable:
    return table_of(ShapeRequest(str(path), text))


def test_what_stays_behind_is_named_at_the_call_that_meets_it() -> None:
    text = PROGRAM.read_text("utf-8")
    table = trace(text)
    assert [call.qualname for call in table.calls] == ["Hidden", "Attribute", "Brought", "Fine"]
    expected = marked(text, "fault")
    found = {each.span.line: each for each in table.diagnostics}
    assert found.keys() == expected.keys() and len(found) == 3, found
    for line, each in found.items():
        assert (each.severity, each.code) == ("warning", "device-mismatch")
        assert each.message.startswith(f"on a GPU this fails: {expected[line]}"), each.message
    assert "register_buffer" in found[min(found) + 12].message


@pytest.mark.parametrize(
    "unclear",
    [
        ("device = ", "where = "),  # with the next: nothing speaks of devices
        ("class Hidden(nn.Module):", 'class Hidden(nn.Module):\n    second = "cuda:1"'),
    ],
)
def test_files_without_devices_or_with_several_are_left_alone(unclear: tuple[str, str]) -> None:
    text = PROGRAM.read_text("utf-8")
    if "where" in unclear[1]:
        text = (
            text.split("class Fine")[0]
            .split("\n", 6)[6]
            .join(["import torch\nimport torch.nn as nn\n", ""])
        )
    assert not trace(text.replace(*unclear)).diagnostics


def test_a_module_that_moves_what_it_holds_is_not_accused(write: Write) -> None:
    path = write(
        """
        import torch

        MASKS = {"ones": torch.ones(20)}

        class Moves(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(10, 20)
                self.scale = torch.ones(20)

            def _apply(self, fn):
                self.scale = fn(self.scale)
                return super()._apply(fn)

            def forward(self, x):
                return self.fc(x) * self.scale

        class Elsewhere(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.fc = torch.nn.Linear(10, 20)

            def forward(self, x):
                return self.fc(x) * MASKS["ones"]

        def train():
            MASKS["ones"] = MASKS["ones"].cuda()
            Moves().cuda()
        """
    )
    table = trace(path.read_text("utf-8"), path)
    assert len(table.calls) == 2 and not table.diagnostics, table

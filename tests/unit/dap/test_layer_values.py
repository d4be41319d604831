"""The expressions that variables below a row of a layer get."""

from __future__ import annotations

import pytest

from tensorpoint.dap.layer_values import name_below
from tensorpoint.dap.suspended import in_layer, scope_of


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (f"{scope_of(0, 'Parameters')}['up.weight'].shape", "self.up.weight.shape"),
        (f"{scope_of(2, 'Parameters')}['0.bias'].T", "self.get_parameter('0.bias').T"),
        (f"{scope_of(0, 'Buffers')}['0.mean'].T", "self.get_buffer('0.mean').T"),
        (f"{scope_of(0, 'Gradients')}['bias'].shape", "self.bias.grad.shape"),
        (f"{scope_of(0, 'Gradients')}['grad_output'].shape", "grad_output.shape"),
        (f"{scope_of(0, 'Inputs')}['args[0]'][3]", "inputs['args[0]'][3]"),
        (
            f"{scope_of(0, 'Parameters')}[\"param_groups[0]['params'][1]\"].shape",
            "self.param_groups[0]['params'][1].shape",
        ),
        (f"{in_layer(0, 'output')}[0]", "output[0]"),
        (f"{in_layer(0, 'x + y')}.shape", "(x + y).shape"),
        (f"{in_layer(11, chr(34) + 'a' + chr(39) + chr(34))}.upper", '("a\'").upper'),
        (f"{in_layer(0, 'd[' + chr(39) + chr(34) + chr(39) + ']')}.T", "d['\"'].T"),
        (f"{scope_of(0, 'Statistics')}['x'].upper", None),
        ("x.shape", "x.shape"),
        (None, None),
    ],
)
def test_they_lead_there_in_the_layer(given: str | None, named: str | None) -> None:
    row = {"name": "row", "evaluateName": given}
    name_below({"variables": [row]})
    assert row["evaluateName"] == named


def test_rows_without_an_expression_stay_as_they_are() -> None:
    row = {"name": "len()"}
    name_below({"variables": [row]})
    assert row == {"name": "len()"}
    name_below({})

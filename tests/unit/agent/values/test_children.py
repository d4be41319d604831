"""What is below a module and in the autograd graph of a tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL, Node
from tensorpoint.agent.values.owners import Owners
from tensorpoint.agent.values.view import View


def below(value: Any, known: Known | None = None) -> dict[str, Any]:
    """The rows by name; of those that are made for it the text."""
    rows = View(known or Known()).children(value, ALL, None) or ()
    return {row.name: row.value for row in rows}


def test_a_module_has_its_parts_hooks_and_config_but_no_private_attributes() -> None:
    layer = nn.Linear(2, 3)
    layer.config = {"width": 3}  # type: ignore[assignment]

    def hook(module: Any, args: Any, output: Any) -> None: ...

    layer.register_forward_hook(hook)
    rows = below(layer)
    assert list(rows) == [
        *("training", "made with", "config", "weight", "bias"),
        *("in_features", "out_features", "hooks", "raw"),
    ]
    assert rows["made with"].text == "2, 3" and rows["config"] == {"width": 3}
    assert below(rows["hooks"]) == {"forward": hook}
    assert "_forward_hooks" in below(rows["raw"])


def test_the_graph_of_a_tensor_is_a_chain_of_names() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    known = Known(owners=Owners(lambda: [net]))
    node = below(net(torch.ones(1, 2)), known)["grad_fn"]
    chain: list[str] = []
    while isinstance(node, Node):
        chain.append(node.text)
        node = next(iter(below(node).values()), None)
    assert chain == ["ReluBackward0", "AddmmBackward0 with 0.bias, 0.weight", chain[2]]
    assert chain[2] == "AccumulateGrad of 0.bias"

"""Plugins that say what operations do to shapes: by entry point, by name, and broken ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tensorpoint.shapes.tracing.graph import Drawn
from tensorpoint.shapes.tracing.plugins import Call, Plugins, notes_of
from tests.conftest import Write

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "plugins" / "fused_shapes"
PROGRAM = """
import torch
from fused_shapes import attend, pool_and_project

class Net(torch.nn.Module):
    # tensorpoint: x: f32[B, T, 32]
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(32, 8))

    def forward(self, x):
        y = pool_and_project(x, self.weight, 4)
        scores = attend(y, y)
        return torch.relu(scores)
"""


def shapes(path: Path, site: Path, *options: str) -> Any:
    paths = [site, ROOT / "server", ROOT / "adapters"]
    done = subprocess.run(
        [sys.executable, "-m", "tensorpoint", "shapes", str(path), "--json", *options],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_the_example_rewrites_the_semantics_of_an_operator_and_a_function(
    write: Write, tmp_path: Path
) -> None:
    path = write(PROGRAM)
    shutil.copytree(EXAMPLE / "fused_shapes", tmp_path / "fused_shapes")
    without = shapes(path, tmp_path)
    assert not without["hints"] and "Net does not run" in without["untraced"][0], without
    named = shapes(path, tmp_path, "--plugin", "fused_shapes.tensorpoint_plugin:plugin")
    project = (EXAMPLE / "pyproject.toml").read_text("utf-8")
    (point,) = re.findall(
        r'^\[project.entry-points."tensorpoint.shapes"\]\n(.+) = "(.+)"$', project, re.MULTILINE
    )
    info = tmp_path / "fused_shapes-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fused-shapes\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[tensorpoint.shapes]\n{point[0]} = {point[1]}\nbroken = no_such_module:plugin\n"
    )
    installed = shapes(path, tmp_path)
    assert installed["untraced"] == [
        "plugin broken: ModuleNotFoundError: No module named 'no_such_module'"
    ]
    for table in (named, installed):
        shown = {h["name"]: h for h in table["hints"] if h["kind"] == "target"}
        assert shown["y"]["text"] == "f32[B, ceil(T/4), 8]"
        assert shown["scores"]["text"] == "f32[B, ceil(T/4), ceil(T/4)]"
        assert shown["y"]["origin"] == shown["scores"]["origin"] == "symbolic"
        assert (shown["y"]["notes"], shown["scores"]["notes"]) == (["every 4th step"], [])
        assert not table["diagnostics"]


def test_a_name_that_is_none_is_refused() -> None:
    plugins = Plugins()
    for name in ("gelu", "aten::", "a b:c", "aten::gelu.default.more"):
        with pytest.raises(ValueError, match="is neither NAMESPACE::OPERATOR nor MODULE:FUNCTION"):
            plugins.register_plugin(name, print)
    with pytest.raises(TypeError, match="can't be called"):
        plugins.register_plugin("aten::gelu", 3)  # type: ignore[arg-type]


def test_a_graph_has_a_node_for_each_operation_and_handlers_change_what_they_mean() -> None:
    plugins = Plugins()

    def halved(call: Call) -> Any:
        plugins.attach_to_node(call.node, "halved")
        return call.function(*call.args)[: call.args[0].shape[0] // 2]

    plugins.register_plugin("aten::relu", halved)
    x, weight = torch.ones(4, 3), torch.ones(3, 2)
    with Drawn(__file__, plugins) as drawn:
        drawn.name([("x", x), ("fc.weight", weight)])
        y = torch.relu(x @ weight)
        y.add_(1)
        parts = (y * 2).split(1)
    assert y.shape == (2, 2) and len(parts) == 2
    nodes = [*drawn.graph.nodes]
    drawn.graph.lint()
    assert [n.meta["source"] for n in nodes if n.op == "placeholder"] == ["x", "fc.weight"]
    relu = next(n for n in nodes if n.target is torch.ops.aten.relu.default)
    assert [each.target for each in relu.all_input_nodes] == [torch.ops.aten.mm.default]
    added = next(n for n in nodes if n.target is torch.ops.aten.add_.Tensor)
    product = next(n for n in nodes if n.target is torch.ops.aten.mul.Tensor)
    assert added in product.all_input_nodes  # what was changed in place is another node
    assert drawn.node_of(parts[1]).args[1] == 1
    [(place, notes)] = notes_of(drawn.graph).items()
    assert notes == ("halved",)
    assert "torch.relu(x @ weight)" in Path(__file__).read_text("utf-8").split("\n")[place.line - 1]

"""Adapters of other packages: found by entry point, and no harm if they are broken."""

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

from tests.unit.agent.test_attention import by_definition

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "tests" / "plugins" / "cosine_attention"

#: What a program sees with the taps installed: adapters, faults, the entropy of each attention.
PROGRAM = """
import json, torch
from torch import nn
from tests.unit.agent.tapped import Tapped

agent = Tapped()
agent.listen("attention")
import cosine_attention

class Layer(nn.Module):
    def forward(self, x):
        return cosine_attention.attend(x, x, x, temperature=4.0)

torch.manual_seed(0)
x = torch.randn(2, 12, 3, 8)
output = Layer()(x)
told = [attention.exact for _, attention in agent.attentions]
agent.remove()
assert torch.equal(output, Layer()(x))
assert len(agent.attentions) == len(told)
print(json.dumps({
    "faults": [[culprit.metric, str(error)] for culprit, error in agent.faults], "told": told,
}))
"""


def install(to: Path, name: str, entry_points: dict[str, str], package: Path | None = None) -> None:
    """What an installer would leave in site-packages."""
    if package is not None:
        shutil.copytree(package, to / package.name, dirs_exist_ok=True)
    info = to / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{key} = {value}" for key, value in entry_points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[tensorpoint.adapters]", *lines, ""]))


@pytest.fixture
def site(tmp_path: Path) -> Path:
    project = (EXAMPLE / "pyproject.toml").read_text(encoding="utf-8")
    (point,) = re.findall(
        r'^\[project.entry-points."tensorpoint.adapters"\]\n(.+) = "(.+)"$', project, re.MULTILINE
    )
    install(tmp_path, "cosine_attention", dict([point]), EXAMPLE / "cosine_attention")
    return tmp_path


def run(site: Path) -> dict[str, Any]:
    paths = [site, ROOT / "server", ROOT / "adapters", ROOT]
    done = subprocess.run(
        [sys.executable, "-B", "-c", PROGRAM],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_example_is_found_and_tells_what_it_should(site: Path) -> None:
    said = run(site)
    assert said["faults"] == []
    torch.manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(2, 12, 3, 8), dim=-1).transpose(1, 2)
    assert said["told"] == [pytest.approx(by_definition(x, x, scale=4.0), abs=1e-5)]


def test_broken_adapters_are_reported_once_each_and_the_others_work(site: Path) -> None:
    install(
        site,
        "broken",
        {
            "not-there": "no_such_module:adapter",
            "not-one": "json:dumps",
            "raises": "raises_at_import:adapter",
        },
    )
    (site / "raises_at_import.py").write_text("raise SystemError('theirs')\n")
    said = run(site)
    assert len(said["told"]) == 1
    assert [culprit for culprit, _ in said["faults"]] == [
        "for what adapter 'not-one' says",
        "for what adapter 'not-there' says",
        "for what adapter 'raises' says",
    ]
    assert "no_such_module" in said["faults"][1][1]
    assert said["faults"][2][1] == "theirs"

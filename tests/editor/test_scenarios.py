"""The extension in a real VS Code: each file of scenarios/ is one test here."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.editor.conftest import HERE

# All in one worker: each has an editor, a browser and programs that import torch. The set-up may
# have to fetch code-server.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("editor")]

SCENARIOS = sorted(HERE.glob("scenarios/*.spec.ts"))
NODE = HERE.parents[1] / "vscode-client" / "npm.sh"
PLAYWRIGHT = HERE / "node_modules" / "@playwright" / "test" / "cli.js"


@pytest.mark.usefixtures("editor")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_scenario(scenario: Path) -> None:
    done = subprocess.run(
        [NODE, "--node", PLAYWRIGHT, "test", f"scenarios/{scenario.name}"],
        cwd=HERE,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (
        f"{done.stdout}\n{done.stderr}\nScreenshots and traces of what failed: .editor/failed"
    )

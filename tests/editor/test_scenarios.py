"""The extension in a real VS Code: each file of scenarios/ is one test here.

Playwright runs those that are asked for in one go, since they share a browser and servers; a test
tells what has become of its file.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.editor.conftest import HERE

# All in one worker: each has an editor and programs that import torch. The first test waits for
# all, and the set-up may have to fetch code-server.
pytestmark = [pytest.mark.timeout(3600), pytest.mark.xdist_group("editor")]

SCENARIOS = sorted(HERE.glob("scenarios/*.spec.ts"))
NODE = HERE.parents[1] / "vscode-client" / "npm.sh"
PLAYWRIGHT = HERE / "node_modules" / "@playwright" / "test" / "cli.js"


@pytest.fixture(scope="module")
def reports(
    editor: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """What Playwright reports of each file, by the file's name."""
    asked_for = {
        Path(str(item.callspec.params["scenario"])).name
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    report = tmp_path_factory.mktemp("editor") / "report.json"
    done = subprocess.run(
        [
            *(NODE, "--node", PLAYWRIGHT, "test", "--reporter=line,json"),
            *(f"scenarios/{name}" for name in sorted(asked_for)),
        ],
        cwd=HERE,
        env={**os.environ, "PLAYWRIGHT_JSON_OUTPUT_FILE": str(report)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), f"{done.stdout}\n{done.stderr}"
    found = json.loads(report.read_text("utf-8"))
    assert not found["errors"], f"{done.stdout}\n{done.stderr}"
    return {suite["file"]: suite for suite in found["suites"]}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.name.split(".")[0])
def test_scenario(scenario: Path, reports: dict[str, Any]) -> None:
    suite = reports[scenario.name]
    for text in failures(suite, "flaky"):
        warnings.warn(f"passed at the second try only: {text}", stacklevel=1)
    failed = list(failures(suite, "unexpected"))
    assert not failed, "\n\n".join(
        [*failed, "Screenshots and traces of what failed: .editor/failed"]
    )


def failures(suite: dict[str, Any], status: str) -> Iterator[str]:
    """What failed in a suite and those inside of it, in the end or once, with the reasons."""
    for spec in suite["specs"]:
        for test in spec["tests"]:
            if test["status"] == status:
                errors = [error for result in test["results"] for error in result["errors"]]
                reasons = [error["message"] for error in errors]
                yield re.sub(r"\x1b\[[\d;]*m", "", "\n".join([spec["title"], *reasons]))
    for inner in suite.get("suites", ()):
        yield from failures(inner, status)

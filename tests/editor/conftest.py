"""The editor tests are TypeScript, run by Playwright's runner: here they become pytest's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent

collect_ignore = ["node_modules", "workspace", "extensions", "other-version"]

#: What `setup.sh` exits with where apt or npm can't be used.
_UNUSABLE = 3


@pytest.fixture(scope="session")
def editor() -> None:
    """Set up code-server, the browser and the extension, or skip with the reason."""
    done = subprocess.run(
        [HERE / "setup.sh"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == _UNUSABLE:
        pytest.skip(f"no editor to test with: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr

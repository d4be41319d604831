"""The client library that VS Code's own debug adapters are tested with steps by layers."""

from __future__ import annotations

import subprocess

import pytest

from tests.clients.running import HERE, run

ROOT = HERE.parents[1]
NPM = ROOT / "vscode-client" / "npm.sh"


@pytest.fixture(scope="module")
def node_packages() -> None:
    """Install what the client needs, or skip with the reason."""
    done = subprocess.run(
        ["make", "--no-print-directory", "-s", "tests/clients/node_modules/.ready"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"npm can't install the client: {done.stderr.strip()[-500:]}")


@pytest.mark.usefixtures("node_packages")
def test_an_independent_client_steps_by_layers() -> None:
    run(NPM, "--node", HERE / "layers.ts")

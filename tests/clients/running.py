"""How a client that is not ours is run, and the program that it debugs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
BLOCKS = HERE.parent / "editor" / "workspace" / "blocks.py"


def run(*command: str | Path) -> str:
    """What a client prints; it is told the adapter's command, the interpreter and the program."""
    adapter = Path(sys.executable).with_name("tensorpoint")
    done = subprocess.run(
        [*command, adapter, sys.executable, BLOCKS],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout

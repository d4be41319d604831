"""The examples of docs/python.md run as they are printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.protocol.dap import adapter_environment

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


def test_the_examples_run_one_after_the_other(tmp_path: Path) -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(examples) > 5
    program = tmp_path / "examples.py"
    program.write_text("\n".join(examples), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        check=False,
        capture_output=True,
        text=True,
        # debugpy tells of frozen modules on standard error.
        env={**adapter_environment(), "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "NaN in the output of 1 (Log), made by log, called at examples.py:"
    )
    assert "attach to ('127.0.0.1'" in done.stderr

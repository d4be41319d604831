"""Runs debugpy's adapter as `python -m debugpy.adapter` would, a little sooner.

At its start debugpy writes a report of the environment into its log (75 ms of CPU for reading all
installed distributions), even when no log is kept. Without `--log-dir` there is nobody to read it.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Stands in for the report."""


if __name__ == "__main__":
    # The folder of this file, which holds modules of ours that debugpy must not see.
    sys.path[:] = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
    # As debugpy's main does before it imports its log: nobody has to read our stderr.
    sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if "--log-dir" not in sys.argv:
        from debugpy.common import log

        log.describe_environment = _nothing
    runpy.run_module("debugpy.adapter", run_name="__main__", alter_sys=True)

"""What a zygote imports for our own processes: the adapter, debugpy's, and its launcher.

An F5 starts three of them before the program, 0.2 to 0.4 s each; as forks they are there at once.
Imported in the zygote only, and so before debugpy's log takes hold of `sys.stderr`: its adapter
wants that to lead nowhere (nobody has to read our stderr), as it sees to itself at a fresh start.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

_MODULES = (
    "debugpy.adapter.clients",
    "debugpy.adapter.launchers",
    "debugpy.adapter.servers",
    "debugpy.adapter.sessions",
    "debugpy.launcher.debuggee",
    "debugpy.launcher.handlers",
    "debugpy.launcher.output",
    "tensorpoint.dap.server",
)

_stderr = sys.stderr
sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
try:
    for _name in _MODULES:
        importlib.import_module(_name)
finally:
    sys.stderr = _stderr


def _describe(header: str) -> None:
    """Write the report on the environment only where a log is kept: it takes 75 ms, in each."""
    if _log.log_dir is not None:
        _report(header)


_log: Any = sys.modules["debugpy.common.log"]
_report = _log.describe_environment
_log.describe_environment = _describe

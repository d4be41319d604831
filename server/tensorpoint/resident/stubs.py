"""Where the stub is, and files that start it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

#: Absolute: by it a stub knows which installation it is of, as `handover` does.
STUB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "forking", "stub.py")


def write_executable(path: Path, command: Sequence[str]) -> None:
    """Make a file for this user alone that runs `command` with the arguments that it gets.

    A shell script, because the kernel takes only a short path for a script's interpreter.
    """
    new = path.with_name(f"{path.name}.new")
    new.touch(0o700)
    new.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    new.replace(path)

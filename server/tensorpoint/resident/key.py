"""What tells environments apart: two programs with the same key can come from one zygote."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass

from .forking import environment
from .forking.command import parse
from .messages import Environment


class Unfit(Exception):
    """No zygote can stand for this environment; the text says why."""


@dataclass(frozen=True)
class Key:
    """An interpreter, its options, and the variables that are read at its start."""

    python: str
    flags: tuple[str, ...]
    early: tuple[tuple[str, str], ...]
    #: When the interpreter was installed.
    installed: int
    tools: bool = False

    @property
    def name(self) -> str:
        """Short, for files and for people."""
        text = json.dumps([self.python, self.flags, self.early, self.installed, self.tools])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def key_of(wanted: Environment) -> Key:
    """The key of an environment. Raises `Unfit`."""
    interpreter, *options = wanted.python or ("",)
    found = shutil.which(interpreter, path=wanted.variables.get("PATH"))
    if found is None:
        raise Unfit(f"there is no interpreter {interpreter!r}")
    command = parse([*options, "program.py"])
    if command is None or command.target != "program.py":
        raise Unfit(f"the options {' '.join(options)} need a fresh interpreter")
    python = os.path.abspath(found)  # the link, not its target: that is how a venv is told
    return Key(
        python,
        command.flags,
        tuple(environment.read_early(wanted.variables).items()),
        os.stat(python).st_mtime_ns,
        wanted.tools,
    )

"""The CPythons on this machine, for tests of what doesn't need torch."""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess
import sys

_ASK = "import sys; print(sys.implementation.name, *sys.version_info[:2], sys.base_prefix)"
_OLDEST, _NEWEST = 10, 16


@functools.cache
def other_pythons() -> dict[str, str]:
    """Interpreters >= 3.10 by version ("3.12"), the version that runs the tests left out."""
    candidates = [shutil.which(f"python3.{minor}") for minor in range(_OLDEST, _NEWEST)] + sorted(
        found
        for pattern in (
            "~/.pyenv/versions/*/bin/python3",
            "~/.local/share/uv/python/*/bin/python3",
            "/usr/bin/python3.[0-9]*",
            "/usr/local/bin/python3.[0-9]*",
            "/opt/python/*/bin/python3",
        )
        for found in glob.glob(os.path.expanduser(pattern))
    )
    pythons: dict[str, str] = {}
    for path in candidates:
        version = _version(path) if path is not None else None
        if path is not None and version is not None:
            pythons.setdefault(f"{version[0]}.{version[1]}", path)
    pythons.pop(f"{sys.version_info[0]}.{sys.version_info[1]}", None)
    return dict(sorted(pythons.items(), key=lambda item: int(item[0].partition(".")[2])))


def _version(path: str) -> tuple[int, int] | None:
    try:
        said = subprocess.run(
            [path, "-c", _ASK], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = said.stdout.split()
    if said.returncode or words[:1] != ["cpython"]:
        return None
    major, minor = int(words[1]), int(words[2])
    return (major, minor) if major == 3 and minor >= _OLDEST else None

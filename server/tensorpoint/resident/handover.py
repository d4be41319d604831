"""`tensorpoint dap` as a fork: 0.25 s of imports are left out where our tools' zygote runs.

The host leaves an executable under a name that says for which interpreter and which state of our
own sources it is, so that finding it takes no question: a stat of each of them, and an exec.
"""

from __future__ import annotations

import os
import sys
import zlib

TYPE_CHECKING = False  # type checkers take it for typing's, which is not worth an import here

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: The option by which a process knows that it has been handed over, or can't be.
HERE = "--here"


def file_name(python: str = sys.executable) -> str:
    """What the executable for this interpreter and these sources is called."""
    newest = count = 0
    for folder, _, files in os.walk(_PACKAGE):
        for name in files:
            if name.endswith(".py"):
                newest = max(newest, os.stat(os.path.join(folder, name)).st_mtime_ns)
                count += 1
    text = f"{python}\0{newest}\0{count}"
    return f"dap-{zlib.crc32(os.fsencode(text)):08x}"


def hand_over(arguments: Sequence[str]) -> None:
    """Become a process from the tools' zygote, if `dap` is asked for and there is one."""
    if arguments[:1] != ["dap"] or not {"-h", "--help", HERE}.isdisjoint(arguments):
        return
    if sys.platform != "linux" or os.environ.get("TENSORPOINT_RESIDENT") == "0":
        return
    folder = usual_folder()
    try:
        if os.lstat(folder).st_uid == os.getuid():
            path = os.path.join(folder, file_name())
            os.execv(path, [path, "-m", "tensorpoint", *arguments, HERE])
    except OSError:
        return  # no host, or it has gone just now


def leave(folder: Path, python: str, executable: str) -> Path | None:
    """Have `hand_over` find an executable; called by the host."""
    path = folder / file_name(python)
    new = path.with_suffix(".new")
    try:
        new.symlink_to(executable)
        new.replace(path)
    except OSError:
        return None
    return path


def usual_folder() -> str:
    """The runtime folder, made or not; `places` makes it, and `forking.stub` has the same rule.

    Each of several installations that a user may have has a host of its own, and runs its own code:
    an editor's private environment and a project's may have different versions.
    """
    named, session = os.environ.get("TENSORPOINT_RUNTIME_DIR"), os.environ.get("XDG_RUNTIME_DIR")
    if named:
        return os.path.abspath(named)
    installation = f"{zlib.crc32(os.fsencode(_PACKAGE)):08x}"
    # Another user's, after `su`, is no place for us.
    if session and os.path.isdir(session) and os.access(session, os.W_OK | os.X_OK):
        return f"{session}/tensorpoint-{installation}"
    return f"/tmp/tensorpoint-{os.getuid()}-{installation}"

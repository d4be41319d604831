"""Where the resident process keeps its sockets, its token and its logs, for this user alone."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from .handover import usual_folder

#: Names another folder for the sockets: each has a host of its own.
RUNTIME_VARIABLE = "TENSORPOINT_RUNTIME_DIR"
#: "0" switches the resident process off, "running" uses one only where it runs already, and "wait"
#: has a launch wait until it is ready.
RESIDENT_VARIABLE = "TENSORPOINT_RESIDENT"
#: The kernel's limit for the path of a socket, less the longest name that we put there.
_LONGEST = 107 - len("/zygote-0123456789ab-9999")
_LONGEST_LOG = 1 << 20
_MOST_LOGS = 40


class NoPlace(Exception):
    """There is no folder that only this user can reach; the text says why."""


def runtime_folder() -> Path:
    """The folder, made if need be. Raises `NoPlace` if others could write there."""
    folder = Path(usual_folder())
    if len(os.fsencode(folder)) > _LONGEST:
        raise NoPlace(f"{folder} is too long for the path of a socket; set {RUNTIME_VARIABLE}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise NoPlace(f"{folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise NoPlace(f"{folder} does not belong to this user")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def host_socket(folder: Path) -> Path:
    """Where the host listens."""
    return folder / "host"


def log_folder(folder: Path) -> Path:
    """The logs of the host and its zygotes, made if need be."""
    logs = folder / "log"
    logs.mkdir(mode=0o700, exist_ok=True)
    return logs


def tidy_logs(folder: Path) -> None:
    """Keep the ends of long logs, and the newest of many: there is one for each environment.

    Who writes to one has opened it to append, and goes on at its new end.
    """
    found = [(path, path.stat()) for path in log_folder(folder).iterdir()]
    found.sort(key=lambda each: each[1].st_mtime_ns, reverse=True)
    for path, _ in found[_MOST_LOGS:]:
        if path.name.startswith("zygote-"):
            path.unlink(missing_ok=True)
    for path, status in found[:_MOST_LOGS]:
        if status.st_size > _LONGEST_LOG:
            with path.open("rb+") as stream:
                stream.seek(-_LONGEST_LOG // 4, os.SEEK_END)
                stream.readline()  # the rest of a line
                end = stream.read()
                stream.seek(0)
                stream.write(end)
                stream.truncate()


def read_token(folder: Path) -> str:
    """What a client has to say first; "" if no host has been here."""
    try:
        return (folder / "token").read_text(encoding="ascii")
    except OSError:
        return ""


def new_token(folder: Path) -> str:
    """Make a token that only this user can read."""
    token = secrets.token_hex(16)
    path = folder / "token"
    path.unlink(missing_ok=True)
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(number, "w", encoding="ascii") as stream:
        stream.write(token)
    return token


def lock(folder: Path) -> int | None:
    """Be the host of this folder until this process ends; None if another one is."""
    import fcntl  # not on Windows, where the rest of this module is imported as well

    number = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(number)
        return None
    return number


def cache_folder() -> Path:
    """What is kept over restarts, not made."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):  # no HOME, and a user that the system doesn't know
        return Path(usual_folder(), "cache")
    return Path(cache, "tensorpoint")


def learned_file(key: str) -> Path:
    """What programs of an environment have imported."""
    return cache_folder() / "imports" / f"{key}.json"

"""Makes a fork of the zygote look like a process that has just been started.

What a fresh interpreter would have read from its surroundings is read from those of the stub, which
stands in its place: working directory, environment, limits, ignored signals, open files. What it
would have made by itself is made again: standard streams, seeds, `__main__`, the keys and paths of
multiprocessing. Where that can't be done faithfully the child becomes a fresh interpreter, by exec.

What differs all the same: the parent process is the zygote, the process is the leader of its own
session (so there is no `/dev/tty`), strings hash alike in all children of a zygote, and modules
that a program has not imported yet may be in `sys.modules`.
"""

from __future__ import annotations

import atexit
import ctypes
import importlib
import io
import os
import random
import resource
import signal
import sys
import weakref
from dataclasses import dataclass
from typing import Any, NoReturn, TextIO

from . import environment, program
from .command import Command, parse
from .debugger import Debugger
from .link import Request, tell_imported

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_LIMITS = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


@dataclass(frozen=True)
class Setting:
    """What a child needs of the zygote."""

    request: Request
    flags: tuple[str, ...]
    early: dict[str, str]
    debugger: Debugger | None
    #: Where the zygote listens.
    socket: str
    #: What it has imported.
    modules: frozenset[str]


def become(setting: Setting, zygote: int) -> int:
    """Be `python ARGV...`; returns the exit status of what isn't an exec.

    Raises OSError if the stub has been killed meanwhile.
    """
    os.setsid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != zygote:
        os._exit(1)
    given = _take_over(setting.request.stub)
    command = parse(setting.request.argv)
    cold = _why_cold(command, setting, given)
    if cold:  # into the zygote's log, as long as that is our standard error
        print(f"{setting.request.argv} runs in a fresh interpreter: {cold}", file=sys.stderr)
        sys.stderr.flush()
    _take_files(setting.request.files)
    if command is None or cold:
        _start_cold(setting.request.argv)
    _repair(command, setting.request.argv, given)
    return program.run(
        command,
        setting.debugger,
        setting.modules,
        lambda names: tell_imported(setting.socket, setting.request.token, names),
    )


def _take_over(stub: int) -> dict[str, str]:
    """Be where the stub is; returns the environment. Raises OSError if it is gone."""
    with open(f"/proc/{stub}/environ", "rb") as stream:
        pairs = [item.partition(b"=") for item in stream.read().split(b"\0") if item]
    os.environb.clear()
    for name, equals, value in pairs:
        if name and equals:
            os.environb[name] = value
    status = _status(stub)
    os.umask(int(status["Umask"], 8))
    os.chdir(f"/proc/{stub}/cwd")
    for limit in _LIMITS:
        try:
            resource.setrlimit(limit, resource.prlimit(stub, limit))
        except (OSError, ValueError):
            pass  # higher than ours, which only root may set
    os.sched_setaffinity(0, os.sched_getaffinity(stub))
    nice = os.getpriority(os.PRIO_PROCESS, stub)
    if nice > os.getpriority(os.PRIO_PROCESS, 0):
        os.setpriority(os.PRIO_PROCESS, 0, nice)
    _take_signals(int(status["SigIgn"], 16), int(status["SigBlk"], 16))
    return dict(os.environ)


def _status(pid: int) -> dict[str, str]:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as stream:
        parts = [line.partition(":") for line in stream]
    return {name: value.strip() for name, _, value in parts}


def _take_signals(ignored: int, blocked: int) -> None:
    """What a parent ignores or blocks stays so over an exec; the rest is as Python has it."""
    for number in signal.valid_signals():
        if number in (signal.SIGKILL, signal.SIGSTOP):
            continue
        wanted = signal.SIG_IGN if ignored >> (number - 1) & 1 else signal.SIG_DFL
        if number == signal.SIGINT and wanted == signal.SIG_DFL:
            wanted = signal.default_int_handler
        try:
            if signal.getsignal(number) is not wanted:
                signal.signal(number, wanted)
        except (OSError, ValueError):
            pass  # the C library's own
    mask = {number for number in signal.valid_signals() if blocked >> (number - 1) & 1}
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _take_files(files: tuple[tuple[int, int], ...]) -> None:
    """Give the files that came the numbers they have in the stub."""
    top = max([number for pair in files for number in pair], default=2) + 1
    held = [(wanted, _move_above(number, top)) for wanted, number in files]
    for number in range(3):
        try:
            os.close(number)
        except OSError:
            pass
    for wanted, number in held:
        os.dup2(number, wanted, inheritable=True)
        os.close(number)


def _move_above(number: int, least: int) -> int:
    import fcntl

    moved = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least)
    os.close(number)
    return moved


# -- cold


def _why_cold(command: Command | None, setting: Setting, given: dict[str, str]) -> str:
    """Why this program needs a fresh interpreter; "" if it doesn't."""
    if command is None:
        return "no program, or options that a running interpreter can't take"
    if command.flags != setting.flags:
        return "other options of the interpreter"
    if names := environment.differences(environment.read_early(given), setting.early):
        return f"other values of {', '.join(names)}, which are read early"
    folder = program.first_on_path(command, setting.debugger)
    if folder is not None and (shadowed := _shadowed(folder)):
        return f"{folder} has a module named {shadowed}"
    return ""


def _shadowed(folder: str) -> str:
    """A module in the program's folder that a fresh interpreter would import in place of ours."""
    try:
        entries = os.listdir(folder or ".")
    except OSError:
        return ""
    for entry in entries:
        name, dot, _ = entry.partition(".")
        loaded = sys.modules.get(name)
        if loaded is None or name in program.OF_THE_START:
            continue
        if dot and not entry.endswith((".py", ".so", ".pyc")):
            continue
        if not dot and not os.path.isfile(os.path.join(folder, entry, "__init__.py")):
            continue
        origin = getattr(loaded, "__file__", None) or ""
        if not _same(origin, os.path.join(folder, entry)):
            return name
    return ""


def _same(origin: str, found: str) -> bool:
    """Whether a loaded module is the one in the folder, as where site-packages is run from."""
    return os.path.realpath(origin).startswith(os.path.realpath(found))


def _start_cold(argv: tuple[str, ...]) -> NoReturn:
    os.execve(sys.executable, [sys.executable, *argv], dict(os.environb))


# -- repair


def _repair(command: Command, argv: tuple[str, ...], given: dict[str, str]) -> None:
    _name_process(argv)
    sys.orig_argv[:] = [sys.executable, *argv]
    sys._xoptions.clear()
    for option in command.xoptions:
        name, equals, value = option.partition("=")
        sys._xoptions[name] = value if equals else True
    asked = bool(given.get("PYTHONUNBUFFERED")) and not sys.flags.ignore_environment
    _open_streams(command.unbuffered or asked, given)
    _renew_entropy()
    importlib.invalidate_caches()
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.ORIGINAL_DIR = os.getcwd()
        processes.current_process().authkey = os.urandom(32)
    logging: Any = sys.modules.get("logging")
    if logging is not None:
        import time

        nanoseconds = isinstance(logging._startTime, int)  # since Python 3.13
        logging._startTime = time.time_ns() if nanoseconds else time.time()
    _forget_finalizers()
    linecache: Any = sys.modules.get("linecache")
    if linecache is not None:
        linecache.clearcache()
    if "TZ" in given:
        import time

        time.tzset()


def _forget_finalizers() -> None:
    """What was to be finalized at the zygote's end isn't this process's to clean up."""
    for info in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        info.atexit = False
    atexit.unregister(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def _renew_entropy() -> None:
    """What is seeded once per process and would be the same in every child."""
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "default_generator"):
        torch.default_generator.seed()


def _open_streams(unbuffered: bool, given: dict[str, str]) -> None:
    """`sys.stdin` and the others as Python makes them (`create_stdio` in pylifecycle.c)."""
    ours = sys.__stdin__  # made by Python for the same locale, without PYTHONIOENCODING
    assert ours is not None
    asked = "" if sys.flags.ignore_environment else given.get("PYTHONIOENCODING", "")
    encoding, _, errors = asked.partition(":")
    if not errors:
        errors = "strict" if encoding else ours.errors or "strict"
    encoding = encoding or ours.encoding
    sys.stdin = sys.__stdin__ = _stream(0, encoding, errors, unbuffered)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = _stream(1, encoding, errors, unbuffered)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _stream(  # type: ignore[misc]
        2, encoding, "backslashreplace", unbuffered
    )


def _stream(number: int, encoding: str, errors: str, unbuffered: bool) -> TextIO | None:
    mode = "r" if number == 0 else "w"
    try:
        os.fstat(number)
        buffering = 0 if unbuffered and number else -1
        buffer = open(number, f"{mode}b", buffering, closefd=False)  # noqa: SIM115
    except OSError:
        return None
    raw: Any = getattr(buffer, "raw", buffer)
    raw.name = ("<stdin>", "<stdout>", "<stderr>")[number]
    text: Any = io.TextIOWrapper(
        buffer,
        encoding,
        errors,
        newline="\n" if number else None,
        line_buffering=not unbuffered and (number == 2 or raw.isatty()),
        write_through=unbuffered,
    )
    text.mode = mode
    return text


def _name_process(argv: tuple[str, ...]) -> None:
    """What `ps` shows: the name, and the command line in the room that the zygote's has.

    The kernel takes a last byte that isn't NUL as a sign that the room holds one line of text.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NAME, os.path.basename(sys.executable).encode()[:15], 0, 0, 0)
    try:
        with open("/proc/self/stat", "rb") as stream:
            fields = stream.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        room = end - start
        text = b" ".join(os.fsencode(word) for word in (sys.executable, *argv))[: room - 2]
        ctypes.memmove(start, text.ljust(room - 1, b"\0") + b" ", room)
    except (OSError, ValueError, IndexError):
        pass  # no room for it: the name is all there is

"""The process that has imported everything and forks: one thread, never computes, no CUDA.

One loop over the socket at which stubs ask, the connections of stubs whose programs run, the pidfds
of those programs, and the pipe to the host. A child comes back out of `serve` as a function to
call, when all of this has been closed in it.

It never computes because a thread pool that has started (OpenMP, MKL) is missing in a fork. After
the imports there are two threads, of which numpy's BLAS takes one away before a fork by itself.
`gc.freeze` keeps the collector from writing into the pages that the children share.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import json
import linecache
import os
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from . import environment
from .child import Setting, become
from .debugger import Debugger, import_debugger
from .link import Malformed, Request, peer, receive

#: A fork costs 10 ms and 7 MB: more at once than this is a mistake, which cold starts slow down.
_MOST_CHILDREN = 256
_MOST_WAITING = 64
#: What a fork can't follow a stub into, in a container or another network.
_NAMESPACES = ("ipc", "mnt", "net", "pid", "user", "uts")


@dataclass
class _Stub:
    """A connection of a stub, while it asks and while its program runs."""

    connection: socket.socket
    received: bytearray = field(default_factory=bytearray)
    files: list[int] = field(default_factory=list)
    pid: int | None = None

    def say(self, text: str) -> None:
        try:
            self.connection.sendall(f"{text}\n".encode())
        except OSError:
            pass  # it is gone; its end of file comes


class Zygote:
    """Serves one environment."""

    def __init__(self, config: dict[str, Any], host_in: int, host_out: int) -> None:
        self._token: str = config["token"]
        self._path: str = config["socket"]
        self._in, self._out = host_in, host_out
        self._flags = tuple(config["flags"])
        #: Whose death ends all of a session: our adapter's, whose program is in another group.
        self._whole_session = bool(config.get("whole_session"))
        self._early = environment.read_early(os.environ)
        self._selector = selectors.DefaultSelector()
        self._stubs: dict[int, _Stub] = {}
        self._pidfds: dict[int, int] = {}
        self._debugger: Debugger | None = None
        self._listener: socket.socket | None = None
        self._retired = False
        self._modules: frozenset[str] = frozenset()
        self._own = {name: _namespace(name, os.getpid()) for name in _NAMESPACES}
        #: Given up to tell a stub that there is no number left for it.
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def prepare(self, modules: Iterable[str], debugger: str, agent: str) -> None:
        """Import all that the children shall find, and listen."""
        began = time.monotonic()
        failed = {name: why for name in modules if (why := _import(name))}
        loaded = set(sys.modules)
        if debugger:
            self._debugger = import_debugger(debugger, agent)
            loaded.update(self._debugger.modules)
        self._modules = frozenset(sys.modules)
        linecache.clearcache()  # which a child does as well: 4 ms to free these lines there
        gc.collect()
        gc.freeze()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self._path)
        os.chmod(self._path, 0o600)
        self._listener.listen(_MOST_WAITING)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._in, selectors.EVENT_READ, self._on_host)
        self._tell(
            "ready",
            unsafe=_why_unsafe(),
            modules=sorted(loaded),
            seconds=round(time.monotonic() - began, 3),
            failed=failed,
            sources=_sources(self._debugger),
            threads=len(os.listdir("/proc/self/task")),
            python=sys.version.partition(" ")[0],
        )

    def serve(self) -> Callable[[], int] | None:
        """Wait and fork. In a child: what it has to run; None when the zygote is at its end."""
        while not (self._retired and not self._pidfds):
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is not key:
                    continue  # closed by what came before it: a program and its stub die together
                born = key.data(key.fileobj)
                if born is not None:
                    return born
        return None

    # What can happen -------------------------------------------------------------------------

    def _on_host(self, _: Any) -> None:
        """The host speaks only by closing: serve no new programs, end with the last child."""
        if not os.read(self._in, 4096):
            self._selector.unregister(self._in)
            self._retire()

    def _retire(self) -> None:
        self._retired = True
        if self._listener is not None:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._listener = None
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._turn_away(listener)
            return
        if peer(connection)[1] != os.getuid():
            connection.close()
            return
        connection.setblocking(True)
        stub = _Stub(connection)
        self._selector.register(connection, selectors.EVENT_READ, partial(self._on_stub, stub))

    def _turn_away(self, listener: socket.socket) -> None:
        """Without a number for the connection it would stay there, and we would spin."""
        os.close(self._spare)
        try:
            connection, _ = listener.accept()
            with connection:
                _Stub(connection).say("cold")
        except OSError:
            pass  # it has given up
        finally:
            self._spare = os.open(os.devnull, os.O_RDONLY)

    def _on_stub(self, stub: _Stub, _: Any) -> Callable[[], int] | None:
        if stub.pid is not None:
            self._on_running(stub)
            return None
        try:
            request = receive(stub.connection, stub.received, stub.files)
            if request is None:
                return None
            if request.token != self._token:
                raise Malformed("a wrong token")
            if request.imported:
                self._tell("imported", names=request.imported)
                self._drop(stub)
                return None
        except (Malformed, OSError) as error:
            self._log(f"refused: {error}")
            self._drop(stub)
            return None
        if why := self._why_not(request):
            self._log(f"{request.argv} runs in a fresh interpreter: {why}")
            stub.say("cold")
            self._drop(stub)
            return None
        return self._fork(stub, request)

    def _on_running(self, stub: _Stub) -> None:
        try:
            data = stub.connection.recv(4096)
        except OSError:
            data = b""
        assert stub.pid is not None
        if not data:
            # Killed, as the program would have been in its place.
            if self._whole_session:
                _kill_session(stub.pid)
            _signal_group(stub.pid, signal.SIGKILL)
            self._drop(stub)
            return
        for line in data.split(b"\n"):
            word, _, number = line.partition(b" ")
            if number.isdigit():
                send = _signal_group if word == b"group" else _signal
                send(stub.pid, int(number))

    def _fork(self, stub: _Stub, request: Request) -> Callable[[], int] | None:
        setting = Setting(
            request,
            flags=self._flags,
            early=self._early,
            debugger=self._debugger,
            socket=self._path,
            modules=self._modules,
        )
        parent = os.getpid()
        with warnings.catch_warnings():  # of threads: see above
            warnings.simplefilter("ignore")
            try:
                pid = os.fork()
            except OSError as error:
                self._log(f"cannot fork: {error}")
                stub.say("cold")
                self._drop(stub)
                return None
        if pid == 0:
            self._close_all(stub)
            return lambda: become(setting, parent)
        for number in stub.files:
            os.close(number)
        stub.files.clear()
        stub.pid = pid
        self._stubs[pid] = stub
        pidfd = os.pidfd_open(pid)
        self._pidfds[pid] = pidfd
        self._selector.register(pidfd, selectors.EVENT_READ, partial(self._on_exit, pid))
        stub.say(f"pid {pid}")
        self._tell("started", pid=pid, stub=request.stub)
        return None

    def _on_exit(self, pid: int, _: Any) -> None:
        _, status, usage = os.wait4(pid, 0)
        pidfd = self._pidfds.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(status)
        stub = self._stubs.pop(pid, None)
        if stub is not None:
            stub.say(f"exit {code}")
            self._drop(stub)
        self._tell("ended", pid=pid, status=code, cpu=round(usage.ru_utime + usage.ru_stime, 3))

    # Helpers ---------------------------------------------------------------------------------

    def _why_not(self, request: Request) -> str:
        """Why a fork can't be made, or could not be where the stub is; "" if it can."""
        if len(self._pidfds) >= _MOST_CHILDREN:
            return f"{_MOST_CHILDREN} others run"
        try:  # the number of the pidfd: after the fork it is too late to refuse
            os.close(os.dup(self._spare))
        except OSError as error:
            return str(error.strerror)
        other = [name for name in _NAMESPACES if _namespace(name, request.stub) != self._own[name]]
        return f"it is in another namespace ({', '.join(other)})" if other else ""

    def _drop(self, stub: _Stub) -> None:
        self._selector.unregister(stub.connection)
        stub.connection.close()
        for number in stub.files:
            os.close(number)
        stub.files.clear()
        if stub.pid is not None:
            self._stubs.pop(stub.pid, None)

    def _close_all(self, mine: _Stub) -> None:
        """In a child: keep nothing of the zygote's open but the files that came for this one."""
        for key in list(self._selector.get_map().values()):
            file: Any = key.fileobj
            if isinstance(file, socket.socket):  # which would close its number once more
                file.close()
            else:
                os.close(file)
        self._selector.close()
        os.close(self._out)
        os.close(self._spare)

    def _tell(self, kind: str, **fields: Any) -> None:
        message = json.dumps({"kind": kind, **fields}) + "\n"
        data = message.encode()
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError:
            pass  # the host is gone: its end of file comes

    def _log(self, text: str) -> None:
        print(f"zygote {os.getpid()}: {text}", file=sys.stderr, flush=True)


def main() -> None:
    """Run as a zygote, configured by a line of JSON on standard input; in a child, the program."""
    host_in, host_out = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(host_in, 1)
        if not data:
            return
        line += data
    config = json.loads(line)
    zygote = Zygote(config, host_in, host_out)
    zygote.prepare(config["preload"], config["debugger"], config["agent"])
    born = zygote.serve()
    if born is None:
        os._exit(0)
    del zygote
    try:
        status = born()
    except BaseException:  # ours: the program's own have been dealt with
        traceback.print_exc()
        status = 1
    os._exit(status)


# -- imports


def _import(name: str) -> str:
    """Import a module; "" or why it failed.

    `module:attribute` for a lazy attribute, `/folder/module` for one that is in no folder of
    `sys.path`.
    """
    place, _, attribute = name.partition(":")
    folder, module = os.path.split(place)
    path = list(sys.path)
    try:
        if folder:
            sys.path.insert(0, folder)
        loaded = importlib.import_module(module)
        if attribute:
            getattr(loaded, attribute)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        if folder:
            sys.path[:] = path
    return ""


def _why_unsafe() -> str:
    """What an import has started that a fork would lack; "" if nothing."""
    others = [thread.name for thread in threading.enumerate()][1:]
    if others:
        return f"an import has started the thread {others[0]}"
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        return "an import has initialised CUDA"
    return ""


def _sources(debugger: Debugger | None) -> list[tuple[str, int, int]]:
    """The files that were loaded, with what changes when they do."""
    found: list[tuple[str, int, int]] = []
    loaded = [*sys.modules.values(), *(debugger.modules.values() if debugger else ())]
    for module in loaded:
        path = getattr(module, "__dict__", {}).get("__file__")
        try:
            status = os.stat(path or "")
        except OSError:
            continue
        found.append((str(path), status.st_mtime_ns, status.st_size))
    for entry in sys.path:  # a package that was installed meanwhile, or taken away
        if os.path.basename(entry) in ("site-packages", "dist-packages"):
            status = os.stat(entry)
            found.append((entry, status.st_mtime_ns, status.st_size))
    return found


# -- processes


def _namespace(kind: str, pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""  # the process has ended, or the kernel has none of these


def _kill_session(leader: int) -> None:
    """Kill all processes that have not left the session of a child."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            if os.getsid(int(name)) == leader:
                os.kill(int(name), signal.SIGKILL)
        except OSError:
            pass  # it has ended, or belongs to another user


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, _effective(pid, number))
    except (OSError, ValueError):
        pass  # it has ended, or there is no such signal


def _effective(pid: int, number: int) -> int:
    """The signal that does to a child what `number` would do to a job of a shell's.

    The kernel ignores the stop signals of terminals where nobody could continue the process: its
    parent, we, is in another session.
    """
    if number not in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        return number
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as stream:
        masks = [line.split()[1] for line in stream if line.startswith(("SigIgn:", "SigCgt:"))]
    handled = any(int(mask, 16) >> (number - 1) & 1 for mask in masks)
    return number if handled else signal.SIGSTOP


def _signal_group(pid: int, number: int) -> None:
    try:
        os.killpg(pid, _effective(pid, number))
    except PermissionError:
        pass
    except (OSError, ValueError):
        _signal(pid, number)  # it has not made its group yet

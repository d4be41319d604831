"""`tensorpoint host`: look at the resident process, start and stop it, use it by hand."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path

from ..wire import pack
from ..wire.lending import Kept, Lender, NoLender
from . import places
from .client import Client, NoHost, supported
from .host import serve
from .messages import Environment, Status
from .stubs import STUB, write_executable


def host(
    action: str, *, python: str | None = None, as_json: bool = False, drop: bool = False
) -> int:
    """One of the actions; returns the exit status."""
    why_not = supported()
    if why_not:
        print(f"tensorpoint host: {why_not}", file=sys.stderr)
        return 1
    if action == "weights":
        return _weights(as_json, drop)
    if action == "serve":
        return serve()
    try:
        client = Client()
        if action == "start":
            return _start(client, _interpreter(python))
        if action == "python":
            print(_make_executable(_interpreter(python)))
        elif action == "stop":
            client.stop()
        elif action == "restart":
            client.restart()
        elif action == "logs":
            _show_logs()
        else:
            _show(client.status(), as_json)
    except NoHost as error:
        print(f"tensorpoint host: {error}", file=sys.stderr)
        return 1
    return 0


def _interpreter(name: str | None) -> str:
    """The path of an interpreter, looked up as a shell does. Raises `NoHost`."""
    found = shutil.which(name or sys.executable)
    if found is None:
        raise NoHost(f"there is no interpreter {name!r}")
    return os.path.abspath(found)


def _start(client: Client, python: str) -> int:
    client.start()
    wanted = Environment((python,), dict(os.environ))
    answer = client.acquire(wanted, wait=True)
    if answer.state != "ready":
        print(f"tensorpoint host: {answer.note}", file=sys.stderr)
        return 1
    return 0


def _show(status: Status, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(status), indent=2))
        return
    print(f"host {status.pid}, version {status.version}, at {status.folder}")
    for zygote in status.zygotes:
        flags = f" {shlex.join(zygote.flags)}" if zygote.flags else ""
        print(f"{zygote.key}: {zygote.python}{flags}: {zygote.state}")
        if zygote.pid is not None:
            print(
                f"  process {zygote.pid}, {zygote.memory_mib or 0:.0f} MiB, {zygote.modules} "
                f"modules imported in {zygote.seconds or 0:.1f} s; {zygote.runs} programs run, "
                f"{len(zygote.running)} running, last used {zygote.idle_s:.0f} s ago"
            )
        if zygote.note:
            print(f"  {zygote.note}")


def _weights(as_json: bool, drop: bool) -> int:
    if drop:
        return _drop_weights()
    found, on_devices = pack.packs(), _kept_on_devices()
    if as_json:
        print(json.dumps([asdict(each) for each in [*found, *on_devices]], indent=2))
        return 0
    if not found and not on_devices:
        settings = '"keepWeights": true, or "keepWeightsOnDevice"'
        print(f"tensorpoint host: no weights are kept ({settings})", file=sys.stderr)
    for each in found:
        print(
            f"{each.source} as {each.dtype.removeprefix('torch.')}: "
            f"{_mib(each.bytes)}, {each.tensors} tensors, {_last_used(each.used)}"
        )
    for each in on_devices:
        loading = f", in use by {', '.join(map(str, each.borrowers))}" if each.borrowers else ""
        state = f", {each.state}" if each.state != "kept" else ""
        where = f"{each.source} on {each.device.removeprefix('cuda:')}"
        print(f"{where}: {_mib(each.bytes)}{state}{loading}, {_last_used(each.used)}")
    return 0


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _last_used(seconds: float) -> str:
    return f"last used {time.strftime('%Y-%m-%d %H:%M', time.localtime(seconds))}"


def _kept_on_devices() -> list[Kept]:
    """None if no broker runs."""
    nobody = contextlib.suppress(places.NoPlace, NoLender)
    with nobody, Lender(str(places.runtime_folder())) as lender:
        return lender.listing()
    return []


def _drop_weights() -> int:
    nobody = contextlib.suppress(places.NoPlace, NoLender)
    with nobody, Lender(str(places.runtime_folder())) as lender:
        lender.drop()
    try:
        shutil.rmtree(pack.folder())
    except FileNotFoundError:
        pass  # none are kept
    except OSError as error:
        print(f"tensorpoint host: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _show_logs() -> None:
    for log in sorted(places.log_folder(places.runtime_folder()).iterdir()):
        text = log.read_text(encoding="utf-8", errors="replace")
        if text:
            print(f"== {log}\n{text.rstrip()}")


def _make_executable(python: str) -> Path:
    """A file that can be named as the interpreter, in a debug configuration or for torchrun.

    It asks the host each time; where there is none it is the interpreter, and starts one for next
    time.
    """
    name = python.strip("/").replace("/", "-")[-80:]
    path = places.cache_folder() / "python" / name / os.path.basename(python)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_executable(path, [python, "-IS", STUB, "@", sys.executable])
    return path

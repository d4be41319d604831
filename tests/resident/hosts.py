"""A host of a test's own, and programs run by its zygotes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorpoint.dap.resident import TOOLS
from tensorpoint.resident.client import Client, NoHost, stub_command
from tensorpoint.resident.messages import Answer, Environment, Status
from tests.protocol.dap import STUBBED

SERVER = Path(__file__).resolve().parents[2] / "server"
#: What several programs under test import beside torch, with all that this loads.
COMMON = (
    "torch._dynamo",
    "torch.fx.experimental.symbolic_shapes",
    "torch.distributed.tensor",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
)
#: A host whose zygotes are never replaced by ones that import what programs have imported, and that
#: doesn't add up their memory at each look at what runs: 10 ms of CPU a zygote, at each session.
_STEADY = """\
import sys
from tensorpoint.cli import main
from tensorpoint.resident import zygotes
zygotes._WORTH = sys.maxsize
zygotes._memory = lambda pid: None
sys.exit(main(["host", "serve"]))
"""


class Host:
    """A host in a runtime folder of its own."""

    def __init__(self, folder: Path, environment: Mapping[str, str], is_steady: bool) -> None:
        self.folder = folder
        self.is_steady = is_steady
        self.client = Client(folder)
        #: For processes that shall find this host.
        self.environment = dict(environment)

    def acquire(
        self, python: Sequence[str] = (sys.executable,), wait: bool = True, **variables: str
    ) -> Answer:
        wanted = Environment(tuple(python), {**self.environment, **variables})
        return self.client.acquire(wanted, wait)

    def prepare_adapters(self) -> None:
        """Have zygotes for adapters that tests start, and for what those launch.

        Before any session, lest a zygote has its environment, by which a test finds processes.
        """
        variables = {**self.environment, "PYTHONPATH": str(SERVER)}
        for wanted in (
            Environment((sys.executable,), variables, COMMON),
            Environment((sys.executable,), {**self.environment, **STUBBED["env"]}),
            Environment(TOOLS.python, variables, TOOLS.preload, tools=True),
        ):
            assert self.client.acquire(wanted, wait=True).state == "ready"

    def command(self, *argv: str, answer: Answer | None = None) -> list[str]:
        """What runs `python ARGV...` from a zygote."""
        return [*stub_command([sys.executable], answer or self.acquire()), *argv]

    def run(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run `python ARGV...` from a zygote to its end."""
        answer = self.acquire(**options.get("env", {}))
        return run(self.command(*argv, answer=answer), self.environment, **options)

    def plain(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """The same by the interpreter itself."""
        return run([sys.executable, *argv], self.environment, **options)

    def status(self) -> Status:
        return self.client.status()

    @contextlib.contextmanager
    def counting_runs(self) -> Iterator[list[int]]:
        """How many programs were forked within this, once it has ended; none of our own processes.

        By environment: the host may let go meanwhile of one that another test has used.
        """
        counted: list[int] = []
        before = self._runs()
        yield counted
        counted.append(sum(runs - before.get(key, 0) for key, runs in self._runs().items()))

    def _runs(self) -> dict[str, int]:
        return {each.key: each.runs for each in self.status().zygotes if each.flags != ("-P",)}

    def log(self) -> str:
        return "\n".join(
            path.read_text(errors="replace") for path in sorted((self.folder / "log").iterdir())
        )


def run(
    command: list[str], environment: Mapping[str, str], **options: Any
) -> subprocess.CompletedProcess[str]:
    variables = {**environment, **options.pop("env", {})}
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    options.setdefault("timeout", 100)
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stderr", subprocess.PIPE)
    return subprocess.run(command, check=False, env=variables, text=True, **options)


@contextlib.contextmanager
def running_host(is_steady: bool = False, /, **variables: str) -> Iterator[Host]:
    """A host that is stopped at the end, whatever has become of it."""
    # Not below pytest's folder: the path of a socket is short.
    folder = Path(tempfile.mkdtemp(prefix="tp-"))
    environment = {
        **os.environ,
        "TENSORPOINT_RUNTIME_DIR": str(folder / "r"),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "TENSORPOINT_RESIDENT": "wait",
        **variables,
    }
    (folder / "r").mkdir(mode=0o700)
    host = Host(folder / "r", environment, is_steady)
    process = _start(host)
    try:
        _wait_for(host, process)
        yield host
    finally:
        try:
            with contextlib.suppress(NoHost):
                host.client.stop()
        finally:
            process.kill()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def found_by_all(host: Host) -> Iterator[None]:
    """Processes that this one starts find the host, and wait for its zygotes."""
    was = dict(os.environ)
    for name in ("TENSORPOINT_RUNTIME_DIR", "XDG_CACHE_HOME", "TENSORPOINT_RESIDENT"):
        os.environ[name] = host.environment[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(was)


def start(host: Host) -> subprocess.Popen[bytes]:
    """Start a host in the foreground of the test, and wait until it answers."""
    process = _start(host)
    _wait_for(host, process)
    return process


def _start(host: Host) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(SERVER), host.environment.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return subprocess.Popen(
        [
            sys.executable,
            *(("-c", _STEADY) if host.is_steady else ("-m", "tensorpoint", "host", "serve")),
        ],
        env={**host.environment, "PYTHONPATH": path},
    )


def _wait_for(host: Host, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            host.client.status()
            return
        except NoHost:
            assert time.monotonic() < end and process.poll() is None, host.log()
            time.sleep(0.02)

"""Attach to what runs already, and leave it as it was."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import (
    DEADLINE,
    SERVER,
    STUB,
    Message,
    Session,
    eventually,
    free_port,
    line_of,
)
from tests.protocol.samples import LAYERS

#: The adapters: programs that are attached to are started by the tests, and afresh.
pytestmark = pytest.mark.usefixtures("resident_process")

#: Goes on until a file appears beside it, and tells how many hooks torch has.
FOREVER = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
import time
from pathlib import Path
from typing import Any
from torch.nn.modules import module

net = Net()
end = Path(__file__).with_suffix(".end")
step = 0
while not end.exists():
    net(step)  # call net
    hooks = len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)
    print("step", step, "hooks", hooks, flush=True)
    step += 1
    time.sleep(0.02)
print("end", module._has_any_global_hook(), flush=True)
"""
)
#: The same with three threads.
THREADS_FOREVER = (
    FOREVER[: FOREVER.index("net = Net()")]
    + """\
import threading

end = Path(__file__).with_suffix(".end")


def work():
    net = Net()
    step = 0
    while not end.exists():
        net(step)
        print(threading.current_thread().name, "step", step, flush=True)
        step += 1
        time.sleep(0.02)


for i in range(3):
    threading.Thread(target=work, name=f"worker-{i}").start()
"""
)


class Debuggee:
    """A program that was started without us, and what it has printed."""

    def __init__(self, program: Path, command: Sequence[str], env: Mapping[str, str]) -> None:
        self.program = program
        self.process = subprocess.Popen(
            [*command, str(program)],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.lines: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def expect(self, text: str) -> str:
        """Wait for a line with this text that has not been looked at."""
        eventually(lambda: any(text in line for line in self.lines), f"{text!r} in {self.lines}")
        while text not in (line := self.lines.pop(0)):
            pass
        return line

    def runs_on(self) -> str:
        """Wait for some more steps; returns the last line."""
        self.lines.clear()
        eventually(lambda: len(self.lines) > 3, "more steps")
        return self.lines[-1]

    def end(self) -> int:
        """Let the program end by itself."""
        self.program.with_suffix(".end").touch()
        return self.process.wait(DEADLINE)


@contextlib.contextmanager
def debuggee(
    program: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> Iterator[Debuggee]:
    command = [*prefix, sys.executable, *arguments]
    running = Debuggee(program, command, env or {"PYTHONPATH": str(STUB)})
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@contextlib.contextmanager
def listening(
    program: Path, env: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> Iterator[tuple[Debuggee, Message]]:
    """A program under `debugpy --listen` and the address of its adapter."""
    port = free_port()
    listen = ("-m", "debugpy", "--listen", f"127.0.0.1:{port}")
    with debuggee(program, *listen, env=env, prefix=prefix) as running:
        yield running, {"host": "127.0.0.1", "port": port}


STOP_AT_B = [{"name": "layer:b"}]


def attach(session: Session, functions: list[Message] | None = None, **arguments: Any) -> None:
    session.start("attach", **arguments)
    session.configure(filters=["nonfinite"], functions=functions)


def test_attach_to_a_running_loop_stops_and_detach_leaves_no_hook(write: Write) -> None:
    program = write(FOREVER)
    with listening(program) as (running, address):
        assert "hooks 0" in running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B, **address)
            stopped = session.stopped()
            assert stopped["tensorpoint"]["module"] == "b"
            assert session.top(stopped) == ("program.py", line_of(program, "# call b"))
            stopped = session.step("next", stopped)
            assert session.top(stopped) == ("program.py", line_of(program, "# after b"))
            # Detached from where it stands.
            session.request("disconnect", terminateDebuggee=False)
            session.wait_closed()
            session.expect_no_process()
        assert "hooks 0" in running.runs_on()
        # And once more, by the other way to write the address.
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            stopped = session.stopped()
            session.request("setFunctionBreakpoints", breakpoints=[])
            session.resume(stopped)
            running.runs_on()
            session.request("disconnect")
            session.wait_closed()
        assert "hooks 0" in running.runs_on()
        assert running.end() == 0
        running.expect("end False")


@pytest.mark.parametrize("at_a_stop", [True, False], ids=["stopped", "running"])
def test_an_editor_that_vanishes_leaves_the_program_running(write: Write, at_a_stop: bool) -> None:
    program = write(FOREVER)
    with listening(program) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B if at_a_stop else None, connect=address)
            if at_a_stop:
                session.stopped()
            else:
                running.runs_on()
            session.close_input()
            session.wait_closed()
            session.expect_no_process()
        assert "hooks 0" in running.runs_on()
        assert running.end() == 0


def test_an_adapter_that_is_killed_leaves_the_program_running(write: Write) -> None:
    program = write(FOREVER)
    with listening(program) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            session.stopped()
            assert session.process is not None
            session.process.kill()
            running.runs_on()
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            session.stopped()
            session.request("disconnect")
        assert "hooks 0" in running.runs_on()


def test_disconnect_may_end_an_attached_program(write: Write) -> None:
    program = write(FOREVER)
    with listening(program) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            session.stopped()
            session.request("disconnect", terminateDebuggee=True)
            session.wait_closed()
        running.process.wait(DEADLINE)


def test_attach_takes_tensorpoints_from_its_configuration(write: Write) -> None:
    program = write(FOREVER)
    with listening(program) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, connect=address, tensorpoints=["layer:a if step > 2", "nonsense"])
            stopped = session.stopped()
            assert stopped["tensorpoint"]["condition"] == "layer:a if step > 2"
            assert "nonsense\n^" in session.output("important")


def test_attach_by_listen(write: Write) -> None:
    program = write(LAYERS)
    port = free_port()
    with Session() as session:
        session.initialize()
        number = session.send("attach", listen={"host": "127.0.0.1", "port": port})
        session.expect("debugpyWaitingForServer", port=port)
        with debuggee(program, "-m", "debugpy", "--connect", f"127.0.0.1:{port}") as running:
            session.expect("initialized")
            session.configure_after(number, functions=[{"name": "layer:b"}])
            stopped = session.stopped()
            assert session.top(stopped) == ("program.py", line_of(program, "# call b"))
            session.request("setFunctionBreakpoints", breakpoints=[])
            session.resume(stopped)
            session.expect("terminated")
            running.process.wait(DEADLINE)


# Torch at the moment of the attach ----------------------------------------------------------------

IMPORTS_ON_A_THREAD = """\
import threading, time
print("begin", flush=True)
imported = threading.Event()

def load():
    import torch
    imported.set()

threading.Thread(target=load).start()
imported.wait()
"""


@pytest.mark.parametrize("fails_first", [False, True])
def test_attach_while_another_thread_imports_torch(
    write: Write, tmp_path: Path, fails_first: bool
) -> None:
    site = tmp_path / "site-packages"
    shutil.copytree(STUB, site)
    slow = site / "torch" / "__init__.py"
    slow.write_text(
        "import os, time\n"
        "print('importing', flush=True)\n"
        "while not os.path.exists(os.environ['IMPORTS_ON']):\n"
        "    time.sleep(0.02)\n" + slow.read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    code = IMPORTS_ON_A_THREAD
    if fails_first:
        flaky = (
            "if not hasattr(time, 'tried'):\n    time.tried = 1\n    raise ImportError('flaky')\n"
        )
        slow.write_text(slow.read_text(encoding="utf-8") + flaky, encoding="utf-8")
        code = code.replace(
            "    import torch\n",
            "    try:\n        import torch\n    except ImportError:\n        import torch\n",
        )
    program = write(code + FOREVER)
    go_on = tmp_path / "go on"
    environment = {"PYTHONPATH": str(site), "IMPORTS_ON": str(go_on)}
    with listening(program, environment) as (running, address):
        running.expect("importing")
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            assert not any("step" in line for line in running.lines)
            go_on.touch()
            stopped = session.stopped()
            assert stopped["tensorpoint"]["module"] == "b"
            # Imported as often as the program did it, not once more by us.
            assert sum("importing" in line for line in running.lines) == int(fails_first)
            session.request("disconnect")
            session.wait_closed()
        assert "hooks 0" in running.runs_on()


TRAINS = """\
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

torch.set_num_threads(1)


class Sharp(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.sharp = Sharp()

    def forward(self, x):
        h = self.body(x)
        y = self.sharp(h)  # call sharp
        return y


net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
end = Path(__file__).with_suffix(".end")
step = 0
while not end.exists():
    loss = net(torch.randn(16, 4)).nanmean()
    loss.backward()
    optimizer.step()
    module = torch.nn.modules.module
    hooks = len(module._global_forward_hooks) + len(module._global_forward_pre_hooks)
    print("step", step, "hooks", hooks, flush=True)
    step += 1
    time.sleep(0.05)
assert not torch.nn.modules.module._global_forward_hooks
assert not torch.nn.modules.module._global_forward_pre_hooks
assert not sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
assert nn.Module.compile.__module__ == "torch.nn.modules.module"
"""


def test_attach_to_a_training_loop_finds_its_nan_and_detach_leaves_torch_as_it_was(
    write: Write,
) -> None:
    program = write(TRAINS)
    with listening(program, {"PYTHONPATH": ""}) as (running, address):
        assert "hooks 0" in running.expect("step 2")
        with Session() as session:
            attach(session, connect=address)
            stopped = session.stopped()
            stop = stopped["tensorpoint"]
            assert (stop["event"], stop["module"]) == ("nonfinite.forward", "sharp")
            assert ("program.py", line_of(program, "# call sharp")) in session.places(stopped)
            session.resume(stopped)
            assert "hooks 2" in running.runs_on()  # true there all the time: said once
            session.request("disconnect")
            session.wait_closed()
        assert "hooks 0" in running.runs_on()
        assert running.end() == 0


# Addresses ----------------------------------------------------------------------------------------


def test_an_address_where_nobody_listens_is_a_clear_error() -> None:
    port = free_port()
    with Session() as session:
        session.initialize()
        message = session.refused("attach", connect={"port": port})
        assert f"cannot attach to 127.0.0.1:{port}" in message
        assert "debugpy --listen" in message
        session.request("disconnect")
        session.wait_closed()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", None])
def test_an_address_where_something_else_listens_is_a_clear_error(answer: bytes | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken: list[socket.socket] = []

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = other.accept()
                taken.append(connection)
                if answer is not None:  # else it says nothing
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=serve, daemon=True).start()
        with Session() as session:
            session.initialize()
            begun = time.monotonic()
            message = session.refused("attach", connect={"port": port})
            assert f"what listens at 127.0.0.1:{port} is not a debug adapter" in message
            assert time.monotonic() - begun < 20
            session.launch(code="pass")  # and nothing is lost
            assert session.exit_code() == 0
        for connection in taken:
            connection.close()


# Where nothing of ours is readable ----------------------------------------------------------------


def hidden(folder: Path) -> list[str] | None:
    """A command prefix under which `folder` is empty, or None where that can't be done."""
    for unshare in (["unshare", "-m"], ["unshare", "-rm"]):
        prefix = [*unshare, "sh", "-c", f'mount -t tmpfs none "{folder}" && exec "$@"', "sh"]
        try:
            if not subprocess.call([*prefix, "true"], stderr=subprocess.DEVNULL, timeout=20):
                return prefix
        except (OSError, subprocess.TimeoutExpired):
            return None
    return None


def test_attach_to_a_program_that_cannot_read_our_files(write: Write) -> None:
    """As in a container: the agent is sent along."""
    prefix = hidden(SERVER)
    if prefix is None:
        pytest.skip("mount namespaces are not allowed here")
    program = write(FOREVER)
    with listening(program, prefix=prefix) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            stopped = session.stopped()
            assert session.top(stopped) == ("program.py", line_of(program, "# call b"))
            for _ in range(6):  # and its frames are hidden all the same
                stopped = session.step("stepIn", stopped)
                assert {name for name, _ in session.places(stopped)} == {"program.py"}
            session.request("disconnect")
            session.wait_closed()
        assert "hooks 0" in running.runs_on()


def test_detach_lets_threads_that_wait_for_their_stop_go_on(write: Write) -> None:
    program = write(THREADS_FOREVER)
    with listening(program) as (running, address):
        running.expect("step 3")
        with Session() as session:
            attach(session, STOP_AT_B, connect=address)
            for _ in range(4):  # one after the other, each thread in its turn
                session.resume(session.stopped())
            session.stopped()
            session.request("disconnect", terminateDebuggee=False)
            session.wait_closed()
        for name in ("worker-0", "worker-1", "worker-2"):
            running.lines.clear()
            running.expect(name)
        assert len(session.seen("stopped")) == 5
        assert running.end() == 0


# By process id ------------------------------------------------------------------------------------


def attaches_by_pid(adapter: list[str] | None, program: Path) -> str | None:
    """Attach to a fresh process by its id; None if the session begins, else why not."""
    with debuggee(program) as running:
        running.expect("step 3")
        with Session(adapter=adapter) as session:
            session.initialize()
            number = session.send("attach", processId=running.process.pid)
            try:
                session.expect("initialized")
                session.configure_after(number, functions=STOP_AT_B if adapter is None else None)
            except AssertionError as error:
                return str(error)
            if adapter is None:
                stopped = session.stopped()
                assert stopped["tensorpoint"]["module"] == "b"
            session.request("disconnect", terminateDebuggee=False)
            session.close_input()  # stock waits for that
            session.wait_closed()
        assert "hooks 0" in running.runs_on()
    return None


@pytest.mark.skipif(
    not (shutil.which("gdb") or shutil.which("lldb")),
    reason="debugpy attaches to a process id through gdb or lldb, and neither is here",
)
def test_attach_by_process_id_where_stock_debugpy_does(write: Write) -> None:
    program = write(FOREVER)
    reason = attaches_by_pid([sys.executable, "-m", "debugpy.adapter"], program)
    if reason is not None:
        pytest.skip(
            f"stock debugpy does not attach to a process id here: {textwrap.shorten(reason, 300)}"
        )
    assert attaches_by_pid(None, program) is None


OTHER_PYDEVD = """\
import sys
import time

import torch

frames = sys.modules["_pydevd_bundle.pydevd_suspended_frames"]
original = frames._AbstractVariable.get_var_data
frames._AbstractVariable.get_var_data = lambda self, *args, **more: original(self, *args, **more)
many = list(range(500))
print("ready", flush=True)
while True:
    time.sleep(0.02)
    print("step", flush=True)  # here
"""


def test_a_debugger_that_we_do_not_know_shows_values_by_itself(write: Write) -> None:
    """Nothing is installed in the debuggee, and what is wrapped in it is compared before."""
    program = write(OTHER_PYDEVD)
    with listening(program) as (running, address):
        running.expect("ready")
        with Session() as session:
            session.start("attach", connect=address)
            session.request(
                "setBreakpoints",
                source={"path": str(program)},
                breakpoints=[{"line": line_of(program, "# here")}],
            )
            session.configure(filters=[])
            stopped = session.stopped()
            scope = session.scopes(stopped)["Locals"]
            rows = session.request("variables", variablesReference=scope)["variables"]
            many = next(row for row in rows if row["name"] == "many")
            assert many["value"].startswith("[0, 1, 2, 3")  # ours: "list of 500"
            eventually(lambda: "debugpy shows them by itself" in session.output(), "the reason")
            assert "get_var_data" in session.output()
            session.request("disconnect", terminateDebuggee=False)
            session.wait_closed()
        running.runs_on()

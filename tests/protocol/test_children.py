"""The processes that a program starts are sessions of their own, with an agent each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import (
    PLAIN,
    STUBBED,
    VSCODE,
    Message,
    Session,
    eventually,
    line_of,
    serving,
)
from tests.protocol.samples import LAYERS

pytestmark = pytest.mark.usefixtures("resident_process")

STOP_AT_B = [{"name": "layer:b", "condition": "step == 1"}]
ADAPTER = [sys.executable, "-m", "tensorpoint", "dap"]

SUBPROCESS = """\
import subprocess, sys
from pathlib import Path
child = [sys.executable, str(Path(__file__).with_name("child.py"))]
print("child ended with", subprocess.run(child).returncode)
"""


@pytest.fixture
def program(write: Write) -> Path:
    """A program that runs LAYERS, in `child.py`, as a subprocess."""
    write(LAYERS, "child.py")
    return write(SUBPROCESS)


def stop_in_child(
    session: Session, program: Path, through: list[str] | tuple[str, int] | None = None
) -> None:
    """The child stops at layer b, steps, and both end."""
    child = session.child(functions=STOP_AT_B, filters=["nonfinite"], through=through)
    with child:
        stopped = child.stopped()
        path = program.with_name("child.py")
        assert stopped["tensorpoint"]["module"] == "b"
        assert child.top(stopped) == ("child.py", line_of(path, "# call b"))
        frame = child.frames(stopped)[0]["id"]
        scopes = child.request("scopes", frameId=frame)["scopes"]
        assert scopes[0]["name"] == "Tensor event"
        assert "layer:b if step == 1  (function)" in child.console("tp list")
        stopped = child.step("next", stopped)
        assert child.top(stopped) == ("child.py", line_of(path, "# after b"))
        child.resume(stopped)
        child.expect("terminated")
    assert session.exit_code() == 0
    assert "child ended with 0" in session.output("stdout")
    assert not session.seen("stopped")


CLIENTS: dict[str, tuple[Message, tuple[str, ...]]] = {
    "startDebugging": (VSCODE, ("startDebugging",)),
    "startDebugging, not advertised": (PLAIN, ("startDebugging",)),
    "debugpyAttach only": (PLAIN, ()),
}


@pytest.mark.parametrize(("client", "handles"), CLIENTS.values(), ids=CLIENTS)
def test_a_subprocess_stops_in_every_kind_of_client(
    program: Path, client: Message, handles: tuple[str, ...]
) -> None:
    with Session(client=client, handles=handles) as session:
        session.launch(program, **STUBBED)
        stop_in_child(session, program)
        by_event = len(session.seen("debugpyAttach"))
        assert by_event == (0 if handles else 1)
        session.expect("terminated")
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


def test_a_client_that_never_answers_start_debugging_gets_the_event(program: Path) -> None:
    with Session(client=PLAIN, handles=("startDebugging",)) as session:
        session.never_answer("startDebugging")
        session.launch(program, **STUBBED)
        stop_in_child(session, program)
        assert len(session.seen("debugpyAttach")) == 1


def test_a_client_that_declines_start_debugging_gets_the_event_alone(program: Path) -> None:
    """With the configuration that debugpy would send, so without what we add to its parent's."""
    client = {**PLAIN, "supportsStartDebuggingRequest": False}
    rules = [{"path": "/somewhere/**", "include": False}]
    with Session(client=client) as session:
        session.launch(program, rules=rules, **STUBBED)
        stop_in_child(session, program)
        (offered,) = session.seen("debugpyAttach")
        assert offered["rules"] == rules


@pytest.mark.parametrize("client", [VSCODE, PLAIN], ids=["advertises", "does not advertise"])
def test_a_child_may_come_through_an_adapter_process_of_its_own(
    program: Path, client: Message
) -> None:
    """As nvim-dap does it: the child's configuration goes to a new `tensorpoint dap`."""
    with Session(client=client) as session:
        session.launch(program, **STUBBED)
        stop_in_child(session, program, through=ADAPTER)
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


def test_a_child_may_come_to_the_server_that_its_parent_came_to(program: Path) -> None:
    """As VS Code does it with `debugServer`, which it repeats for the child."""
    with serving() as (_, port), Session(("127.0.0.1", port)) as session:
        session.launch(program, **STUBBED)
        stop_in_child(session, program, through=("127.0.0.1", port))


def test_launch_tensorpoints_hold_in_children(program: Path) -> None:
    with Session() as session:
        session.launch(program, filters=[], tensorpoints=["layer:a if step == 2"], **STUBBED)
        with session.child(filters=[]) as child:
            (announced,) = child.seen("capabilities")
            filters = announced["capabilities"]["exceptionBreakpointFilters"]
            assert filters[-1]["label"] == "layer:a if step == 2"
            stopped = child.stopped()
            assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("a", 2)
            child.resume(stopped)
            child.expect("terminated")
        assert session.exit_code() == 0


def test_grandchildren_stop(write: Write) -> None:
    write(LAYERS, "grandchild.py")
    write(SUBPROCESS.replace("child.py", "grandchild.py"), "child.py")
    program = write(SUBPROCESS)
    with Session() as session:
        session.launch(program, **STUBBED)
        with session.child() as child, child.child(functions=STOP_AT_B) as grandchild:
            stopped = grandchild.stopped()
            assert grandchild.top(stopped)[0] == "grandchild.py"
            grandchild.resume(stopped)
            grandchild.expect("terminated")
            child.expect("terminated")
        assert session.exit_code() == 0


def test_a_program_that_replaces_itself_stops_in_the_new_one(write: Write) -> None:
    write(LAYERS, "child.py")
    program = write(
        SUBPROCESS.replace("subprocess.run(child)", "__import__('os').execv(child[0], child)")
    )
    with Session() as session:
        session.launch(program, **STUBBED)
        with session.child(functions=STOP_AT_B) as child:
            stopped = child.stopped()
            assert child.top(stopped)[0] == "child.py"
            child.resume(stopped)
            child.expect("terminated")
        session.expect("terminated")


def test_children_are_left_alone_with_sub_process_off(program: Path) -> None:
    with Session() as session:
        session.launch(program, subProcess=False, functions=[{"name": "layer:b"}], **STUBBED)
        assert session.exit_code() == 0
        assert session.children.empty()
        assert not session.seen("stopped")


def test_a_child_that_is_detached_runs_on_without_stops(program: Path) -> None:
    with Session() as session:
        session.launch(program, **STUBBED)
        with session.child(functions=[{"name": "layer:b"}]) as child:
            child.stopped()
            child.request("disconnect", terminateDebuggee=False)
            child.wait_closed()
        assert session.exit_code() == 0
        assert "child ended with 0" in session.output("stdout")


def test_ending_the_parents_session_at_a_childs_stop_ends_all(program: Path) -> None:
    with Session() as session:
        session.launch(program, **STUBBED)
        with session.child(functions=[{"name": "layer:b"}]) as child:
            child.stopped()
            session.request("disconnect", terminateDebuggee=True)
            child.expect("terminated")
            child.request("disconnect")
            child.wait_closed()
        session.wait_closed()
        session.expect_no_process()


def test_an_editor_that_vanishes_at_a_childs_stop_leaves_no_process(program: Path) -> None:
    with Session() as session:
        session.launch(program, **STUBBED)
        child = session.child(functions=[{"name": "layer:b"}])
        child.stopped()
        child.close_input()
        session.close_input()
        session.wait_closed()
        session.expect_no_process()


def test_a_client_that_ignores_children_is_not_kept_waiting_at_its_end(program: Path) -> None:
    with Session(client=PLAIN, handles=()) as session:
        session.launch(program, **STUBBED)
        session.expect("debugpyAttach")  # the child waits to be attached to: as with debugpy
        session.request("disconnect", terminateDebuggee=True)
        session.wait_closed()
        session.expect_no_process()


MULTIPROCESSING = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
import multiprocessing
import sys


def work(n):
    net = Net()
    for step in range(3):
        out = net(step)  # call net in work
    print("worked", n, out, flush=True)


if __name__ == "__main__":
    method = sys.argv[1]
    Net()(0)
    context = multiprocessing.get_context(method)
    processes = [context.Process(target=work, args=(n,)) for n in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    print("codes", [process.exitcode for process in processes])
"""
)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_each_process_of_multiprocessing_stops(write: Write, method: str) -> None:
    program = write(MULTIPROCESSING)
    with Session() as session, session.following_children(functions=STOP_AT_B) as children:
        session.launch(program, args=[method], **STUBBED)
        # Beside the two there may be a resource tracker and a fork server.
        eventually(lambda: sum(bool(child.seen("stopped")) for child in children) == 2, "two stops")
        seen: list[str] = []
        for child in children:
            if child.seen("stopped"):
                stopped = child.stopped()
                assert child.top(stopped) == ("program.py", line_of(program, "# call b"))
                assert stopped["tensorpoint"]["step"] == 1
                seen.append(child.evaluate("__import__('os').getpid()", stopped))
                child.resume(stopped)
        assert len(set(seen)) == 2
        assert session.exit_code() == 0
        assert "codes [0, 0]" in session.output("stdout")


# With torch ---------------------------------------------------------------------------------------

DATA_LOADER = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Normalise(nn.Module):
    def forward(self, x):
        return (x - x.mean()) / x.std()


class Clean(Dataset):
    def __init__(self):
        self.normalise = Normalise()

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.ones(3) if index in (2, 5) else torch.arange(3.0)
        y = self.normalise(x)  # call normalise
        return y.nan_to_num()


if __name__ == "__main__":
    total = 0.0
    for batch in DataLoader(Clean(), batch_size=2, num_workers=2):
        total += batch.sum().item()
    print("total", total)
"""


def test_data_loader_workers_stop(write: Write) -> None:
    program = write(DATA_LOADER)
    with Session() as session:
        session.launch(program)
        workers = [session.child(), session.child()]
        for worker in workers:
            stopped = worker.stopped()
            stop = stopped["tensorpoint"]
            assert (stop["event"], stop["module_type"]) == ("nonfinite.forward", "Normalise")
            assert worker.places(stopped)[1] == ("program.py", line_of(program, "# call normalise"))
            assert "nan" in worker.evaluate("self(x)", stopped)
            worker.resume(stopped)
        assert session.exit_code() == 0
        assert "total" in session.output("stdout")
        for worker in workers:
            worker.close()


TORCHRUN = """\
import torch
import torch.distributed as dist
from torch import nn

torch.set_num_threads(1)


class Root(nn.Module):
    def forward(self, x):
        return torch.sqrt(x)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(nn.Identity(), Root())
    for step in range(3):
        y = model(torch.tensor([1.0, 1.0 - step]))  # call model
        dist.all_reduce(y.nan_to_num_())
    print("rank", rank, "done", flush=True)
    dist.destroy_process_group()
"""


def test_every_rank_of_torchrun_stops(write: Write) -> None:
    program = write(TORCHRUN)
    arguments: dict[str, Any] = {
        "module": "torch.distributed.run",
        "args": [
            *("--nproc-per-node=2", "--master-port=0", "--rdzv-backend=c10d"),
            *("--rdzv-endpoint=127.0.0.1:0", "--local-addr=127.0.0.1", str(program)),
        ],
    }
    with Session() as session:
        session.launch(**arguments)
        ranks = [session.child(120), session.child(120)]
        assert sorted(rank.name for rank in ranks) == ["Rank 0 of 2", "Rank 1 of 2"]
        seen: list[str] = []
        for rank in ranks:
            stopped = rank.stopped(120)
            stop = stopped["tensorpoint"]
            assert (stop["module"], stop["module_type"], stop["step"]) == ("1", "Root", 2)
            assert rank.places(stopped)[1] == ("program.py", line_of(program, "# call model"))
            seen.append(rank.evaluate("rank", stopped))
        assert sorted(seen) == ["0", "1"]
        for rank in ranks:
            rank.resume()
        assert session.exit_code() == 0
        for rank in ranks:
            rank.close()


FORKING = """\
import os
import torch

def sockets():
    found = set()
    for number in range(256):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    return {name for name in found if name.startswith("socket:")}

mine = sockets()
child = os.fork()
if child == 0:
    print("let go of", len(mine - sockets()), flush=True)
    os._exit(0)
os.waitpid(child, 0)
torch.nn.Linear(1, 1)(torch.ones(1))
print("kept", mine == sockets())
"""


def test_a_forked_child_lets_go_of_its_parents_debugger(write: Write) -> None:
    """Else debugpy's adapter does not see that the parent has died, and waits for it."""
    with Session() as session:
        session.launch(write(FORKING), subProcess=False)
        assert session.exit_code() == 0
        assert "let go of 1\nkept True\n" in session.output("stdout")

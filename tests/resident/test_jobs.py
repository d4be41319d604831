"""Short requests: a function is called where torch is imported already, and leaves nothing."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.resident.jobs import Job, Outcome, run_job
from tensorpoint.resident.messages import Environment
from tensorpoint.shapes import environment_of, trace
from tensorpoint.wire.shapes import ShapeRequest
from tests.conftest import Write
from tests.protocol.dap import DEADLINE, eventually
from tests.resident.hosts import Host, found_by_all

pytestmark = pytest.mark.xdist_group("resident")

MODULE = """\
import importlib, os, sys, time

def shape(payload):
    import torch
    print("printed")
    with torch.device("meta"):
        layer = torch.nn.Linear(payload["features"], 5)
        return {"shape": list(layer(torch.empty(2, payload["features"])).shape)}

def fail(payload):
    raise KeyError(payload)

def sleep(payload):
    open(payload, "w").write(str(os.getpid()))
    time.sleep(60)

def large(payload):
    return "x" * payload

def allocate(payload):
    return len(bytearray(payload))

def die(payload, ask=None):
    os.abort()

def sums(payload, ask):
    print("printed")
    assert sys.stdin.read() == ""
    total = ask(payload)
    while total < 100:
        total = ask([total, "\\n" * 100_000])
    return total

def refuse(event, arguments):
    if event == "socket.connect":
        raise PermissionError(event)

def imports(payload):
    sys.addaudithook(refuse)  # as the tracer does
    there = payload in sys.modules
    importlib.import_module(payload)
    return there

def environment(payload):
    return [os.getcwd(), sys.path[0], "torch" in sys.modules, "job" in sys.modules]
"""


@dataclass(frozen=True)
class Shape:
    shape: tuple[int, ...]


def started_with() -> dict[str, str]:
    """The variables that this process was started with; conftest changes os.environ only."""
    started = Path("/proc/self/environ").read_bytes().split(b"\0")
    return dict(os.fsdecode(item).split("=", 1) for item in started if b"=" in item)


@pytest.fixture(params=["forked", "cold"])
def ask(
    request: pytest.FixtureRequest, shared_host: Host, write: Write, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """Run a job of the module above; cold jobs find no host."""
    folder = str(write(MODULE, "jobs_of_a_test.py").parent)
    forked = request.param == "forked"
    monkeypatch.setenv(
        "TENSORPOINT_RUNTIME_DIR", str(shared_host.folder) if forked else f"{folder}/none"
    )
    environment = Environment((shared_host.command()[0],), started_with())
    if forked:
        assert shared_host.client.acquire(environment, wait=True).state == "ready"

    def ask(
        function: str, payload: Any, kind: Any, reply: Any = None, **limits: Any
    ) -> Outcome[Any]:
        job = Job(f"jobs_of_a_test:{function}", payload, (folder,), **limits)
        outcome = asyncio.run(run_job(environment, job, kind, reply))
        assert outcome.forked is forked
        return outcome

    ask.environment, ask.folder = environment, folder  # type: ignore[attr-defined]
    return ask


def test_a_function_answers_with_a_struct(ask: Any) -> None:
    outcome = ask("shape", {"features": 7}, Shape, seconds=60)
    assert (outcome.value, outcome.error) == (Shape((2, 5)), "")


def test_what_fails_is_an_outcome(ask: Any) -> None:
    outcome = ask("fail", 5, Shape)
    assert (outcome.value, outcome.error) == (None, "KeyError: 5")
    assert "jobs_of_a_test.py" in outcome.traceback
    assert "ValidationError" not in ask("large", 3, Shape).error
    assert "an answer of another kind" in ask("large", 3, Shape).error
    assert ask("die", 0, str).error == "it ended without an answer"
    assert "has no attribute" in ask("nothing", 0, str).error


def test_a_job_asks_who_wants_its_answer(ask: Any) -> None:
    asked: list[Any] = []

    def reply(question: Any) -> int:
        asked.append(question)
        return 90 if len(asked) == 1 else question[0] + 7

    outcome = ask("sums", "first", int, reply=reply)
    assert (outcome.value, outcome.error) == (104, "")
    assert asked == ["first", [90, "\n" * 100_000], [97, "\n" * 100_000]]
    assert ask("die", 0, str, reply=reply).error == "it ended without an answer"
    with pytest.raises(ZeroDivisionError):
        ask("sums", 1, int, reply=lambda _: 1 // 0)


def test_limits_hold(ask: Any, tmp_path: Path) -> None:
    assert ask("large", 2000, str, answer_bytes=1000).error == "an answer of more than 1000 bytes"
    assert ask("large", 300_000, str).value == "x" * 300_000
    hungry = ask("allocate", 200 << 20, int, memory_mib=100)
    assert hungry.error == "it needs more than 100 MiB of memory"
    assert ask("allocate", 200 << 20, int, memory_mib=400).value == 200 << 20
    pid = tmp_path / "pid"
    began = time.monotonic()
    assert ask("sleep", str(pid), str, seconds=5).error == "not within 5 s"
    assert time.monotonic() - began < 40  # of the 60 that it sleeps
    eventually(lambda: not Path(f"/proc/{pid.read_text()}/fd").exists(), "its end")


def test_a_job_that_is_cancelled_ends(ask: Any, tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    async def cancel() -> None:
        job = Job("jobs_of_a_test:sleep", str(pid), (ask.folder,), seconds=60)
        task = asyncio.ensure_future(run_job(ask.environment, job, str))
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    eventually(lambda: not Path(f"/proc/{pid.read_text()}/fd").exists(), "its end")


def test_a_payload_that_nobody_reads_in_time_is_given_up(ask: Any) -> None:
    async def run() -> tuple[Outcome[str], int]:
        job = Job("jobs_of_a_test:large", "x" * (32 << 20), (ask.folder,), seconds=0.01)
        outcome = await run_job(ask.environment, job, str)
        return outcome, len(asyncio.all_tasks())

    outcome, tasks = asyncio.run(run())
    assert outcome.error == "not within 0.01 s"
    assert tasks == 1  # ours


def test_a_job_finds_only_what_it_was_given(ask: Any) -> None:
    cwd, first, has_torch, has_ours = ask("environment", 0, list[Any]).value
    assert (cwd, first, has_ours) == (os.getcwd(), ask.folder, False)
    assert has_torch == ask("environment", 0, list[Any]).forked


def test_traces_are_forked_from_a_process_that_has_the_tracer(shared_host: Host) -> None:
    path = Path(__file__).parents[1] / "programs" / "shapes" / "branching.py"
    environment = replace(environment_of(), variables=started_with())
    answer = shared_host.client.acquire(environment, wait=True)
    assert answer.state == "ready", answer
    request = ShapeRequest(str(path), path.read_text("utf-8"), symbolic=False)
    with found_by_all(shared_host):
        outcome = asyncio.run(trace(request, environment))
    assert outcome.forked and outcome.value is not None and outcome.value.hints, outcome


@pytest.mark.parametrize("ask", ["forked"], indirect=True)
def test_what_jobs_import_is_imported_ahead(ask: Any) -> None:
    """A few modules as well, if it is done again and again, as by the traces of an editor."""
    assert ask("imports", "pluggy", bool).value is False
    eventually(lambda: ask("imports", "pluggy", bool).value, "a zygote that has it", DEADLINE)

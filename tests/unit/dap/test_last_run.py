"""When a program is asked what it has recorded, and who says that this can't be kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from tensorpoint.agent import process
from tensorpoint.dap import injection, last_run
from tensorpoint.dap.last_run import LastRun


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []

    async def facts(debugpy: Any, request: Any) -> dict[str, Any]:
        found.append(request)
        return {"no": "facts"}

    monkeypatch.setattr(injection, "facts", facts)
    monkeypatch.setattr(last_run, "_AFTER_STOP_S", 0)
    return found


def test_of_stops_in_quick_succession_the_last_is_asked(asked: list[Any]) -> None:
    async def stops() -> None:
        run = LastRun(Mock())
        await asyncio.gather(*(run.ask(Mock()) for _ in range(5)))
        assert len(asked) == 1
        await run.ask(Mock())
        await run.ask(Mock(), at_once=True)
        assert len(asked) == 3

    asyncio.run(stops())


@pytest.mark.usefixtures("asked")
def test_what_cannot_be_kept_is_said_on_the_thread_that_talks_to_the_client() -> None:
    said: list[tuple[str, int]] = []

    async def stop() -> None:
        await LastRun(lambda why: said.append((why, threading.get_ident()))).ask(Mock())

    asyncio.run(stop())
    ((why, thread),) = said
    assert "can't be kept" in why and thread == threading.get_ident()


def test_a_run_began_when_its_program_was_started_wherever_that_is() -> None:
    """A process of this machine may have the number of one that runs on another."""
    run = LastRun(Mock())
    run.begin({})
    launched = run.began
    run.on_agent(None)
    run.on_agent(0.0)  # a launch: the file was read after that
    assert run.began == launched
    run.on_process({"startMethod": "attach", "systemProcessId": 1, "name": "/there/train.py"})
    run.on_agent(5_000_000.0)
    assert abs(time.time() - 5_000_000 - run.began) < 60


@pytest.mark.skipif(sys.platform != "linux", reason="it is read from /proc")
def test_a_process_knows_for_how_long_it_has_run() -> None:
    ps = ["ps", "-o", "etimes=", "-p", str(os.getpid())]
    seconds = int(subprocess.run(ps, check=True, capture_output=True, text=True).stdout)
    age = process.age()
    assert age is not None and seconds - 2 < age < seconds + 30

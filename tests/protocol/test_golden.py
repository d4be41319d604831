"""Whole sessions as text, compared with the files in `golden/`.

A line per message in the order in which an editor sees them. What differs between runs is left out
(threads, modules, what the program prints and how it is cut) or named (<folder>, <pid>). After a
wanted change: `UPDATE_GOLDEN=1 pytest tests/protocol/test_golden.py`, and read the difference.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import SERVER, STUB, STUBBED, Message, Session, line_of
from tests.protocol.samples import GATE, LAYERS

GOLDEN = Path(__file__).resolve().parent / "golden"
#: Their order and number depend on timing or are debugpy's alone.
_LEFT_OUT = frozenset({"thread", "module", "debugpySockets", "continued"})
_PROGRAMS_OWN = frozenset({"stdout", "stderr", "telemetry"})


def transcript(session: Session, folder: Path) -> str:
    """The session so far, normalised."""
    lines: list[str] = []
    for arrow, message in session.messages():
        kind = message["type"]
        name = message.get("command") or message.get("event")
        body: Message = message.get("body") or message.get("arguments") or {}
        if kind == "event" and (name in _LEFT_OUT or body.get("category") in _PROGRAMS_OWN):
            continue
        status = "" if message.get("success", True) else f" failed: {message.get('message')}"
        # Before it is laid out: how long a path is must not decide where lines are broken.
        body = json.loads(_normalise(json.dumps(body), folder))
        text = _pretty(body) if body else ""
        lines.append(f"{arrow} {kind} {name}{status}" + (f" {text}" if text else ""))
    return _normalise("\n".join(lines) + "\n", folder)


def _pretty(value: object, indent: str = "") -> str:
    """JSON with whatever is short on one line."""
    flat = json.dumps(value, sort_keys=True)
    if len(flat) <= 90 or not value:
        return flat
    inner = indent + "  "
    if isinstance(value, dict):
        items = [f"{json.dumps(key)}: {_pretty(value[key], inner)}" for key in sorted(value)]
        return "{\n" + "".join(f"{inner}{item}\n" for item in items) + indent + "}"
    if isinstance(value, list):
        items = [_pretty(item, inner) for item in value]
        return "[\n" + "".join(f"{inner}{item}\n" for item in items) + indent + "]"
    return flat


def _normalise(text: str, folder: Path) -> str:
    for value, name in (
        (str(folder), "<folder>"),
        (str(STUB), "<stub>"),
        (str(SERVER), "<server>"),
        (sys.executable, "<python>"),
    ):
        text = text.replace(value, name)
    text = re.sub(r'("systemProcessId": )\d+', r'\1"<pid>"', text)
    return re.sub(r"\b0x[0-9a-f]{6,}", "<address>", text)


def layers(session: Session, write: Write) -> None:
    """A layer breakpoint, a refused one, a launch tensorpoint, the console and stepping."""
    program = write(LAYERS)
    session.launch(
        program,
        filters=[],
        filter_options=[{"filterId": "tensorpoint.0"}, {"filterId": "uncaught"}],
        functions=[{"name": "layer:b", "condition": "step == 1"}, {"name": "layer:"}],
        tensorpoints=["layer:a if step == 2", "nonfinit()"],
        **STUBBED,
    )
    stopped = session.stopped()
    frame = session.frames(stopped)[0]["id"]
    scopes = session.request("scopes", frameId=frame)["scopes"]
    session.request("variables", variablesReference=scopes[0]["variablesReference"])
    session.console("tp list")
    session.console("tp off 3")
    stopped = session.step("next", stopped)
    session.resume(stopped)
    stopped = session.stopped()
    session.resume(stopped)
    session.exit_code()


def nan(session: Session, write: Write) -> None:
    """NaN/Inf with a condition, its diagnosis, and the end."""
    program = write(GATE)
    session.launch(
        program,
        filters=[],
        filter_options=[{"filterId": "nonfinite", "condition": "gate"}],
        breakpoints={str(program): [line_of(program, "net = Net()")]},
    )
    stopped = session.stopped()
    session.resume(stopped)
    stopped = session.stopped()
    session.request("exceptionInfo", threadId=stopped["threadId"])
    frame = session.frames(stopped)[0]["id"]
    scopes = session.request("scopes", frameId=frame)["scopes"]
    session.request("variables", variablesReference=scopes[0]["variablesReference"])
    session.request("setExceptionBreakpoints", filters=[])
    session.resume(stopped)
    session.exit_code()


@pytest.mark.parametrize("script", [layers, nan], ids=lambda script: script.__name__)
def test_a_session_reads_as_it_should(
    write: Write, tmp_path: Path, script: Callable[[Session, Write], None]
) -> None:
    with Session() as session:
        script(session, write)
        session.expect("terminated")
        session.request("disconnect")
        session.wait_closed()
        seen = transcript(session, tmp_path)
    path = GOLDEN / f"{script.__name__}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(seen, encoding="utf-8")
    assert seen == path.read_text(encoding="utf-8")

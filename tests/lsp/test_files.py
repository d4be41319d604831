"""Files as they are: broken, half-written, hostile; faults with their sizes; parts elsewhere."""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path

import pytest
from lsprotocol import types

from tests.conftest import Write
from tests.lsp.editors import Session, editing, eventually

pytestmark = [
    pytest.mark.usefixtures("resident_process"),
    pytest.mark.xdist_group("lsp"),
]

CLASSIFIER = """\
import torch
from torch import nn

from parts import Head


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(1000, 64)
        self.head = Head()

    # tensorpoint: ids: i64[B, T]
    def forward(self, ids):
        h = self.words(ids)
        pairs = h.view(h.size(0), -1, 128)
        pooled = pairs.mean(dim=1)
        out = self.head(pooled)
        return out
"""
PARTS = """\
from torch import nn


class Head(nn.Module):
    def __init__(self, width: int = 128):
        super().__init__()
        self.linear = nn.Linear(width, 10)

    def forward(self, x):
        return self.linear(x)
"""


def test_a_file_from_its_opening_to_its_repair(write: Write) -> None:
    """One editor, one file: a fault with its sizes, edits, syntax errors, an imported file."""
    folder = write(CLASSIFIER, "classifier.py").parent
    parts = write(PARTS, "parts.py")

    async def body() -> None:
        async with editing(folder, "vscode") as session:
            uri = session.open("classifier.py")
            labels = await eventually(lambda: session.labels(uri), bool)
            assert labels == [
                (14, ": i64[B, T]"),
                (15, ": f32[B, T, 64]"),
                (16, ": f32[B, T/2, 128]"),
                (17, ": f32[B, 128]"),
                (18, ": f32[B, 10]"),
            ]
            # The fault, at the call, with sizes that show it.
            [found] = await eventually(lambda: session.diagnostics(uri), bool)
            assert (found.severity, found.code) == (
                types.DiagnosticSeverity.Warning,
                "shape-mismatch",
            )
            assert found.range.start == types.Position(15, 16)
            assert "T % 2 == 0" in found.message and "T = 15" in found.message
            assert found.related_information is not None
            assert "T = 15" in found.related_information[0].message

            # Unsaved: a line in front moves all; a broken one keeps the others.
            broken = f"import math\n{CLASSIFIER}".replace("self.words(ids)", "self.words(ids")
            session.change(uri, broken)
            moved = [(line + 1, label) for line, label in labels if line != 15]
            assert await session.labels(uri) == moved
            await asyncio.sleep(1)
            assert await session.labels(uri) == moved
            assert all("T % 2" in one.message for one in await session.diagnostics(uri))

            # Repaired: nothing fails any more.
            fixed = CLASSIFIER.replace("h.view(h.size(0), -1, 128)", "torch.cat([h, h], -1)")
            session.change(uri, fixed)
            await eventually(
                lambda: session.labels(uri), lambda found: (16, ": f32[B, T, 128]") in found
            )
            assert await eventually(lambda: session.diagnostics(uri), lambda found: not found) == []

            # What it imports changes.
            parts.write_text(PARTS.replace("10)", "20)"), encoding="utf-8")
            changes = [types.FileEvent(parts.as_uri(), types.FileChangeType.Changed)]
            session.client.workspace_did_change_watched_files(
                types.DidChangeWatchedFilesParams(changes)
            )
            await eventually(
                lambda: session.labels(uri), lambda found: (18, ": f32[B, 20]") in found
            )

    asyncio.run(body())


NET = """\
import os, sys, torch
from torch import nn
{top}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    def forward(self, x):
        {body}
        y = self.linear(x)
        return y
"""
HOSTILE = {
    "training at the top": ("while True: pass", "pass"),
    "exit at the top": ("sys.exit(3)", "pass"),
    "prints": ("print('x' * 100_000)", "print(x.shape)"),
    "reads stdin": ("", "sys.stdin.read()"),
    "writes to the protocol's streams": (
        "",
        "os.write(1, b'Content-Length: 5'); os.write(2, b'x')",
    ),
}
HARMFUL = {
    "exits in forward": ("", "sys.exit(3)"),
    "dies in forward": ("", "os._exit(3)"),
    "kills itself": ("", "os.kill(os.getpid(), 9)"),
    "takes all memory": ("", "self.hoard = bytearray(100 << 30)"),
    "forks": ("", "os.fork()"),
}


async def shown(session: Session, uri: str) -> tuple[list[tuple[int, str]], list[types.Diagnostic]]:
    return await session.labels(uri), await session.diagnostics(uri)


def test_hostile_files_cost_only_themselves(write: Write, tmp_path: Path) -> None:
    for number, (top, inside) in enumerate([*HOSTILE.values(), *HARMFUL.values()]):
        write(NET.format(top=top, body=inside), f"net{number}.py")
    write(NET.format(top="", body="pass"), "good.py")

    async def body() -> None:
        async with editing(tmp_path, "vscode") as session:
            for number, name in enumerate(HOSTILE):
                uri = session.open(f"net{number}.py")
                labels = await eventually(functools.partial(session.labels, uri), bool)
                assert labels == [(10, ": f32[B, 8]"), (12, ": f32[B, 4]")], name
            for number, name in enumerate(HARMFUL, len(HOSTILE)):
                uri = session.open(f"net{number}.py")
                labels, diagnostics = await eventually(functools.partial(shown, session, uri), any)
                if not labels:
                    [one] = diagnostics
                    assert one.severity is types.DiagnosticSeverity.Hint, name
                    assert one.message.startswith("No shapes: "), name
            # And the server is as well as before.
            uri = session.open("good.py")
            assert await eventually(lambda: session.labels(uri), bool)

    asyncio.run(body())


def test_nothing_runs_in_a_workspace_that_is_not_trusted(write: Write, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    write(f"import torch\nopen({str(mark)!r}, 'w')\n{CLASSIFIER}", "net.py")

    async def body() -> None:
        settings = {"trusted": True}
        async with editing(tmp_path, options={"trusted": False}, settings=settings) as session:
            uri = session.open("net.py")
            for _ in range(10):
                assert await session.labels(uri) == []
                assert await session.diagnostics(uri) == []
                await asyncio.sleep(0.1)
            assert not mark.exists()

    asyncio.run(body())


def test_no_process_stays_when_the_editor_goes(write: Write, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    body_of_net = f"open({str(pid)!r}, 'w').write(str(os.getpid())); [0 for _ in iter(int, 1)]"
    write(NET.format(top="", body=body_of_net), "net.py")

    async def body() -> None:
        async with editing(tmp_path, "vscode") as session:
            session.open("net.py")

            async def begun() -> str:
                return pid.read_text() if pid.exists() else ""

            await eventually(begun, bool)

        async def goes_on() -> bool:
            return os.path.exists(f"/proc/{pid.read_text()}/fd")

        await eventually(goes_on, lambda still: not still)

    asyncio.run(body())

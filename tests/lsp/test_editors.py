"""The same file in editors that can do different things: each sees all of it."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from lsprotocol import types

from tests.conftest import Write
from tests.lsp.editors import EDITORS, editing, eventually

pytestmark = [
    pytest.mark.usefixtures("resident_process"),
    pytest.mark.xdist_group("lsp"),
]

NET = '''\
import torch
from torch import nn


class Net(nn.Module):
    """Ünïcödé 🔥 in front."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        s = "🔥"; h = self.conv(x)
        h = torch.relu(h)
        pooled = h.mean((2, 3))
        return self.fc(pooled)
'''
WIDE = ": f32[B, 64, ceil(H/2), ceil(W/2)]"
#: What each editor is answered in: what it likes best.
ENCODINGS = {
    "vscode": "utf-16",
    "neovim": "utf-8",
    "emacs": "utf-32",
    "helix": "utf-8",
    "nothing": "utf-16",
}
LABELS = [(13, ": f32[B, 3, H, W]"), (14, WIDE), (16, ": f32[B, 64]")]


@pytest.mark.parametrize("editor", EDITORS)
def test_shapes_are_shown(editor: str, write: Write) -> None:
    folder = write(NET, "a földer/net.py").parent

    async def body() -> None:
        async with editing(folder, editor) as session:
            uri = session.open("net.py")
            assert await eventually(lambda: session.labels(uri), bool) == LABELS
            capabilities = session.client.capabilities
            assert capabilities is not None
            if capabilities.workspace and capabilities.workspace.inlay_hint:
                refreshes = capabilities.workspace.inlay_hint.refresh_support
                assert not refreshes or session.refreshed
            # The column of `h` behind the emoji, in this editor's units.
            hint = (await session.hints(uri))[1]
            assert session.server is not None
            encoding = session.server.capabilities.position_encoding
            assert isinstance(encoding, str) and encoding == ENCODINGS[editor]
            assert (
                hint.position.character == 8 + {"utf-8": 13, "utf-16": 11, "utf-32": 10}[encoding]
            )
            text = await session.hover(uri, 14, hint.position.character)
            assert "f32[B, 64, ceil(H/2), ceil(W/2)]" in text
            lenses = await session.client.text_document_code_lens_async(
                types.CodeLensParams(types.TextDocumentIdentifier(uri))
            )
            assert lenses is not None and lenses[0].command is not None
            assert lenses[0].command.title.startswith("x: f32[B, 3, H, W] → f32[B, 10] · 10.1 k")
            assert all(
                one.severity is types.DiagnosticSeverity.Hint
                for one in await session.diagnostics(uri)
            )

    asyncio.run(body())


def test_two_editors_at_once_over_a_port(write: Write, tmp_path: Path) -> None:
    folder = write(NET, "net.py").parent
    write(NET.replace("64", "32"), "other.py")

    async def body() -> None:
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tensorpoint", "lsp", "--listen", "127.0.0.1:0"),
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            assert server.stderr is not None
            said = (await server.stderr.readline()).decode()
            found = re.fullmatch(r"tensorpoint lsp: listening on 127\.0\.0\.1:(\d+)\n", said)
            assert found, said
            address = ("127.0.0.1", int(found[1]))
            async with editing(folder, "neovim", connect=address) as first:
                async with editing(folder, "vscode", connect=address) as second:
                    one, two = first.open("net.py"), second.open("other.py")
                    assert await eventually(lambda: first.labels(one), bool) == LABELS
                    found = await eventually(lambda: second.labels(two), bool)
                    assert found[1] == (14, WIDE.replace("64", "32"))
                    assert await second.labels(one) == []
                # One that leaves takes nothing from the other.
                first.change(one, NET.replace("64", "16"))
                labels = await eventually(
                    lambda: first.labels(one), lambda found: "B, 16" in str(found)
                )
                assert labels[1] == (14, WIDE.replace("64", "16"))
        finally:
            server.kill()
            await server.wait()

    asyncio.run(body())

"""What comes from elsewhere than the text: a debug run, a plugin, torch.compile when asked."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from lsprotocol import types

from tests.conftest import Write
from tests.lsp.editors import Session, editing, eventually
from tests.protocol.dap import Session as Debugging
from tests.protocol.dap import line_of

pytestmark = [
    pytest.mark.usefixtures("resident_process"),
    pytest.mark.xdist_group("lsp"),
]

PROGRAM = """\
import torch
from torch import nn

from fused import attend


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)

    # tensorpoint: x: f32[B, 8]
    def forward(self, x):
        y = self.linear(x)  # forward
        scores = attend(y, y)
        if scores.sum() > 0:  # a break
            y = y + 1
        return y


if __name__ == "__main__":
    net = Net()
    batch = torch.ones(3, 8)
    known = float(batch.norm())  # not without a run
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        out = net(batch if known > 0 else -batch)  # train
        out.sum().backward()
        optimizer.step()
"""
#: Code, text, code.
CELLS = (
    "%matplotlib inline\nimport torch\nfrom torch import nn",
    "# A net",
    """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 4)
    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            y = y + 1
        return y""",
)
#: Made for memory that a tensor without data does not have.
FUSED = """\
def attend(query, key):
    if query.is_meta:
        raise OSError("libfused.so: no such file")
    return query @ key.T
"""
PLUGIN = """\
def plugin(plugins):
    def attend(call):
        query, key = call.args
        plugins.attach_to_node(call.node, "fused here")
        return query.new_empty((query.shape[0], key.shape[0]))

    plugins.register_plugin("fused:attend", attend)
"""


@pytest.fixture(autouse=True)
def cache(resident_process: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts of runs are kept there: not the user's."""
    if "TENSORPOINT_RUNTIME_DIR" not in os.environ:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def record(program: Path) -> None:
    """A debug run to its end."""
    with Debugging() as session:
        session.launch(program, record=True, filters=[])
        assert session.exit_code() == 0
        session.expect("terminated")


async def ask_for_breaks(session: Session, uri: str) -> str:
    params = types.ExecuteCommandParams("tensorpoint.graphBreaks", [uri])
    return str(await session.client.workspace_execute_command_async(params))


@pytest.mark.timeout(400)
def test_a_plugin_a_run_and_the_compiler_add_to_the_text(write: Write) -> None:
    program = write(PROGRAM, "net.py")
    write(FUSED, "fused.py")
    write(PLUGIN, "shape_plugin.py")
    settings = {"shapes": {"plugins": ["shape_plugin:plugin"]}}
    forward, train = line_of(program, "# forward"), line_of(program, "# train")

    async def body() -> None:
        async with editing(program.parent, "vscode", settings=settings) as session:
            assert session.server is not None
            provider = session.server.capabilities.execute_command_provider
            assert provider is not None and "tensorpoint.graphBreaks" in provider.commands

            # What torch can't know, the plugin that is set says, and says so.
            uri = session.open("net.py")
            labels = await eventually(lambda: session.labels(uri), bool)
            assert (forward, ": f32[B, 4]") in labels
            assert (forward + 1, ": f32[B, B]") in labels
            assert "fused here" in await session.hover(uri, forward + 1, 8)
            assert "Measured" not in await session.hover(uri, forward, 8)
            assert all(line != train for line, _ in labels)

            # A debug run ends: its shapes where a trace has none, its statistics in the hover.
            async def refreshes() -> int:
                return session.refreshed

            before = session.refreshed
            await asyncio.to_thread(record, program)
            labels = await eventually(
                lambda: session.labels(uri), lambda found: any(line == train for line, _ in found)
            )
            assert (train, ": f32[3, 4]") in labels and (forward, ": f32[B, 4]") in labels
            await eventually(refreshes, lambda count: count > before)
            text = await session.hover(uri, forward, 8)
            assert "**Measured** in the last run" in text
            # d(sum of y)/dw is 3 in each of 4 x 8 elements, and 3 in each of 4 of the bias.
            assert "`linear` → `f32[3, 4] cpu`" in text
            assert "gradient norms: weight 17" in text and "bias 6" in text

            # torch.compile is asked on request only.
            assert not [d for d in await session.diagnostics(uri) if d.code == "graph-break"]
            said = await ask_for_breaks(session, uri)
            line = line_of(program, "# a break")
            assert f"{line}" in said and "torch.compile breaks the graph in line" in said, said
            found = [d for d in await session.diagnostics(uri) if d.code == "graph-break"]
            assert line - 1 in {d.range.start.line for d in found}
            assert {d.severity for d in found} == {types.DiagnosticSeverity.Hint}
            assert any(said in message.message for message in session.client.messages)

            # Until the text changes.
            session.change(uri, PROGRAM + "\n")
            await eventually(
                lambda: session.diagnostics(uri),
                lambda found: not any(d.code == "graph-break" for d in found),
            )
            assert await ask_for_breaks(session, session.uri("other.py")) == "it is not open here."

            # Of a notebook, by its own URI or that of any of its cells.
            notebook = session.open_notebook("net.ipynb", CELLS)
            cell = notebook.cells[2].document
            await eventually(lambda: session.labels(cell), bool)
            for asked in (notebook.uri, notebook.cells[0].document, cell):
                said = await ask_for_breaks(session, asked)
                assert said == "torch.compile breaks the graph in line 7 of code cell 2.", said
                found = await session.diagnostics(cell)
                assert [d.range.start.line for d in found if d.code == "graph-break"] == [6]
                assert not await session.diagnostics(notebook.cells[0].document)

    asyncio.run(body())

"""What a real server has an editor write, complete and show while stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from lsprotocol import types

from tests.conftest import Write
from tests.lsp.editors import Session, editing, eventually

pytestmark = [
    pytest.mark.usefixtures("resident_process"),
    pytest.mark.xdist_group("lsp"),
]

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, hidden_size: int = 24):
        super().__init__()
        self.words = nn.Embedding(1000, hidden_size)
        self.out = nn.Linear(hidden_size, 5)

    def forward(self, ids, mask):
        h = self.words(ids)
        if mask.all():
            h = h * 2
        pooled = h.mean(1)
        return self.out(pooled)


Net()(torch.zeros(2, 7, dtype=torch.long), torch.ones(2, 7))
"""
FORWARD, POOLED = 11, 15
LABELS = [
    (11, ": i64[B, T]"),
    (11, ": f32[B, T]"),
    (12, ": f32[B, T, 24]"),
    (15, ": f32[B, 24]"),
]


def lines_of(first: int, last: int) -> types.Range:
    """Lines from 1, as a range."""
    return types.Range(types.Position(first - 1, 0), types.Position(last - 1, 0))


async def code_actions(session: Session, uri: str, line: int) -> dict[str, types.CodeAction]:
    params = types.CodeActionParams(
        types.TextDocumentIdentifier(uri), lines_of(line, line), types.CodeActionContext([])
    )
    found = await session.client.text_document_code_action_async(params)
    return {each.title: each for each in found or () if isinstance(each, types.CodeAction)}


def applied(text: str, edits: Sequence[types.TextEdit]) -> str:
    """Edits of whole lines, such as all of these are."""
    lines = text.splitlines(keepends=True)
    for edit in sorted(edits, key=lambda edit: edit.range.start.line, reverse=True):
        start, end = edit.range.start, edit.range.end
        assert start.line == end.line
        line = lines[start.line]
        lines[start.line] = line[: start.character] + edit.new_text + line[end.character :]
    return "".join(lines)


def test_what_is_guessed_is_written_down_by_an_action_and_stays_what_it_was(write: Write) -> None:
    folder = write(NET, "net.py").parent

    async def body() -> None:
        async with editing(folder) as session:
            uri = session.open("net.py")
            labels = await eventually(lambda: session.labels(uri), bool)
            assert labels == LABELS
            found = await eventually(lambda: code_actions(session, uri, FORWARD), bool)
            title = "Specify the inputs: ids: i64[B, T], mask: f32[B, T]"
            assert title in found
            change = found[title].edit
            assert change is not None and change.document_changes is not None
            (document,) = change.document_changes
            assert isinstance(document, types.TextDocumentEdit)
            edits = [each for each in document.edits if isinstance(each, types.TextEdit)]
            text = applied(NET, edits)
            assert "    # tensorpoint: ids: i64[B, T], mask: f32[B, T]\n    def forward" in text
            session.change(uri, text)
            moved = [(line + 1, label) for line, label in LABELS]
            assert await eventually(lambda: session.labels(uri), bool) == moved
            offered = await eventually(
                lambda: code_actions(session, uri, FORWARD + 1),
                lambda found: not any("Specify" in title for title in found),
            )
            assert offered

    asyncio.run(body())


def test_specifications_are_completed_and_values_are_looked_up_while_stopped(write: Write) -> None:
    folder = write(NET, "net.py").parent

    async def body() -> None:
        async with editing(folder) as session:
            uri = session.open("net.py")
            await eventually(lambda: session.labels(uri), bool)
            document = types.TextDocumentIdentifier(uri)
            shown = await session.client.text_document_inline_value_async(
                types.InlineValueParams(
                    document,
                    lines_of(FORWARD, POOLED + 1),
                    types.InlineValueContext(1, lines_of(POOLED, POOLED)),
                )
            )
            names = {
                each.variable_name
                for each in shown or ()
                if isinstance(each, types.InlineValueVariableLookup)
            }
            assert names >= {"ids", "h"} and "pooled" not in names  # not assigned yet

            comment = "    # tensorpoint: ids: i"
            text = NET.replace("    def forward", f"{comment}\n    def forward")
            session.change(uri, text)
            found = await session.client.text_document_completion_async(
                types.CompletionParams(document, types.Position(FORWARD - 1, len(comment)))
            )
            items = found.items if isinstance(found, types.CompletionList) else found or ()
            assert "i64" in {item.label for item in items}

    asyncio.run(body())


PAIRS = """\
from dataclasses import dataclass

import torch
from torch import nn


@dataclass
class Config:
    hidden_size: int = 24


class Pairs(nn.Module):
    def __init__(self, config: Config):
        super().__init__()
        self.config = config
        self.words = nn.Embedding(1000, config.hidden_size)

    def forward(self, ids):
        h = self.words(ids)
        pairs = h.view(h.size(0), -1, 2 * self.config.hidden_size)
        return pairs
"""


def test_a_hover_says_what_stands_behind_a_shape(write: Write) -> None:
    folder = write(PAIRS, "pairs.py").parent

    async def body() -> None:
        async with editing(folder) as session:
            uri = session.open("pairs.py")
            await eventually(lambda: session.labels(uri), bool)
            text = await eventually(
                lambda: session.hover(uri, 19, 8), lambda text: "assumes" in text
            )
            said = text.splitlines()
            assert said[0] == "**h** `f32[B, T, 24]`"
            assert {"- `24 = hidden_size`", "- 24 k parameters", "- assumes `T % 2 == 0`"} <= {
                *said
            }
            assert "- the shape of ids is a guess" in said
            assert any(line.startswith("- ") and "KiB at B = " in line for line in said)

    asyncio.run(body())

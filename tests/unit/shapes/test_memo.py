"""Equal blocks run once, also those that share a cache of keys; nothing else is skipped."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tensorpoint.shapes.tracing.main import table_of
from tensorpoint.shapes.tracing.probing import Probed
from tensorpoint.shapes.tracing.recorder import Observation
from tensorpoint.shapes.tracing.running import Run, run
from tensorpoint.shapes.tracing.source import FileModule
from tensorpoint.wire.shapes import ShapeRequest
from tests.conftest import Write

BLOCKS = 6
IMPORTS = """
import torch
from torch import nn
"""
PARTS = """
CALLS = []


class CacheLayer:
    def __init__(self):
        self.keys = None
        self.seen = 0

    def update(self, keys):
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], 1)
        self.seen += keys.shape[1]
        return self.keys


class Cache:
    def __init__(self, count):
        self.layers = [CacheLayer() for _ in range(count)]
        self.name = "cache"


class Attention(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.layer_idx = layer_idx
        self.key = nn.Linear(8, 4)

    def forward(self, x, cache):
        CALLS.append(self.layer_idx)
        keys = {update}
        return x + keys.mean()


class Block(nn.Module):
    def __init__(self, layer_idx):
        super().__init__()
        self.attention = Attention(layer_idx)

    def forward(self, x, cache=None):
        return self.attention(x, cache)


class Blocks(nn.Module):
    def __init__(self, count, turns):
        super().__init__()
        self.blocks = nn.ModuleList([Block(number) for number in range(count)])
        self.turns = turns

    def forward(self, x):
        cache = Cache(len(self.blocks))
        for _ in range(self.turns):
            for block in self.blocks:
                x = block(x, cache=cache)
        return x, cache
"""
NET = """
class Net(nn.Module):
    # tensorpoint: x: f32[B, T, 8]
    def __init__(self):
        super().__init__()
        self.blocks = Blocks({blocks}, {turns})

    def forward(self, x):
        x, cache = self.blocks(x)
        keys = [layer.keys for layer in cache.layers if layer.keys is not None]
        length = keys[-1].shape[1] + cache.layers[-1].seen
        return torch.cat(keys, 1), x, length
"""
OWN = "cache.layers[self.layer_idx].update(self.key(x))"
SHARED = "cache.layers[0].update(self.key(x))"
RENAMED = f"(setattr(cache, 'name', str(self.layer_idx)), {OWN})[1]"


def told(found: Run) -> tuple[object, Counter[object]]:
    def each(seen: Observation) -> object:
        return seen.site, seen.snapshot

    counts: Counter[object] = Counter()
    for seen in found.observations:
        counts[each(seen)] += seen.times
    return found.output, counts


@pytest.mark.parametrize(
    ("update", "turns", "executed"),
    [
        # The first has nothing before it; the others are alike.
        (OWN, 1, [0, 1]),
        # Once more with what is there.
        (OWN, 2, [0, 1, 0, 1]),
        # Another layer than the block's own is changed, or the cache itself: nothing is skipped.
        (SHARED, 1, [*range(BLOCKS)]),
        (RENAMED, 1, [*range(BLOCKS)]),
    ],
)
def test_blocks_of_a_library_that_share_a_cache_run_once(
    write: Write, update: str, turns: int, executed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "memo_parts", raising=False)
    write(IMPORTS + PARTS.replace("{update}", update), "memo_parts.py")
    text = f"{IMPORTS}from memo_parts import CALLS, Blocks\n{NET}"
    file, probed = traced(write(text.format(blocks=BLOCKS, turns=turns), "net.py"))
    calls: list[int] = file.namespace["CALLS"]
    quick, whole = both(probed, calls)
    assert (quick, whole) == (executed, [*range(BLOCKS)] * turns)


def test_blocks_run_where_the_file_itself_looks_at_the_cache(write: Write) -> None:
    """Each sees one layer more in it."""
    text = IMPORTS + PARTS.replace("{update}", OWN) + NET.format(blocks=BLOCKS, turns=1)
    file, probed = traced(write(text, "net.py"))
    quick, whole = both(probed, file.namespace["CALLS"])
    assert quick == whole == [*range(BLOCKS)]


def traced(path: Path) -> tuple[FileModule, Probed]:
    kept: list[tuple[FileModule, Probed]] = []
    request = ShapeRequest(str(path), path.read_text("utf-8"), "Net", symbolic=False)
    table = table_of(request, kept=kept)
    assert table.calls, table.untraced
    return kept[0]


def both(probed: Probed, calls: list[int]) -> tuple[list[int], list[int]]:
    """The blocks that are executed with and without; what is told is the same."""
    found: list[tuple[list[int], object]] = []
    for memo in (True, False):
        calls.clear()
        result = run(probed.target, {"B": 3, "T": 19}, memo=memo)
        assert result.error is None and result.output is not None
        found.append(([*calls], told(result)))
    assert found[0][1] == found[1][1]
    return found[0][0], found[1][0]

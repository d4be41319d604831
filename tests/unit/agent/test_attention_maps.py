"""Who is heard for attention maps: only while somebody looks at a module that is there."""

from __future__ import annotations

import gc
import threading
from typing import Any

import torch
from torch import nn

from tensorpoint.agent.attention_maps import AttentionMaps
from tests.unit.agent.tapped import Tapped


def test_nothing_is_heard_any_more_of_a_module_that_is_gone() -> None:
    heard: list[bool] = []
    maps = AttentionMaps(lambda: heard.append(maps.is_on))
    module = nn.MultiheadAttention(4, 2)
    assert maps.of(module) is None and heard == [True]
    assert maps.of(module) is None and heard == [True]
    maps.go_on()
    assert heard == [True]
    del module
    gc.collect()
    maps.go_on()
    assert heard == [True, False] and not maps.is_on
    maps.go_on()
    assert heard == [True, False]


def test_patience_is_counted_by_stops_and_not_by_threads() -> None:
    maps = AttentionMaps(lambda: None)
    module = nn.MultiheadAttention(4, 2)
    maps.of(module)
    together = threading.Barrier(5)

    def go_on_three_times() -> None:
        for _ in range(3):
            maps.go_on()
        together.wait(timeout=60)  # the number of a thread that has ended is used again

    others = [threading.Thread(target=go_on_three_times) for _ in range(4)]
    for thread in others:
        thread.start()
    go_on_three_times()
    assert maps.is_on
    maps.go_on()
    assert not maps.is_on


def test_what_torch_fuses_has_a_map_while_somebody_looks() -> None:
    """A `TransformerEncoderLayer` in evaluation is one call: its fast path is avoided."""
    agent = Tapped()
    maps = AttentionMaps(lambda: None)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 1).eval()
    attention: Any = encoder.layers[0].self_attn
    x = torch.randn(2, 5, 8)
    agent.hooks.install()
    agent.taps.listen([maps])
    try:
        assert maps.of(attention) is None
        with torch.no_grad():
            encoder(x)
        found = maps.of(attention)
    finally:
        agent.remove()
    assert torch.backends.mha.get_fastpath_enabled()
    with torch.no_grad():
        _, expected = attention(x, x, x, average_attn_weights=False)
    assert found is not None
    assert torch.allclose(found.weights, expected[0], atol=1e-6)
    assert not agent.faults

"""Who is heard for attention maps: only while somebody looks at a module that is there."""

from __future__ import annotations

import gc

from torch import nn

from tensorpoint.agent.attention_maps import AttentionMaps


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

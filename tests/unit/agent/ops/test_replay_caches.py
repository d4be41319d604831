"""A cache of keys and values is as long after a second run as it was before."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.unit.agent.ops.replaying import looking, rows


class Growing:
    """A cache as transformers' DynamicCache has it: a new, longer tensor at each step."""

    def __init__(self) -> None:
        self.keys: torch.Tensor | None = None

    def update(self, keys: torch.Tensor) -> torch.Tensor:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys])
        return self.keys


class Decoding(nn.Module):
    def forward(self, x: torch.Tensor, cache: Growing) -> torch.Tensor:
        keys = cache.update(x)
        return x.sum() / float(len(keys) < 12)


def test_a_cache_given_as_an_argument_is_as_long_as_it_was() -> None:
    cache = Growing()
    with looking() as watch:
        for _ in range(3):
            Decoding()(rows(), cache)
    assert watch.operation == ("div", 2)
    assert cache.keys is not None
    assert len(cache.keys) == 12


def test_the_cache_of_transformers_is_as_long_as_it_was() -> None:
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    def decode(model: Any) -> list[torch.Tensor]:
        cache: Any = DynamicCache(config=model.config)
        ids = torch.tensor([[1, 2, 3]])
        with torch.no_grad():
            for _ in range(4):
                output = model(input_ids=ids, past_key_values=cache, use_cache=True)
                ids = output.logits[:, -1:].argmax(-1)
        return [ids, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values))]

    def make() -> Any:
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
        )
        model: Any = LlamaForCausalLM(config).eval()
        model.model.layers[1].mlp.act_fn = Asides()
        return model

    expected = decode(make())
    with looking() as watch:
        found = decode(make())
    assert watch.operation[0] == "log"
    for mine, other in zip(found, expected, strict=True):
        assert mine.equal(other)


class Asides(nn.Module):
    """Its third call makes a NaN that only a layer on the side sees."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.aside = 0, nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.aside(torch.log(x * 0 - 1) if self.calls == 3 else x)
        return x

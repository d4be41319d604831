"""Caches of keys and values, as transformers has them: an object with one layer for each block.

A block is called with the whole cache and changes its own layer of it, so that each call would
differ from the one before. What the call may depend on is small: its own layer, the first one, of
which a length is asked, and the one before. What it has done is one layer's fields, which another
block's call puts into the layer of that block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

#: What a value is, as far as a call can see; raises where that is not known.
Describe = Callable[[Any], Any]


@dataclass(frozen=True)
class CacheLayer:
    """One layer of a cache, by its number; it may be the next one that is to be appended."""

    cache: Any
    number: int

    def state(self, describe: Describe) -> Any:
        """What a call may depend on."""
        layers: list[Any] = self.cache.layers
        others = (0, self.number - 1) if self.number else ()
        return (
            type(self.cache),
            _described(_own_fields(self.cache), describe),
            *(_layer(layers[number], describe) for number in others),
            _layer(layers[self.number], describe) if self.number < len(layers) else None,
        )

    def around(self) -> Any:
        """All but the layer itself, by identity: equal if nothing else was changed."""
        layers: list[Any] = self.cache.layers
        kept = [(id(layer), *map(id, vars(layer).values())) for layer in layers]
        own = [(name, id(value)) for name, value in _own_fields(self.cache).items()]
        return kept[: self.number], kept[self.number + 1 :], own

    def kinds(self) -> set[str]:
        """The names of its class and of those of its layers."""
        return {type(each).__name__ for each in (self.cache, *self.cache.layers)}

    def take(self) -> Any:
        """The layer as it is now, with tensors of its own."""
        layers: list[Any] = self.cache.layers
        return _copied(layers[self.number]) if self.number < len(layers) else None

    def put(self, layer: Any) -> None:
        """Have the layer be as another one was."""
        layers: list[Any] = self.cache.layers
        if layer is None:
            return
        if self.number == len(layers):
            layers.append(_copied(layer))
        else:
            vars(layers[self.number]).update(vars(_copied(layer)))


def is_cache(value: Any) -> bool:
    """Whether it is made of layers with fields."""
    layers = getattr(value, "__dict__", {}).get("layers")
    return (
        isinstance(layers, list)
        and not isinstance(value, torch.nn.Module)
        and all(hasattr(layer, "__dict__") for layer in layers)
        and not any(isinstance(layer, (torch.nn.Module, type)) for layer in layers)
    )


def layer_number(module: Any) -> int | None:
    """Which layer of a cache a module uses; None where none or more than one is named."""
    found = {
        number
        for each in module.modules()
        if isinstance(number := vars(each).get("layer_idx"), int)
    }
    return found.pop() if len(found) == 1 else None


def _own_fields(cache: Any) -> dict[str, Any]:
    return {name: value for name, value in vars(cache).items() if name != "layers"}


def _layer(layer: Any, describe: Describe) -> Any:
    return (type(layer), _described(vars(layer), describe))


def _described(fields: dict[str, Any], describe: Describe) -> Any:
    return tuple((name, describe(value)) for name, value in fields.items())


def _copied(layer: Any) -> Any:
    other = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor):
            setattr(other, name, value.detach())
        elif isinstance(value, (list, dict)):
            setattr(other, name, copy.copy(value))
    return other

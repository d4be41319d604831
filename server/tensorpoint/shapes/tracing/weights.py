"""Pretrained models without their weights: only their sizes are wanted, and nothing is fetched.

`AutoModel.from_pretrained(NAME)` is a model of the configuration that is in the cache or the
folder; `resnet50(weights="DEFAULT")` and `create_model(..., pretrained=True)` are those without.
Libraries are changed when they are there, or are imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from torch.nn.modules.module import _IncompatibleKeys


def leave_out_weights() -> None:
    """Once, before the user's code."""
    torch.hub.load_state_dict_from_url = lambda *_, **__: {}
    torch.nn.Module.load_state_dict = _nothing_loaded
    for name, change in _CHANGES.items():
        if name in sys.modules:
            change(sys.modules[name])
    sys.meta_path.insert(0, _Changing())


def _nothing_loaded(*_: Any, **__: Any) -> _IncompatibleKeys:
    """All keys are as expected."""
    return _IncompatibleKeys([], [])


def _transformers(module: Any) -> None:
    def from_pretrained(kind: Any, name: Any, *_: Any, config: Any = None, **__: Any) -> Any:
        if config is None:
            config = kind.config_class.from_pretrained(name, local_files_only=True)
        return kind(config)

    module.PreTrainedModel.from_pretrained = classmethod(from_pretrained)


def _timm(module: Any) -> None:
    module.load_pretrained = lambda *_, **__: None


_CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "transformers.modeling_utils": _transformers,
    "timm.models._builder": _timm,
}


class _Changing(importlib.abc.MetaPathFinder):
    """Changes a module as soon as it is loaded."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = _CHANGES.get(fullname)
        if change is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                change(module)

            spec.loader.exec_module = exec_module
        return spec

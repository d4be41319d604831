"""An installed class, or a function that makes one, in the place of a file: its module is loaded
once more, rewritten.

`transformers:LlamaForCausalLM` is looked up, and the module that defines it is executed again under
its own name, so that what its imports make of it stays the same. A class with a configuration class
(`config_class`) is made from that and a JSON file; any other, and what a function such as
`timm.models.resnet:resnet18` makes, from the JSON as keyword arguments.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import torch

from .modes import Assumptions, without_data
from .rewriting import Source
from .source import FileModule
from .targets import CannotMake, Made, definitions


def load_object(name: str) -> tuple[FileModule, str]:
    """The rewritten module of `package.module:Class`, and the name there. Raises `CannotMake`."""
    module_name, colon, attribute = name.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), attribute)):
        raise CannotMake(f"{name!r} is not MODULE:CLASS, as transformers:LlamaForCausalLM is")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise CannotMake(f"{name}: {error}") from None
    is_class = inspect.isclass(found) and issubclass(found, torch.nn.Module)
    if not (is_class or inspect.isfunction(found)):
        raise CannotMake(f"{name} is neither a module class nor a function, but {found!r}")
    path = inspect.getsourcefile(inspect.unwrap(found))
    if path is None:
        raise CannotMake(f"{name} has no source")
    source = Source(Path(path).read_text(encoding="utf-8"), path)
    if found.__name__ not in definitions(source):
        raise CannotMake(f"{name} is not defined at the top level of {path}")
    original = sys.modules[found.__module__]
    file = FileModule(source, found.__module__, original.__package__ or "")
    file.namespace["__builtins__"] = vars(builtins)
    file.module.__spec__ = original.__spec__
    file.load_all()
    return file, found.__name__


def make_object(file: FileModule, name: str, config: str) -> Made:
    """The module, made from a JSON file. Raises `CannotMake`."""
    kind = file.namespace[name]
    try:
        fields: dict[str, Any] = json.loads(Path(config).read_text("utf-8")) if config else {}
        with without_data(Assumptions(file.source.path)):
            configuration = getattr(kind, "config_class", None)
            if configuration is None:
                module = kind(**fields)
                made = f"{name}(**config)" if fields else f"{name}()"
            else:
                module = kind(configuration(**fields))
                inside = "**config" if fields else ""
                made = f"{name}({configuration.__name__}({inside}))"
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"it makes a {type(module).__name__}, not a module")
        return Made(module.to("meta").eval(), made)
    except Exception as error:  # the user's file, the library's code
        raise CannotMake(f"{name} can't be made: {type(error).__name__}: {error}") from None

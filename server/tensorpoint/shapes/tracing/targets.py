"""What of a file is traced, and how its modules are made.

Traced are the classes with a `forward` that no other class of the file uses: the others are run by
these. A module is made by, in this order: a call of its class
in the file whose arguments can be evaluated, its defaults, a configuration class of the file, and
guesses by the names of parameters. What makes it is said as an expression, `Net(10)`.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .errors import first_line
from .inputs import BadSpec, Spec, read_spec
from .modes import Assumptions, without_data
from .rewriting import Source
from .source import FileModule

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

_GUESSES: dict[str, Any] = {
    **dict.fromkeys(("in_channels", "in_chans", "in_ch", "channels_in", "n_channels", "nc"), 3),
    **dict.fromkeys(("num_classes", "n_classes", "classes", "output_size", "out_features"), 10),
    **dict.fromkeys(("vocab_size", "ntoken", "ntokens", "num_embeddings", "n_vocab"), 1000),
    **dict.fromkeys(("num_heads", "n_head", "n_heads", "nhead", "heads", "head"), 4),
    **dict.fromkeys(("num_layers", "n_layer", "n_layers", "nlayers", "depth", "layers"), 2),
    **dict.fromkeys(("kernel_size", "kernel"), 3),
    **dict.fromkeys(("stride", "ngpu", "groups"), 1),
    **dict.fromkeys(("block_size", "max_len", "max_seq_len", "context_length", "seq_len"), 512),
    **dict.fromkeys(("dropout", "drop", "p", "drop_rate"), 0.0),
    **dict.fromkeys(("img_size", "image_size"), 224),
    "patch_size": 16, "mlp_ratio": 4, "rnn_type": "LSTM", "upscale_factor": 2,
}  # fmt: skip
_WIDE = ("size", "dim", "ch", "hid", "feat", "embd", "planes", "width", "model", "nz", "ngf", "ndf")


class CannotMake(Exception):
    """A module can't be made; the text says why."""


@dataclass(frozen=True)
class Made:
    """A module, and what made it."""

    module: Any
    constructor: str


def definitions(source: Source) -> dict[str, Definition]:
    """Top-level classes and functions."""
    return {
        node.name: node
        for node in source.tree.body
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
    }


def specs_in(source: Source) -> dict[str, Spec]:
    """Specifications in comments, by the definition that they are in or right above of.

    Raises `BadSpec` with the line.
    """
    found: dict[str, Spec] = {}
    nodes = [node for node in source.tree.body if hasattr(node, "name")]
    for number, line in enumerate(source.lines, 1):
        _, mark, text = line.partition("# tensorpoint:")
        if not mark or not text.strip():
            continue
        owner = next((n for n in nodes if number <= (n.end_lineno or 0)), None)
        if owner is None:
            continue
        try:
            spec = read_spec(text)
        except BadSpec as error:
            raise BadSpec(f"line {number}: {error}") from None
        known = found.setdefault(getattr(owner, "name"), Spec())  # noqa: B009
        known.inputs.update(spec.inputs)
        known.limits.extend(spec.limits)
    return found


def roots(file: FileModule, only: str | None) -> list[str]:
    """The names of the classes to trace: `only` that one, if it can be."""
    found: dict[str, ast.ClassDef] = {}
    for name, node in definitions(file.source).items():
        value = file.namespace.get(name)
        if isinstance(node, ast.ClassDef) and inspect.isclass(value):
            if issubclass(value, torch.nn.Module) and _has_forward(value):
                found[name] = node
    if only is not None:
        return [only] if only in found else []
    used = {
        name
        for owner, node in found.items()
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and (name := each.id) in found and name != owner
    }
    return [name for name in found if name not in used] or list(found)


def _has_forward(kind: type) -> bool:
    return getattr(kind, "forward", None) is not getattr(torch.nn.Module, "forward", None)


def make_module(file: FileModule, name: str) -> Made:
    """The module of a class of the file. Raises `CannotMake`."""
    kind = file.namespace[name]
    tried: list[str] = []
    for constructor in _constructors(file, name, kind):
        try:
            return Made(_evaluate(file, constructor), constructor)
        except BaseException as error:  # SystemExit too: the user's code
            tried.append(f"{constructor}: {type(error).__name__}: {first_line(error)}")
    raise CannotMake(f"{name} can't be made: {tried[0] if tried else 'it has no constructor'}")


def _evaluate(file: FileModule, constructor: str) -> Any:
    with without_data(Assumptions(file.source.path)):
        code = compile(constructor, "<constructor>", "eval")
        module = eval(code, file.namespace)
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"it makes a {type(module).__name__}, not a module")
    # Buffers from numpy or from_pretrained may be elsewhere.
    return module.to("meta").eval()


def _constructors(file: FileModule, name: str, kind: type) -> Iterator[str]:
    seen: set[str] = set()
    for node in ast.walk(file.source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name:
            text = ast.unparse(node)
            if text not in seen:
                seen.add(text)
                yield text
    yield f"{name}()"
    arguments: list[str] = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        arguments.append(f"{parameter.name}={_guess(file, parameter)}")
    yield f"{name}({', '.join(arguments)})"


def _guess(file: FileModule, parameter: inspect.Parameter) -> str:
    name, annotation = parameter.name, parameter.annotation
    word = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if inspect.isclass(file.namespace.get(word)):
        return f"{word}()"
    if "config" in name or "cfg" in name or name in ("args", "hparams", "opt"):
        for other, value in file.namespace.items():
            if inspect.isclass(value) and "config" in other.lower():
                return f"{other}()"
    if name in _GUESSES:
        return repr(_GUESSES[name])
    if any(part in name for part in _WIDE):
        return "64"
    return "0.5" if word == "float" else "2"

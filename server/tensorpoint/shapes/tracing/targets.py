"""What of a file is traced, and how its modules are made.

Traced are the classes with a `forward` that no other class of the file uses: the others are run by
these. A module is made by, in this order: a call of its class
in the file whose arguments can be evaluated, its defaults, a configuration class of the file, and
guesses by the names of parameters. What makes it is said as an expression, `Net(10)`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from .errors import first_line
from .inputs import BadSpec, Spec, read_spec
from .modes import Assumptions, without_data
from .rewriting import Source
from .source import LIGHTNING, FileModule
from .values import Values

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


def definition(source: Source, name: str) -> Definition | None:
    """The class, function or `Class.method` of that name."""
    owner, _, method = name.partition(".")
    found = definitions(source).get(owner)
    if found is None or not method:
        return found
    return next((each for each in _methods(found) if each.name == method), None)


def _methods(node: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    if not isinstance(node, ast.ClassDef):
        return []
    return [e for e in node.body if isinstance(e, (ast.FunctionDef, ast.AsyncFunctionDef))]


def specs_in(source: Source) -> dict[str, Spec]:
    """Specifications in comments, by the definition that they are in or right above of.

    In a class they are those of its `forward`, but for one at another method that has these
    arguments. Raises `BadSpec` with the line.
    """
    found: dict[str, Spec] = {}
    nodes = list(definitions(source).values())
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
        known = found.setdefault(_owner_name(owner, number, spec), Spec())
        known.inputs.update(spec.inputs)
        known.limits.extend(spec.limits)
    return found


def _owner_name(owner: Definition, number: int, spec: Spec) -> str:
    method = next((m for m in _methods(owner) if number <= (m.end_lineno or 0)), None)
    if method is None or method.name in ("__init__", "forward") or not spec.inputs:
        return owner.name
    given = method.args
    names = {a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)}
    return f"{owner.name}.{method.name}" if spec.inputs.keys() <= names else owner.name


def wanted(file: FileModule, specified: Collection[str], only: str | None) -> list[str]:
    """The names of what is traced: classes, `Class.method`s and functions that have inputs."""
    classes = _roots(file, None if only is None else only.partition(".")[0])
    if only is not None:
        functions = [only] if is_function(file, only) else []
        return [*functions, *([only] if only.partition(".")[0] in classes else [])]
    names: list[str] = []
    for name in classes:
        methods = {method.name for method in _methods(definitions(file.source)[name])}
        steps = [f"{name}.training_step"] if "training_step" in methods else []
        steps += [each for each in specified if each.startswith(f"{name}.") and each not in steps]
        kind = file.namespace[name]
        names += [*([name] if _has_forward(kind) else []), *steps]
    return [*names, *(name for name in specified if is_function(file, name))]


def is_function(file: FileModule, name: str) -> bool:
    """Whether the file has a function of that name."""
    node = definitions(file.source).get(name)
    return isinstance(node, ast.FunctionDef) and inspect.isfunction(file.namespace.get(name))


def _roots(file: FileModule, only: str | None) -> list[str]:
    """The names of the classes to trace: `only` that one, if it can be."""
    found: dict[str, ast.ClassDef] = {}
    for name, node in definitions(file.source).items():
        value = file.namespace.get(name)
        if isinstance(node, ast.ClassDef) and inspect.isclass(value):
            if issubclass(value, torch.nn.Module) and (_has_forward(value) or _has_step(value)):
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
    forward = getattr(kind, "forward", None)
    inherited = (torch.nn.Module, *(each for each in kind.__mro__ if each.__name__ == LIGHTNING))
    return all(forward is not getattr(each, "forward", None) for each in inherited)


def _has_step(kind: type) -> bool:
    return callable(getattr(kind, "training_step", None))


class Called(torch.nn.Module):
    """A function, or a method of `owner`, in the place of a `forward`."""

    def __init__(self, function: Any, owner: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.owner = owner
        self.forward = function


def make_target(file: FileModule, name: str, values: Values, factory: str = "") -> Made:
    """What is called: the module of a class, or a function as one. Raises `CannotMake`."""
    if is_function(file, name):
        return Made(Called(file.namespace[name]), name)
    owner, _, method = name.partition(".")
    made = _from_factory(file, owner, factory) if factory else _make_module(file, owner, values)
    if not method:
        return made
    called = Called(getattr(made.module, method), made.module)
    return Made(called.eval(), f"{made.constructor}.{method}")


def _from_factory(file: FileModule, name: str, factory: str) -> Made:
    """What the project says makes the module."""

    def make() -> Any:
        module, colon, attribute = factory.partition(":")
        if colon and all(part.isidentifier() for part in (*module.split("."), attribute)):
            return getattr(importlib.import_module(module), attribute)()
        return eval(compile(factory, "<factory>", "eval"), file.namespace)

    try:
        return Made(_as_module(file, make), factory)
    except BaseException as error:  # SystemExit too: the user's code
        said = f"{type(error).__name__}: {first_line(error)}"
        raise CannotMake(f"{name} can't be made by {factory}: {said}") from None


def _make_module(file: FileModule, name: str, values: Values) -> Made:
    tried: list[str] = []
    for constructor, make in _constructors(file, name, file.namespace[name], values):
        try:
            return Made(_as_module(file, make), constructor)
        except BaseException as error:  # SystemExit too: the user's code
            tried.append(f"{constructor}: {type(error).__name__}: {first_line(error)}")
    raise CannotMake(f"{name} can't be made: {tried[0] if tried else 'it has no constructor'}")


def _as_module(file: FileModule, make: Callable[[], Any]) -> Any:
    with without_data(Assumptions(file.source.path)):
        module = make()
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"it makes a {type(module).__name__}, not a module")
    # Buffers from numpy or from_pretrained may be elsewhere.
    return module.to("meta").eval()


def _constructors(
    file: FileModule, name: str, kind: type, values: Values
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Expressions that may make a module, and what evaluates them."""

    def plain(text: str) -> tuple[str, Callable[[], Any]]:
        return text, lambda: eval(compile(text, "<constructor>", "eval"), file.namespace)

    seen: set[str] = set()
    for call in values.calls:
        if isinstance(call.func, ast.Name) and call.func.id == name:
            text = ast.unparse(call)
            if text not in seen:
                seen.add(text)
                yield text, lambda call=call: _called(kind, values, call)
    yield plain(f"{name}()")
    arguments: list[str] = []
    for parameter in list(inspect.signature(kind.__init__).parameters.values())[1:]:
        if parameter.default is not parameter.empty:
            continue
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        arguments.append(f"{parameter.name}={_guess(file, parameter)}")
    yield plain(f"{name}({', '.join(arguments)})")


def _called(kind: type, values: Values, call: ast.Call) -> Any:
    positional, keywords = values.arguments(call)
    return kind(*positional, **keywords)


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

"""What can be looked at in a layer: its scopes, and the names that expressions see.

All of it runs on the suspended thread, called through the debugger's `evaluate`, so that what it
returns is expanded by the debugger as any value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from .. import suspension
from ..tensors import tensors_in
from ..values import figures, words
from ..values.devices import BUSY, Unavailable
from ..values.figures import Figures
from ..values.kinds import line_of
from ..values.plain import gradient_of, is_on_cpu, read, shape_of
from ..values.walks import modules_below, tensors_of
from .stack import Layer

#: More make a view slow.
_MAX_ROWS = 500
_NOT_YET = "not there yet: the layer has not returned"


class Inputs(tuple[Any, ...]):
    """The arguments of a call in the order of its parameters: `inputs[0]`, `inputs["mask"]`."""

    names: tuple[str, ...] = ()

    def __getitem__(self, key: Any) -> Any:
        return tuple.__getitem__(self, self.names.index(key) if isinstance(key, str) else key)


def inputs_of(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """The arguments of a call by the names of the parameters of its forward."""
    bound = _bound(getattr(module, "forward", None), args, kwargs)
    inputs = Inputs(bound.values())
    inputs.names = tuple(bound)
    return inputs


def _bound(
    forward: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    plain = {**{f"args[{number}]": item for number, item in enumerate(args)}, **kwargs}
    if forward is None:
        return plain
    try:
        arguments = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return plain
    found: dict[str, Any] = {}
    for name, value in arguments.arguments.items():
        kind = arguments.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found |= {f"{name}[{number}]": item for number, item in enumerate(value)}
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found |= value
        else:
            found[name] = value
    return found


def scope(layer: Layer, name: str) -> dict[str, Any]:
    """The rows of a scope."""
    return _SCOPES[name](layer)


def _inputs(layer: Layer) -> dict[str, Any]:
    inputs = inputs_of(layer.module, layer.args, layer.kwargs)
    return dict(zip(inputs.names, inputs, strict=True))


def _outputs(layer: Layer) -> dict[str, Any]:
    return {"output": layer.output if layer.has_output else _NOT_YET}


def _parameters(layer: Layer) -> dict[str, Any]:
    return dict(islice(_named_parameters(layer.module), _MAX_ROWS))


def _gradients(layer: Layer) -> dict[str, Any]:
    own = {
        name: gradient_of(parameter)
        for name, parameter in islice(_named_parameters(layer.module), _MAX_ROWS)
    }
    return {**layer.gradients, **own}


def _buffers(layer: Layer) -> dict[str, Any]:
    return dict(islice(_below(layer.module, "_buffers"), _MAX_ROWS))


def _statistics(layer: Layer) -> dict[str, Any]:
    values = dict(_inputs(layer)) if layer.args or layer.kwargs else {}
    if layer.has_output:
        values["output"] = layer.output
    values |= layer.gradients
    return _in_figures(item for name, value in values.items() for item in tensors_in(value, name))


def _named_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Its own; of a module without any those below it; of an optimizer all that it updates."""
    if hasattr(module, "param_groups"):
        for number, group in enumerate(module.param_groups):
            for position, parameter in enumerate(group["params"]):
                yield f"param_groups[{number}]['params'][{position}]", parameter
        return
    own = list(tensors_of(module, "_parameters"))
    yield from own or _below(module, "_parameters")


def _below(module: Any, table: str) -> Iterator[tuple[str, Any]]:
    """The tensors of a module and of those below it, in the order of `named_parameters`."""
    waiting, seen = [("", module)], set[int]()
    while waiting:
        path, inner = waiting.pop()
        if id(inner) in seen:
            continue
        seen.add(id(inner))
        yield from ((path + name, tensor) for name, tensor in tensors_of(inner, table))
        below = [(f"{path}{name}.", child) for name, child in modules_below(inner)]
        waiting.extend(reversed(below))


def _in_figures(tensors: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The line of each tensor with its figures, of a sample where it is large.

    A device that hasn't answered once is not waited for again.
    """
    rows: dict[str, str] = {}
    busy: Unavailable | None = None
    for name, tensor in tensors:
        found = busy if busy and not is_on_cpu(tensor) else figures.figures_of(tensor)
        if isinstance(found, Unavailable) and found.reason == BUSY:
            busy = found
        zeros = f", {found.zeros / found.looked_at:.1%} zero" if isinstance(found, Figures) else ""
        rows[name] = f"{line_of(tensor)} | {words.in_short(found)}{zeros}"
    return rows


def in_short(value: object, name: str) -> str:
    """The tensors in a value by type and shape: "output float32[4, 8]"."""
    found = [
        f"{inner} {_type_and_shape(tensor)}" for inner, tensor in islice(tensors_in(value, name), 5)
    ]
    return ", ".join(found) or f"{name} {type(value).__name__}"


def _type_and_shape(tensor: Any) -> str:
    sizes = shape_of(tensor)
    shape = "[nested]" if sizes is None else f"[{', '.join(map(str, sizes))}]"
    return f"{str(read(tensor, 'dtype')).removeprefix('torch.')}{shape}"


_SCOPES: dict[str, Callable[[Layer], dict[str, Any]]] = {
    "Inputs": _inputs,
    "Outputs": _outputs,
    "Parameters": _parameters,
    "Gradients": _gradients,
    "Statistics": _statistics,
    "Buffers": _buffers,
}


def globals_of(module: Any) -> dict[str, Any]:
    """What the file that defines a module's forward (an optimizer's step) has on the top level."""
    kind = type(module)
    function: Any = inspect.unwrap(getattr(kind, "forward", None) or getattr(kind, "step", scope))
    return getattr(function, "__globals__", {})


@dataclass(frozen=True)
class Place:
    """Where an expression in a layer stands, by the names that a frame has for it."""

    f_globals: dict[str, Any]
    f_locals: dict[str, Any]


def place_in(layer: Layer) -> Place:
    """The same as a frame has it."""
    return Place(*names_in(layer))


def names_in(layer: Layer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The globals and the other names that an expression in a layer sees."""
    there = globals_of(layer.module) if layer.frame is None else layer.frame.f_globals
    names = {} if layer.frame is None else dict(layer.frame.f_locals)
    names["self"] = layer.module
    names["inputs"] = inputs_of(layer.module, layer.args, layer.kwargs)
    if layer.has_output:
        names["output"] = layer.output
    gradients = {name: value for name, value in layer.gradients.items() if name.isidentifier()}
    return there, {**names, **gradients}


def evaluate(layer: Layer, expression: str) -> Any:
    """The value of an expression in a layer; statements are carried out.

    What a statement assigns to a local name of the running forward is written into its frame.
    """
    there, names = names_in(layer)
    together = {**there, **names}
    try:
        code = compile(expression.strip(), "<layer>", "eval")
    except SyntaxError:
        exec(compile(expression, "<layer>", "exec"), together)
        if layer.frame is not None:
            local = layer.frame.f_locals
            changed = {
                name: together[name]
                for name in local
                if name in together and together[name] is not names.get(name)
            }
            if changed:
                suspension.set_locals(layer.frame, changed)
        return None
    return eval(code, together)


def completions(layer: Layer, text: str) -> list[str]:
    """Names that complete the last word of `text`; attributes after a dot."""
    there, names = names_in(layer)
    word = _last_word(text)
    owner, dot, start = word.rpartition(".")
    if not dot:
        candidates = [*names, *there]
    else:
        try:
            candidates = dir(eval(owner, {**there, **names}))
        except Exception:
            return []
    return sorted({name for name in candidates if name.startswith(start)})[:_MAX_ROWS]


def _last_word(text: str) -> str:
    position = len(text)
    while position and (text[position - 1].isalnum() or text[position - 1] in "_."):
        position -= 1
    return text[position:]

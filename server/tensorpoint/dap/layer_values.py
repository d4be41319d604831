"""What is shown of a layer, and what may be done with it: scopes, expressions, assignments.

All of it is evaluated on the suspended thread. Each row of a scope has an expression that leads to
it in its layer; requests that point at a row are treated as those that name the expression.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ..wire.layer_stack import LayerFrame
from ..wire.values import DataRequest
from . import console, values
from .injection import AgentError
from .peer import Message
from .suspended import BELOW, Suspended, in_layer, scope_of

FIRST_SCOPE = 1_800_000_000
LAST_SCOPE = 1_899_999_999
_SCOPES = ("Inputs", "Outputs", "Parameters", "Gradients", "Statistics", "Buffers")
#: Statistics read the tensors, which on CUDA waits for the device.
_EXPENSIVE = frozenset({"Statistics"})
#: What debugpy adds to the items of a dictionary.
_NOT_ITEMS = frozenset({"special variables", "function variables", "class variables", "len()"})


@dataclass(frozen=True)
class Place:
    """A layer of a Python thread: the `number`-th, innermost first."""

    thread: int
    number: int
    frame: LayerFrame


class LayerValues:
    """The scopes of the layers, by number until the program goes on."""

    def __init__(self, threads: Suspended, place: Callable[[int], Place]) -> None:
        self._threads = threads
        #: The layer that a frame of a layer thread stands for. Raises AgentError.
        self._place = place
        self._numbers = itertools.count(FIRST_SCOPE)
        self._scopes: dict[int, tuple[Place, str]] = {}

    def clear(self) -> None:
        """The program runs again."""
        self._scopes.clear()

    async def scopes(self, arguments: Message) -> Message:
        """The body of `scopes`."""
        place = self._frame(arguments)
        scopes: list[Message] = []
        for name in _SCOPES:
            reference = next(self._numbers)
            self._scopes[reference] = place, name
            scopes.append(
                {
                    "name": name,
                    "variablesReference": reference,
                    "expensive": name in _EXPENSIVE,
                }
            )
        return {"scopes": scopes}

    async def variables(self, arguments: Message) -> Message:
        """The body of `variables`: the rows of a scope."""
        place, scope = self._scope(number_in(arguments, "variablesReference"))
        rows = await self._threads.value(place.thread, scope_of(place.number, scope), "watch")
        children = int(rows.get("variablesReference") or 0)
        if not children:
            return {"variables": []}
        answer = await self._threads.request("variables", variablesReference=children)
        found = [row for row in answer.get("variables", []) if row.get("name") not in _NOT_ITEMS]
        start, count = number_in(arguments, "start"), number_in(arguments, "count")
        return {
            "variables": [
                _row(row, scope) for row in found[start : start + count if count else None]
            ]
        }

    async def evaluate(self, arguments: Message) -> Message:
        """The body of `evaluate`."""
        place = self._frame(arguments)
        context = str(arguments.get("context") or "repl")
        return await self._value(place, str(arguments.get("expression", "")), context)

    async def set_expression(self, arguments: Message) -> Message:
        """The body of `setExpression`."""
        place = self._frame(arguments)
        expression = str(arguments.get("expression", ""))
        value = str(arguments.get("value", ""))
        await self._threads.ask(
            place.thread, ask="set", frame=place.number, expression=expression, value=value
        )
        now = await self._value(place, expression, "watch")
        return {"value": now.get("result", ""), **now}

    async def set_variable(self, arguments: Message) -> Message:
        """Refuses `setVariable` on a row of a scope; its elements are rows of debugpy's."""
        _, scope = self._scope(number_in(arguments, "variablesReference"))
        expression = _expression(scope, str(arguments.get("name", "")))
        if expression is None:
            raise AgentError("statistics are read from a tensor: they can't be set")
        raise AgentError(
            f"a tensor of a layer can't be replaced here. Expand it and set an element, or change "
            f"it in place in the debug console, such as {expression}.data.zero_()"
        )

    async def completions(self, arguments: Message) -> Message:
        """The body of `completions`."""
        place = self._frame(arguments)
        line = str(arguments.get("text", ""))
        text = line[: max(number_in(arguments, "column") - 1, 0)]
        answer = await self._threads.ask(
            place.thread, ask="completions", frame=place.number, text=text
        )
        ours = console.completions(arguments)
        known = {target["label"] for target in ours}
        names = (name for name in answer["names"] if name not in known)
        return {"targets": [*({"label": name} for name in names), *ours]}

    async def tensor(self, arguments: Message) -> Message:
        """The body of `tensorpoint/tensor` for an expression in a layer."""
        place = self._frame(arguments)
        expression = str(arguments.get("expression", ""))
        found = await self._value(place, expression, "watch")
        reference = int(found.get("variablesReference") or 0)
        if not reference:
            raise AgentError(f"{expression} is no tensor, no array and no module")
        asked = {**arguments, "variablesReference": reference, "expression": None, "frameId": 0}
        return await values.tensor(asked, self._threads.debugpy())

    async def inline(self, arguments: Message) -> Message:
        """The body of `tensorpoint/inlineValues`: the locals of a forward that runs."""
        place = self._frame(arguments)
        if not place.frame.frame_id:
            return {"values": [], "firstLine": place.frame.line or 0}
        asked = {"frameId": place.frame.frame_id}
        return await values.inline(asked, self._threads.debugpy())

    async def watchable(self, request: DataRequest) -> Message:
        """What a data breakpoint would be set on. Raises AgentError with the reason if nothing."""
        place, text = self._pointed_at(request)
        return await self._threads.ask(place.thread, ask="data", frame=place.number, text=text)

    def _pointed_at(self, request: DataRequest) -> tuple[Place, str]:
        if not request.variablesReference:
            return self._place(request.frameId), request.name
        place, scope = self._scope(request.variablesReference)
        expression = _expression(scope, request.name)
        if expression is None:
            raise AgentError("statistics are read from a tensor: watch the tensor")
        return place, expression

    def _frame(self, arguments: Message) -> Place:
        return self._place(number_in(arguments, "frameId"))

    def _scope(self, reference: int) -> tuple[Place, str]:
        found = self._scopes.get(reference)
        if found is None:
            raise AgentError("the program has gone on since: these variables are no more")
        return found

    async def _value(self, place: Place, expression: str, context: str) -> Message:
        return await self._threads.value(place.thread, in_layer(place.number, expression), context)


def name_below(body: Message) -> None:
    """Give variables below a row of a layer the expressions that lead to them in the layer."""
    for row in body.get("variables") or ():
        found = BELOW.match(str(row.get("evaluateName") or ""))
        if found is None:
            continue
        if found["scope"] is None:
            start = _operand(ast.literal_eval(found["text"]))
        else:
            start = _expression(found["scope"], ast.literal_eval(found["row"]))
        rest = str(row["evaluateName"])[found.end() :]
        row["evaluateName"] = None if start is None else f"{start}{rest}"


def _operand(expression: str) -> str:
    """An expression to which a dot or an index may be added."""
    node = ast.parse(expression.strip(), mode="eval").body
    binds = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    return expression if binds else f"({expression})"


def number_in(arguments: Message, key: str) -> int:
    """An id among the arguments of a request; 0 where there is none."""
    value = arguments.get(key)
    return value if isinstance(value, int) else 0


def _row(row: Message, scope: str) -> Message:
    name = str(row["name"]).strip("'\"")
    return {**row, "name": name, "evaluateName": _expression(scope, name)}


def _expression(scope: str, name: str) -> str | None:
    """What leads to a row of a scope, in its layer; None for what is computed."""
    if scope == "Statistics":
        return None
    if scope == "Inputs":
        return f"inputs[{name!r}]"
    if scope == "Outputs" or name in ("grad_output", "grad_input"):
        return name
    owned = _owned(name, "buffer" if scope == "Buffers" else "parameter")
    return f"{owned}.grad" if scope == "Gradients" else owned


def _owned(path: str, kind: str) -> str:
    """A parameter or buffer below `self`, an optimizer's groups of them among those."""
    if path.startswith("param_groups[") or all(part.isidentifier() for part in path.split(".")):
        return f"self.{path}"
    return f"self.get_{kind}({path!r})"

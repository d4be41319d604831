"""The tensorpoints of a session, however they were set.

Clients differ in what they offer, so the same conditions come as exception filters with
conditions, as function breakpoints (`layer:PATH`, `tensorpoint:CONDITION`), from the launch
configuration and from the console. All end in one `wire.Plan`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..conditions import ConditionError
from ..conditions.data import parse_data
from ..conditions.hits import parse_hits
from ..conditions.plan import check, check_layer
from ..wire import WIRE_VERSION, Plan, Precision, Tensorpoint
from ..wire.plan import LayerPhase
from .facts import Recording

Message = dict[str, Any]
T = TypeVar("T")
Source = Literal["filter", "function", "data", "launch", "console"]

LAYER_PREFIX = "layer:"
CONDITION_PREFIX = "tensorpoint:"
DATA_PREFIX = "data:"
#: Ids below this are debugpy's; what we show a person is the rest.
_FIRST_ID = 1_000_000

_DESCRIPTION = 'A condition on tensors, such as nonfinite("*.mlp") and step > 100'


@dataclass(frozen=True)
class Filter:
    """One of our exception filters.

    `metric` may be left out of its condition box. `bare` is what it means with an empty box; where
    there is no sensible default, `needs` asks for one.
    """

    id: str
    label: str
    description: str
    condition_description: str
    metric: str | None = None
    bare: str = ""
    needs: str = ""
    default: bool = False

    @property
    def message(self) -> Message:
        """The filter as DAP writes it."""
        return {
            "filter": self.id,
            "label": self.label,
            "description": self.description,
            "default": self.default,
            "supportsCondition": True,
            "conditionDescription": self.condition_description,
        }


CONDITION_FILTER = "tensorpoint"
FILTERS = {
    item.id: item
    for item in (
        Filter(
            "nonfinite",
            "NaN/Inf",
            "Stop at the layer where a NaN or an infinity is born: forward, backward, optimizer.",
            "Where to look: a module glob such as model.layers.*, or a condition such as "
            'nonfinite("*.mlp") and step > 100',
            metric="nonfinite",
            bare="nonfinite()",
            default=True,
        ),
        Filter(
            "grad_norm",
            "Gradient norm",
            "Stop where the norm of the gradients crosses a threshold.",
            'A threshold such as > 10, or one for some modules: "*.mlp.*" > 5',
            metric="grad_norm",
            needs="Gradient norm: write a threshold for this filter (in VS Code: Edit Condition), "
            'for example > 10, or "model.layers.*" > 5',
        ),
        Filter(
            "entropy_shift",
            "Attention entropy shift",
            "Stop at the layer and head whose attention entropy leaves its running mean.",
            "How many standard deviations: > 6, or for some modules: "
            '"*.attn" > 8; without a condition > 6',
            metric="entropy_shift",
            bare="entropy_shift() > 6",
        ),
        Filter(
            CONDITION_FILTER,
            "Tensor condition",
            "Stop where a condition on tensors turns true.",
            _DESCRIPTION,
            needs="Tensor condition: write a condition for this filter (in VS Code: Edit "
            'Condition), for example nonfinite("model.layers.*")',
        ),
    )
}


@dataclass(frozen=True)
class Refusal:
    """A condition that was not accepted, and why, in two or three lines."""

    text: str
    reason: str


@dataclass(frozen=True)
class DataChoice:
    """A data breakpoint as a client sets it: what the agent has as `data`, by its `name`.

    Without `data`, the name is the path of a parameter, a buffer or a gradient in a model.
    """

    data: str
    name: str
    condition: str = ""
    hits: str = ""


class Tensorpoints:
    """What is set, by where it was set; each source is replaced as a whole, as DAP does."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._known: dict[tuple[str, ...], int] = {}
        #: What is known of the layers that breakpoints name, by id: "" if there is such a layer.
        self._unknown: dict[int, str] = {}
        self._set: dict[Source, list[Tensorpoint]] = {
            # "NaN/Inf" is on until the client says which filters it wants.
            "filter": [],
            "function": [],
            "data": [],
            "launch": [],
            "console": [],
        }
        self.recording = Recording()
        self.precision: Precision = "module"
        self.keep_weights = False
        #: See `wire.Plan`.
        self.weights_host = ""
        self._launch_filters: dict[str, Tensorpoint] = {}
        self._client_lists_launch_filters = False
        self._set["filter"].append(self._make("filter", "condition", "", 'nonfinite("*")'))

    # What is set -------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """Everything that is set, each condition once."""
        unique: dict[tuple[str, ...], Tensorpoint] = {}
        for item in itertools.chain.from_iterable(self._set.values()):
            tensorpoint = item
            key = (item.kind, item.module, item.data, item.condition, item.phase, item.hits)
            unique.setdefault(key, tensorpoint)
        wanted = self.recording
        return Plan(
            WIRE_VERSION,
            tuple(unique.values()),
            wanted.is_on,
            wanted.file_in_force,
            self.precision,
            self.keep_weights,
            self.weights_host,
        )

    def filters(self) -> list[Message]:
        """Our exception filters, those made from the launch configuration included."""
        return [
            *(item.message for item in FILTERS.values()),
            *(
                {
                    "filter": name,
                    "label": tensorpoint.text,
                    "description": "From the launch configuration.",
                    "default": True,
                    "supportsCondition": True,
                    "conditionDescription": _DESCRIPTION,
                }
                for name, tensorpoint in self._launch_filters.items()
            ),
        ]

    def listing(self) -> list[tuple[int, Tensorpoint, Source]]:
        """(number, tensorpoint, where it was set) of all that are set."""
        return [
            (tensorpoint.id - _FIRST_ID, tensorpoint, source)
            for source, tensorpoints in self._set.items()
            for tensorpoint in tensorpoints
        ]

    # Setting -----------------------------------------------------------------------------------

    def set_launch(self, texts: Sequence[str]) -> list[Refusal]:
        """Take the conditions of the launch configuration."""
        refused: list[Refusal] = []
        for position, text in enumerate(texts):
            made = self._parse("launch", text)
            if isinstance(made, Refusal):
                refused.append(made)
            else:
                self._launch_filters[f"{CONDITION_FILTER}.{position}"] = made
        self._set["launch"] = list(self._launch_filters.values())
        return refused

    def set_filters(self, chosen: Sequence[tuple[str, str]]) -> list[Tensorpoint | Refusal]:
        """Take the exception filters (id, condition or "") that are ours; an answer for each."""
        named = [name for name, _ in chosen if name in self._launch_filters]
        if named:
            # This client shows them as filters, so from now on an absent one is switched off.
            self._client_lists_launch_filters = True
        answers = [self._filter(name, condition.strip()) for name, condition in chosen]
        accepted = [item for item in answers if isinstance(item, Tensorpoint)]
        self._set["filter"] = accepted
        if self._client_lists_launch_filters:
            self._set["launch"] = []
        return answers

    def set_functions(self, chosen: Sequence[tuple[str, str, str]]) -> list[Tensorpoint | Refusal]:
        """Take function breakpoints: name with one of our prefixes, condition, hit count, or "".

        Returns an answer for each.
        """
        answers = [self._function(*item) for item in chosen]
        self._set["function"] = [item for item in answers if isinstance(item, Tensorpoint)]
        return answers

    def set_data(self, chosen: Sequence[DataChoice | Refusal]) -> list[Tensorpoint | Refusal]:
        """Take data breakpoints; an answer for each."""
        answers = [
            choice if isinstance(choice, Refusal) else self._data("data", choice)
            for choice in chosen
        ]
        self._set["data"] = [item for item in answers if isinstance(item, Tensorpoint)]
        return answers

    def add_data(self, choice: DataChoice) -> Tensorpoint | Refusal:
        """Set one more, from the console."""
        made = self._data("console", choice)
        if isinstance(made, Tensorpoint) and made not in self._set["console"]:
            self._set["console"].append(made)
        return made

    def _data(self, source: Source, choice: DataChoice) -> Tensorpoint | Refusal:
        try:
            condition = parse_data(choice.condition).text
            parse_hits(choice.hits)
        except ConditionError as error:
            return Refusal(choice.condition, f"{error.message}\n{error.caret()}")
        key = (source, "data", choice.data, choice.name, choice.hits, condition)
        if key not in self._known:
            self._known[key] = _FIRST_ID + next(self._ids)
        return Tensorpoint(
            self._known[key],
            "data",
            condition,
            choice.name,
            data=choice.data,
            hits=choice.hits.strip(),
        )

    def unknown(self, id: int) -> str | None:
        """Why there is no such layer; "" if there is, None if nobody knows yet."""
        return self._unknown.get(id)

    def learn(self, found: Sequence[Message]) -> tuple[list[Message], list[str]]:
        """Take what the agent knows of the layers that are named.

        Returns the client's breakpoints for which that is news, and what there is not.
        """
        changed: list[Message] = []
        missing: list[str] = []
        for entry in found:
            id, reason = int(entry["id"]), str(entry["unknown"])
            known = [(item, source) for _, item, source in self.listing() if item.id == id]
            if not known or self._unknown.get(id) == reason:
                continue
            self._unknown[id] = reason
            for item, source in known:
                if source == "function":
                    changed.append(answer(item, reason))
            if reason:
                missing.append(reason)
        return changed, missing

    def add(self, text: str) -> Tensorpoint | Refusal:
        """Set one more, from the console: a condition or `layer:PATH [if CONDITION]`."""
        made = self._parse("console", text)
        if isinstance(made, Tensorpoint) and made not in self._set["console"]:
            self._set["console"].append(made)
        return made

    def from_console(self) -> list[str]:
        """Those that the client doesn't know of, as texts: it can't set them in another process."""
        return [item.text for item in self._set["console"]]

    def remove(self, number: int) -> Tensorpoint | None:
        """Take out the one with this number, wherever it was set."""
        for tensorpoints in self._set.values():
            for tensorpoint in tensorpoints:
                if tensorpoint.id == number + _FIRST_ID:
                    tensorpoints.remove(tensorpoint)
                    return tensorpoint
        return None

    def clear(self) -> None:
        """Take out all."""
        for tensorpoints in self._set.values():
            tensorpoints.clear()

    # Making ------------------------------------------------------------------------------------

    def _filter(self, name: str, condition: str) -> Tensorpoint | Refusal:
        if name in self._launch_filters and not condition:
            return self._launch_filters[name]
        chosen = FILTERS.get(name, FILTERS[CONDITION_FILTER])
        if not (condition or chosen.bare):
            return Refusal("", chosen.needs)
        if chosen.metric is None:
            return self._parse("filter", condition)
        return self._condition("filter", condition or chosen.bare, shorthand=chosen.metric)

    def _function(self, name: str, condition: str, hits: str) -> Tensorpoint | Refusal:
        if name.startswith(LAYER_PREFIX):
            return self._layer("function", name, condition, hits)
        if hits.strip():
            return Refusal(hits, "a condition has no hit count; it can ask for steps: step > 100")
        parts = (name.removeprefix(CONDITION_PREFIX).strip(), condition.strip())
        both = [part for part in parts if part]
        text = f"({both[0]}) and ({both[1]})" if len(both) > 1 else "".join(both)
        return self._condition("function", text)

    def _parse(self, source: Source, text: str) -> Tensorpoint | Refusal:
        text = text.strip()
        path, _, condition = text.partition(" if ")
        if text.startswith(LAYER_PREFIX):
            return self._layer(source, path, condition)
        if text.startswith(DATA_PREFIX):
            name = path.removeprefix(DATA_PREFIX).strip()
            return self._data(source, DataChoice("", name, condition.strip()))
        return self._condition(source, text)

    def _condition(
        self, source: Source, text: str, shorthand: str | None = None
    ) -> Tensorpoint | Refusal:
        try:
            condition = check(text, shorthand=shorthand)
        except ConditionError as error:
            return Refusal(text, f"{error.message}\n{error.caret()}")
        return self._make(source, "condition", "", condition.text)

    def _layer(
        self, source: Source, name: str, condition: str, hits: str = ""
    ) -> Tensorpoint | Refusal:
        try:
            layer, condition = check_layer(name.removeprefix(LAYER_PREFIX), condition)
            parse_hits(hits)
        except ConditionError as error:
            place = f"\n{error.caret()}" if error.text.strip() else ""
            return Refusal(error.text, f"{error.message}{place}")
        return self._make(source, "layer", layer.module, condition, layer.phase, hits.strip())

    def _make(
        self,
        source: Source,
        kind: Literal["condition", "layer"],
        module: str,
        condition: str,
        phase: LayerPhase = "forward",
        hits: str = "",
    ) -> Tensorpoint:
        # The same text keeps its id when a client sends its whole list again, so that the agent
        # keeps its memory of where the condition is already true.
        key = (source, module, condition, phase, hits)
        if key not in self._known:
            self._known[key] = _FIRST_ID + next(self._ids)
        return Tensorpoint(self._known[key], kind, condition, module, phase=phase, hits=hits)


def is_our_filter(name: str) -> bool:
    """Whether an exception filter's id is one of ours."""
    return name in FILTERS or name.startswith(f"{CONDITION_FILTER}.")


def answer(made: Tensorpoint | Refusal, unknown: str | None = "") -> Message:
    """A DAP Breakpoint for a tensorpoint.

    A layer may be `unknown`, with the reason, or None where nothing is known yet: no model has
    been called.
    """
    if isinstance(made, Refusal):
        return {"verified": False, "message": made.reason, "reason": "failed"}
    if made.kind == "condition" or unknown == "":
        return {"id": made.id, "verified": True}
    return {"id": made.id, "verified": False, "reason": "pending", "message": unknown or NOT_CALLED}


NOT_CALLED = "it is set once a model has been called that has such a layer"

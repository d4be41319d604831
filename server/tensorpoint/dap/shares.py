"""Lists of breakpoints that are some ours and some debugpy's: its share, and the joined answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from ..wire import Tensorpoint
from ..wire.codec import convert
from .breakpoints import (
    CONDITION_PREFIX,
    LAYER_PREFIX,
    NOT_CALLED,
    Refusal,
    answer,
    is_our_filter,
)
from .peer import Message

T = TypeVar("T")


@dataclass(frozen=True)
class Split:
    """A list of breakpoints in the client's order, some ours and some debugpy's."""

    ours: list[Message | None]

    def refresh(self, unknown: Callable[[int], str | None]) -> None:
        """Take what has become known of layers since."""
        for position, mine in enumerate(self.ours):
            if mine is not None and mine.get("reason") == "pending":
                reason = unknown(int(mine["id"]))
                self.ours[position] = (
                    {"id": mine["id"], "verified": True}
                    if reason == ""
                    else {**mine, "message": reason or NOT_CALLED}
                )

    def merge(self, theirs: Sequence[Message]) -> list[Message]:
        """The answers of both in the client's order; debugpy leaves some requests unanswered."""
        rest = iter(theirs)
        return [mine if mine is not None else next(rest, {"verified": True}) for mine in self.ours]


def split_filters(
    arguments: Message, set_ours: Callable[[Sequence[tuple[str, str]]], list[Tensorpoint | Refusal]]
) -> tuple[Message, Split, list[Refusal]]:
    """Take our share out of `setExceptionBreakpoints` arguments.

    pydevd ignores `filterOptions`: its share is passed on as plain `filters`, or uncaught
    exceptions would no longer stop as soon as one filter has a condition. Returns debugpy's
    arguments, the split for its answer, and the refusals.
    """
    items = [(name, "") for name in _list_of(arguments, "filters", str)]
    items += [
        (str(option.get("filterId")), str(option.get("condition") or ""))
        for option in _list_of(arguments, "filterOptions", dict[str, Any])
    ]
    made = iter(set_ours([item for item in items if is_our_filter(item[0])]))
    answers = [next(made) if is_our_filter(name) else None for name, _ in items]
    theirs = {key: value for key, value in arguments.items() if key != "filterOptions"}
    theirs["filters"] = [name for name, _ in items if not is_our_filter(name)]
    return theirs, *_split(answers)


def split_functions(
    arguments: Message,
    set_ours: Callable[[Sequence[tuple[str, str, str]]], list[Tensorpoint | Refusal]],
    unknown: Callable[[int], str | None] = lambda _: None,
) -> tuple[Message, Split, list[Refusal]]:
    """Take ours out of `setFunctionBreakpoints` arguments; as `split_filters`."""
    items: list[Message] = _list_of(arguments, "breakpoints", dict[str, Any])
    if not all(isinstance(item.get("name"), str) for item in items):
        raise ValueError("breakpoints: each needs a name")  # pydevd would die of it
    ours = [item["name"].startswith((LAYER_PREFIX, CONDITION_PREFIX)) for item in items]
    made = iter(
        set_ours(
            [
                (
                    item["name"],
                    str(item.get("condition") or ""),
                    str(item.get("hitCondition") or ""),
                )
                for item, mine in zip(items, ours, strict=True)
                if mine
            ]
        )
    )
    answers = [next(made) if mine else None for mine in ours]
    theirs = {
        **arguments,
        "breakpoints": [item for item, mine in zip(items, ours, strict=True) if not mine],
    }
    return theirs, *_split(answers, unknown)


def _list_of(arguments: Message, key: str, kind: type[T]) -> list[T]:
    """A list in a request's arguments; raises ValueError if the client sent something else."""
    try:
        return convert(arguments.get(key) or [], list[kind])
    except msgspec.ValidationError as error:
        raise ValueError(f"{key}: {error}") from None


def _split(
    answers: list[Tensorpoint | Refusal | None], unknown: Callable[[int], str | None] = lambda _: ""
) -> tuple[Split, list[Refusal]]:
    split = Split(
        [
            None
            if made is None
            else answer(made, unknown(made.id) if isinstance(made, Tensorpoint) else "")
            for made in answers
        ]
    )
    return split, [made for made in answers if isinstance(made, Refusal)]

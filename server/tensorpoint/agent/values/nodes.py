"""A row of the variables view that is no object of the program, and what is below a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard


@dataclass(frozen=True)
class Page:
    """Which of the children a client asks for: DAP's `filter`, `start` and `count`."""

    filter: str | None = None
    start: int = 0
    count: int = 0


ALL = Page()


@dataclass(frozen=True)
class Child:
    """A named value below another one.

    `path` continues the expression of that one (".grad"), None where no expression leads there.
    """

    name: str
    value: Any
    path: str | None = None


@dataclass(eq=False)
class Node:
    """A row of our own: a text, and children that are made when somebody opens it.

    `lazy` asks the client to show a button in place of the value: there is exactly one child then,
    whose value is shown once it is pressed. `indexed` is how many children have a number, of which
    clients that know pages ask for some; all others get ranges.
    """

    text: str
    kind: str = ""
    children: Callable[[Page], Sequence[Child]] | None = None
    lazy: bool = False
    named: int = 0
    indexed: int = 0
    #: The number of the first of those.
    first: int = 0
    #: Sets the child of this name to a value, where an expression leads to this row; says what
    #: follows from that, or raises ValueError.
    assign: Callable[[str, Any, str], str] | None = None
    #: Whether the row itself can be set, by its parent.
    can_be_set: bool = False
    #: Other fields of a DAP variable.
    more: dict[str, Any] = field(default_factory=dict[str, Any])


def is_node(value: object) -> TypeGuard[Node]:
    """By its real type: `isinstance` would ask a value of the program's for its `__class__`."""
    return issubclass(type(value), Node)


def leaf(text: object) -> Node:
    """A row without children."""
    return Node(str(text))


def on_request(make: Callable[[], Node], kind: str = "") -> Node:
    """A row whose value costs something: made when the client asks for it."""
    return Node("", kind, lambda _: [Child("", make())], lazy=True)

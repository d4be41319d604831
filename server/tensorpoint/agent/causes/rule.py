"""What a rule of the table is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ops.cause import Cause
from ..ops.operation import Operation
from .element import Element

#: Says why, if the rule fits what it sees; None if it doesn't.
Judge = Callable[[Operation, Element], Cause | None]


@dataclass(frozen=True)
class Rule:
    """What can go wrong in some operations, and how one knows that it did."""

    #: A few words, unique in the table.
    name: str
    #: Names of operations as `names.bare` gives them ("log", "div", "_softmax": in-place and
    #: `_foreach_` forms are the same), names of backward nodes without number ("SqrtBackward"),
    #: or "*" for every operation.
    ops: frozenset[str]
    judge: Judge
    #: Where it is known from: an issue such as "pytorch#2421", or a URL.
    source: str
    #: The operation raised an exception instead of making an output: there is no bad element.
    raises: bool = False


#: Of a rule that torch's documentation or the arithmetic of floating point says all about.
DOCS = "https://docs.pytorch.org/docs/stable/generated/torch."
IEEE = "IEEE 754"

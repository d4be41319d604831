"""A bad result, and the way back from it to the operation that made it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...wire import Operand
from .cause import Cause
from .operation import Line, Operation

if TYPE_CHECKING:
    from torch.nn import Module

#: Operations that write a constant: an infinity that they make is meant.
CONSTANTS = frozenset(
    {
        *("constant_pad_nd", "copy_", "fill", "fill_", "full", "full_like", "index_fill"),
        *("index_fill_", "index_put", "index_put_", "lift_fresh", "lift_fresh_copy"),
        *("masked_fill", "masked_fill_", "masked_scatter", "new_full", "scalar_tensor", "scatter"),
        *("scatter_", "where"),
    }
)
#: Operations of which an infinity is left where all that they were given was masked.
_REDUCTIONS = frozenset({"amax", "amin", "logsumexp", "max", "mean", "min", "prod", "sum"})
#: Of two infinities they make a NaN themselves, as in a softmax by hand: there it is explained.
_DIFFERENCES = frozenset({"add", "add_", "rsub", "sub", "sub_"})


@dataclass(eq=False)
class Made:
    """A bad result of an operation, as light as possible: after the first, everything is bad."""

    name: str
    full_name: str
    #: How many bad results this operation had had before: with the name the address of this one.
    number: int
    has_nan: bool
    elements: int
    #: Whether it shares its memory with the bad argument.
    is_view: bool
    sources: dict[str, Made]
    lines: tuple[Line, ...]
    #: Whether the lines are those of Python that called it, rather than of its forward.
    has_own_line: bool
    #: The module in whose forward it ran.
    module: Module | None = None
    #: Whether that was called by `.forward()`, which runs no hooks.
    is_unhooked: bool = False
    #: Whether autograd ran it.
    in_backward: bool = False
    #: Whether an element is bad although the operands there are not, whatever they are elsewhere.
    is_fresh: bool = False
    #: The whole operation, for one that made the value rather than passing it on, and what was said
    #: of it when it ran: later operations may overwrite its operands.
    operation: Operation | None = None
    cause: Cause | None = None
    operands: tuple[Operand, ...] = ()
    #: Non-finite arguments that no operation seen here has made, and whether they have a NaN.
    outside: dict[str, bool] = field(default_factory=dict[str, bool])

    @property
    def is_from_outside(self) -> bool:
        """Whether it only passes on what was there before."""
        passed_on = self.in_backward or (self.has_nan and any(self.outside.values()))
        return bool(self.outside) and not self.sources and passed_on

    @property
    def is_meant(self) -> bool:
        """Whether it is an infinity that was written on purpose, or comes of such alone."""
        if self.has_nan or self.is_fresh:
            return False
        if self.sources:
            return all(source.is_meant for source in self.sources.values())
        return self.name in CONSTANTS or bool(self.outside)

    @property
    def is_reduced(self) -> bool:
        """Whether fewer numbers came out than were bad already, as of a row that is masked."""
        return not self.is_view and any(
            self.elements < source.elements for source in self.sources.values()
        )

    @property
    def is_of_nothing(self) -> bool:
        """Whether it is what a reduction has left of nothing but masked values."""
        return self.name in _REDUCTIONS and self.is_reduced and self.is_meant

    def likely_way(self) -> list[Made]:
        """The operations from the producer, which made the value, to this one, which has it."""
        return self._meant_way() if self.is_meant else self._way()

    def _meant_way(self) -> list[Made]:
        """The same for an infinity that was written on purpose: who made it the result.

        A reduction over nothing but masked values is the producer, as `logsumexp` of a row of -inf.
        """
        way: list[Made] = [self]
        while way[-1].sources:
            way.append(next(iter(way[-1].sources.values())))
        way.reverse()
        for place, made in enumerate(way[1:], 1):
            if made.elements < way[place - 1].elements and not made.is_view:
                return way[place:]
        return way[-1:]

    def _way(self) -> list[Made]:
        way: list[Made] = [self]
        here: Made = self
        while True:
            source = here._source()
            if source is None:
                return way[::-1]
            way.append(source)
            here = source

    def followed(self) -> list[Made]:
        """The sources in the same pass."""
        return [
            source for source in self.sources.values() if source.in_backward or not self.in_backward
        ]

    def _source(self) -> Made | None:
        """The argument that the value came with, rather than another that is bad as well.

        A NaN comes from a NaN, else it was made of an infinity that was not meant, else of one that
        was left of nothing. What a forward made and masked is no fault until a backward makes a NaN
        of it: that is the producer then.
        """
        sources = self.followed()
        if self.has_nan:
            for source in sources:
                if source.has_nan:
                    return source
        for source in sources:
            if not source.is_meant:
                return source
        if self.is_of_nothing or (self.has_nan and self.name in _DIFFERENCES):
            return None
        return next((source for source in sources if source._comes_of_nothing()), None)

    def _comes_of_nothing(self) -> bool:
        seen, waiting = set[Made](), [self]
        while waiting:
            made = waiting.pop()
            if made.is_of_nothing:
                return True
            if made not in seen:
                seen.add(made)
                waiting += made.followed()
        return False

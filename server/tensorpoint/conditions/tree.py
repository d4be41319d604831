"""What a parsed condition is: a small immutable tree, and the condition that holds it.

Only the meaning of text lives here; reading it is `parse`, giving it a value is `evaluate`. The
canonical text is the condition's identity: it names every default, and reads back to the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from .metrics import METRICS, Metric


@dataclass(frozen=True)
class MetricUse:
    """A metric as one condition asks for it; `glob` None is the whole model.

    `options` are (name, value) pairs; for `score` the pair ("function", "module:function").
    `last` asks for the newest known value, of whatever step.
    """

    metric: str
    glob: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    last: bool = False

    @property
    def text(self) -> str:
        """The use as the language writes it, defaults included."""
        form = METRICS[self.metric].form
        arguments = [] if self.glob is None else [quoted(self.glob)]
        arguments += [
            quoted(v) if form == "function" else f"{n}={quoted(v)}" for n, v in self.options
        ]
        call = self.metric if form == "name" else f"{self.metric}({', '.join(arguments)})"
        return f"last({call})" if self.last else call


#: What a condition reads: a metric in use, or one of the plain names by its name.
Input = MetricUse | str


def metric_of(source: Input) -> Metric:
    """The metric behind something that a condition reads."""
    return METRICS[source if isinstance(source, str) else source.metric]


def quoted(text: str) -> str:
    """A string literal of the language, which has no escapes."""
    return f"'{text}'" if '"' in text else f'"{text}"'


@dataclass(frozen=True)
class Number:
    """A number literal."""

    value: float | int


@dataclass(frozen=True)
class Truth:
    """`True` or `False`."""

    value: bool


@dataclass(frozen=True)
class Read:
    """The value of a metric or name."""

    source: Input


@dataclass(frozen=True)
class Negate:
    """Unary minus."""

    item: Node


@dataclass(frozen=True)
class Arithmetic:
    """A sum, difference, product or quotient of numbers."""

    op: Literal["+", "-", "*", "/"]
    left: Node
    right: Node


Comparison = Literal["==", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True)
class Compare:
    """A chain of comparisons of numbers: `a < b < c` has three operands and two ops."""

    operands: tuple[Node, ...]
    ops: tuple[Comparison, ...]


@dataclass(frozen=True)
class Not:
    """Negation."""

    item: Node


@dataclass(frozen=True)
class And:
    """Conjunction of two or more; never directly holds another And."""

    items: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    """Disjunction of two or more; never directly holds another Or."""

    items: tuple[Node, ...]


Node = Number | Truth | Read | Negate | Arithmetic | Compare | Not | And | Or


def kind_of(node: Node) -> Literal["bool", "number"]:
    """Whether the expression is a truth value or a number."""
    if isinstance(node, Read):
        return metric_of(node.source).kind
    return "number" if isinstance(node, (Number, Negate, Arithmetic)) else "bool"


def children_of(node: Node) -> tuple[Node, ...]:
    """The expressions directly below this one, from left to right."""
    if isinstance(node, (And, Or)):
        return node.items
    if isinstance(node, (Not, Negate)):
        return (node.item,)
    if isinstance(node, Arithmetic):
        return (node.left, node.right)
    return node.operands if isinstance(node, Compare) else ()


def inputs_of(node: Node) -> tuple[Input, ...]:
    """What the expression reads, each once, in the order of the text."""
    return tuple(dict.fromkeys(_reads(node)))


def _reads(node: Node) -> Iterator[Input]:
    if isinstance(node, Read):
        yield node.source
    for child in children_of(node):
        yield from _reads(child)


@dataclass(frozen=True)
class Condition:
    """A condition, ready to be evaluated. Two with the same canonical `text` are equal.

    `inputs` are all values it reads, in the order of the text; `uses` those that are metrics and
    `names` the plain names among them. `glob` is the one glob that binds its modules, or None.

    `needs_false`: it could be true while `nonfinite` is false, so every observation of a matching
    module has to be looked at, not only those that found something.
    """

    text: str
    tree: Node = field(compare=False, repr=False)
    inputs: tuple[Input, ...] = field(compare=False, repr=False)
    uses: tuple[MetricUse, ...] = field(compare=False)
    names: frozenset[str] = field(compare=False)
    glob: str | None = field(compare=False)
    needs_false: bool = field(compare=False)

    @classmethod
    def of(cls, tree: Node) -> Condition:
        """The condition that a well-typed tree says."""
        inputs = inputs_of(tree)
        uses = tuple(source for source in inputs if not isinstance(source, str))
        return cls(
            text=text_of(tree),
            tree=tree,
            inputs=inputs,
            uses=uses,
            names=frozenset(source for source in inputs if isinstance(source, str)),
            glob=next((use.glob for use in uses if use.glob is not None), None),
            needs_false=True in _outcomes_without_nonfinite(tree),
        )

    def __hash__(self) -> int:
        return hash(self.text)  # a str remembers its hash, and this is asked in hooks

    def matches(self, module: str) -> bool:
        """Whether the module at this dotted path ("" is the root) is one that it binds."""
        return self.glob is None or fnmatchcase(module, self.glob)


def _outcomes_without_nonfinite(node: Node) -> frozenset[bool]:
    """The truth values that the expression may take while each `nonfinite` is false.

    Comparisons count as free, and so does `last(nonfinite())`, which is about another time.
    """
    if isinstance(node, Truth):
        return frozenset({node.value})
    if isinstance(node, Not):
        return frozenset(not value for value in _outcomes_without_nonfinite(node.item))
    if isinstance(node, (And, Or)):
        ending = isinstance(node, Or)  # the value that one item alone can bring about
        outcomes = [_outcomes_without_nonfinite(item) for item in node.items]
        found = {ending} if any(ending in each for each in outcomes) else set[bool]()
        return frozenset(
            found | ({not ending} if all((not ending) in o for o in outcomes) else set())
        )
    if isinstance(node, Read) and not (isinstance(node.source, MetricUse) and node.source.last):
        return frozenset({False})
    return frozenset({True, False})


# Binding strength, loosest first, as Python's.
_OR, _AND, _NOT, _COMPARE, _SUM, _PRODUCT, _UNARY, _ATOM = range(8)


def text_of(node: Node) -> str:
    """The canonical text."""
    return _written(node)[0]


def _written(node: Node) -> tuple[str, int]:
    """The text of an expression and how strongly it binds."""
    if isinstance(node, Number):
        return _number_written(node.value), _ATOM
    if isinstance(node, Truth):
        return repr(node.value), _ATOM
    if isinstance(node, Read):
        return (node.source if isinstance(node.source, str) else node.source.text), _ATOM
    if isinstance(node, Negate):
        return "-" + _inside(node.item, _UNARY), _UNARY
    if isinstance(node, Arithmetic):
        level = _SUM if node.op in "+-" else _PRODUCT
        return f"{_inside(node.left, level)} {node.op} {_inside(node.right, level + 1)}", level
    if isinstance(node, Compare):
        words = [_inside(node.operands[0], _SUM)]
        for op, operand in zip(node.ops, node.operands[1:], strict=True):
            words += [op, _inside(operand, _SUM)]
        return " ".join(words), _COMPARE
    if isinstance(node, Not):
        # `not a > b` would do, but is often misread.
        return "not " + _inside(node.item, _UNARY), _NOT
    level, word = (_AND, " and ") if isinstance(node, And) else (_OR, " or ")
    return word.join(_inside(item, level + 1) for item in node.items), level


def _number_written(value: float | int) -> str:
    if isinstance(value, int):
        return repr(value)
    if value == float("inf"):
        return "1e999"  # no literal says inf: what it came from was too large for a float
    short = re.sub(r"e([+]|(-))0*", r"e\2", f"{value:g}")
    return short if float(short) == value else repr(value)


def _inside(node: Node, level: int) -> str:
    """The text of an operand where everything looser than `level` needs parentheses."""
    text, own = _written(node)
    return text if own >= level else f"({text})"

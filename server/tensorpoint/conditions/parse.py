"""From text to a condition, and messages that point at the character.

Three passes. `tokens` refuses whatever the language has no use for. Python's own parser then gives
the structure, so that chains and precedence are Python's. `_Reader` turns its syntax tree into ours
and checks names, arguments and types.

Length, tokens and depth are limited: no text exhausts the stack of the thread that it arrives on.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from .errors import ConditionError
from .metrics import METRICS, Metric
from .tokens import MAX_DEPTH, bare_glob, check_order, scan
from .tree import (
    And,
    Arithmetic,
    Compare,
    Comparison,
    Condition,
    Input,
    MetricUse,
    Negate,
    Node,
    Not,
    Number,
    Or,
    Read,
    Truth,
    children_of,
    kind_of,
    metric_of,
    quoted,
    text_of,
)

MAX_LENGTH = 10_000


@dataclass(frozen=True)
class Parsed:
    """A condition and where in the text each of its inputs stands first."""

    condition: Condition
    offsets: Mapping[Input, int]


def parse(text: str, *, shorthand: str | None = None, need_metric: bool = True) -> Condition:
    """The condition that `text` says; raises ConditionError.

    `shorthand` is the metric that may be left out, as in a filter's condition box. `need_metric`
    False also takes conditions that measure nothing, such as `step > 100`.
    """
    return parse_with_offsets(text, shorthand=shorthand, need_metric=need_metric).condition


def parse_with_offsets(
    text: str, *, shorthand: str | None = None, need_metric: bool = True
) -> Parsed:
    """As `parse`, for those who have to point at a part of the condition."""
    omitted = None if shorthand is None else METRICS[shorthand]
    if len(text) > MAX_LENGTH:
        message = f"a condition has at most {MAX_LENGTH:,} characters, this one has {len(text):,}"
        raise ConditionError(message, text, MAX_LENGTH)
    lead = len(text) - len(text.lstrip())
    reader = _Reader(text, omitted)
    if omitted and (bare := bare_glob(text.strip())) is not None:
        tree: Node = reader.use(omitted, bare, lead)
    else:
        tree = _tree(text, lead, reader)
    reader.refuse_number(tree, lead)
    if all(metric_of(source).counter for source in reader.offsets):
        if omitted and omitted.kind == "bool":
            tree = And((reader.use(omitted, omitted.default_glob, lead), *_items(tree, And)))
        elif need_metric:
            reader.fail(_nothing_measured(tree), lead)
    return Parsed(Condition.of(tree), reader.offsets)


def _nothing_measured(tree: Node) -> str:
    example = And((Read(MetricUse("nonfinite", "*")), *_items(tree, And)))
    return f"this condition measures nothing: add a metric, for example {text_of(example)}"


def _tree(text: str, lead: int, reader: _Reader) -> Node:
    tokens = scan(text)
    source, base = re.sub(r"\s", " ", text).strip(), lead
    omitted = reader.omitted
    if omitted and (not tokens or tokens[0].text in _COMPARISONS):
        source, base = f"{omitted.name}() {source}", lead - len(omitted.name) - 3
    if not source:
        raise ConditionError("the condition is empty", text)
    check_order(text, tokens, begun=base < lead)
    try:
        body = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError) as error:
        offset = base + (getattr(error, "offset", None) or 1) - 1
        message = f"this is not a condition: {getattr(error, 'msg', None) or error}"
        raise ConditionError(message, text, offset) from None
    except (RecursionError, MemoryError):
        raise ConditionError("this condition is nested too deeply", text, lead) from None
    reader.place(source, base)
    return reader.read(body)


_MEANT = {
    "true": "True",
    "false": "False",
    **dict.fromkeys(("isnan", "isinf", "isfinite", "nan", "inf"), "nonfinite()"),
}

_COMPARISONS: dict[str, Comparison] = {
    "==": "==",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_AST_COMPARISONS: dict[type[ast.cmpop], Comparison] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


_AST_ARITHMETIC: dict[type[ast.operator], Literal["+", "-", "*", "/"]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
}
_Place = int | ast.expr | ast.keyword


class _Reader:
    """Turns Python's syntax tree into ours; fails at the offset of what it does not take."""

    def __init__(self, text: str, omitted: Metric | None) -> None:
        self.omitted = omitted
        self.offsets: dict[Input, int] = {}
        self._text = text
        self._source = b""
        self._base = 0
        self._glob: str | None = None
        self._depth = 0

    def place(self, source: str, base: int) -> None:
        """Says what text Python parsed, and where it begins in the user's."""
        self._source = source.encode()
        self._base = base

    def fail(self, message: str, at: _Place) -> NoReturn:
        """Refuses the condition, pointing at a node or an offset."""
        raise ConditionError(message, self._text, self._at(at))

    def _at(self, node: _Place) -> int:
        if isinstance(node, int):
            return node
        # ast counts bytes of UTF-8.
        return self._base + len(self._source[: node.col_offset].decode(errors="ignore"))

    def read(self, node: ast.expr) -> Node:
        """The expression, of whichever kind."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self.fail(f"more than {MAX_DEPTH} operations are nested or chained here", node)
        result = self._read(node)
        self._depth -= 1
        return result

    def _read(self, node: ast.expr) -> Node:
        if isinstance(node, ast.BoolOp):
            kind = And if isinstance(node.op, ast.And) else Or
            items = [item for value in node.values for item in _items(self._truth(value), kind)]
            return kind(tuple(items))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return Not(self._truth(node.operand))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return Negate(self._number(node.operand))
        if isinstance(node, ast.BinOp) and (op := _AST_ARITHMETIC.get(type(node.op))):
            return Arithmetic(op, self._number(node.left), self._number(node.right))
        if isinstance(node, ast.Compare):
            operands = tuple(self._number(each) for each in (node.left, *node.comparators))
            return Compare(operands, tuple(_AST_COMPARISONS[type(op)] for op in node.ops))
        if isinstance(node, ast.Constant):
            return self._constant(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        self.fail("this is not part of the condition language", node)

    def _truth(self, node: ast.expr) -> Node:
        result = self.read(node)
        self.refuse_number(result, node)
        return result

    def refuse_number(self, result: Node, at: _Place) -> None:
        """A number where a truth value belongs."""
        if kind_of(result) == "bool":
            return
        text = text_of(result)
        if isinstance(result, Read):
            example = f"{text} > {_example(metric_of(result.source))}"
            self.fail(f"{text} is a number, compare it: {example}", at)
        self.fail(f"{text} is a number where a condition is needed", at)

    def _number(self, node: ast.expr) -> Node:
        result = self.read(node)
        if kind_of(result) == "number":
            return result
        text = text_of(result)
        if isinstance(result, Read):
            hint = f"write {text} or not {text}"
            self.fail(f"{text} is true or false and is not compared: {hint}", node)
        self.fail(f"{text} is true or false where a number is needed", node)

    def _constant(self, node: ast.Constant) -> Node:
        value = node.value
        if isinstance(value, bool):
            return Truth(value)
        if isinstance(value, (int, float)):
            return Number(value)
        assert isinstance(value, str)  # `_scan` lets no other literal through
        if self.omitted is None:
            example = MetricUse("nonfinite", value).text
            self.fail(f"a module glob needs a metric, for example {example}", node)
        return self.use(self.omitted, value, self._at(node))

    def _name(self, node: ast.Name) -> Node:
        metric = self._metric(node.id, node)
        if metric is None:
            self.fail("last is called with a metric: last(grad_norm())", node)
        if metric.form != "name":
            self.fail(f"{metric.name} needs parentheses: {_call_of(metric)}", node)
        self.offsets.setdefault(metric.name, self._at(node))
        return Read(metric.name)

    def _metric(self, name: str, node: ast.expr) -> Metric | None:
        """The metric of that name, None for `last`."""
        if name in METRICS:
            return METRICS[name]
        return None if name == "last" else self.fail(_unknown(name), node)

    def _call(self, node: ast.Call) -> Node:
        if not isinstance(node.func, ast.Name):
            self.fail("only a metric can be called", node)
        metric = self._metric(node.func.id, node.func)
        if metric is None:
            return self._last(node)
        if metric.form == "name":
            self.fail(f"{metric.name} is not called: write {metric.name}", node)
        if metric.form == "function":
            return self._read_use(MetricUse(metric.name, None, self._function(metric, node)), node)
        glob, options = self._arguments(metric, node)
        return self.use(metric, glob, self._at(node), options)

    def _arguments(
        self, metric: Metric, node: ast.Call
    ) -> tuple[str | None, tuple[tuple[str, str], ...]]:
        glob = metric.default_glob
        options: dict[str, str] = {}
        takes_glob = metric.form in ("modules", "global")
        for place, argument in enumerate(node.args):
            if not takes_glob:
                self.fail(f"{metric.name} takes no module glob: write {metric.name}()", argument)
            if place == 1:
                named = [f'; {o.name} goes by name: {o.name}="forward"' for o in metric.options]
                self.fail(f"{metric.name} takes one module glob{''.join(named)}", argument)
            glob = self._string(argument, f"a module glob is a string: {metric.name}({_GLOB})")
        known = {option.name: option for option in metric.options}
        for pair in node.keywords:
            if pair.arg == "glob" and takes_glob and not node.args:
                glob = self._string(pair.value, f"a module glob is a string: glob={_GLOB}")
            elif (option := known.get(pair.arg or "")) is None:
                takes = f"; it takes {' and '.join(known)}" if known else ""
                near = _did_you_mean(pair.arg or "", known)
                message = f"{metric.name} has no option {pair.arg}{near or takes}"
                self.fail(message, pair)
            else:
                choices = ", ".join(quoted(choice) for choice in option.choices)
                value = self._string(pair.value, f"{option.name} is one of {choices}")
                if value not in option.choices:
                    near = _did_you_mean(value, option.choices)
                    message = f"{option.name} is one of {choices}, not {quoted(value)}{near}"
                    self.fail(message, pair.value)
                if option.name in options:
                    self.fail(f"{option.name} is given twice", pair)
                options[option.name] = value
        return glob, tuple(sorted(options.items()))

    def _string(self, node: ast.expr, message: str) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        self.fail(message, node)

    def _function(self, metric: Metric, node: ast.Call) -> tuple[tuple[str, str], ...]:
        message = f'{metric.name} takes "module:function": {_call_of(metric)}'
        if len(node.args) != 1 or node.keywords:
            self.fail(message, node)
        value = self._string(node.args[0], message)
        module, colon, function = value.partition(":")
        parts = [*module.split("."), *function.split(".")]
        if not colon or not all(part.isidentifier() for part in parts):
            self.fail(message, node.args[0])
        return (("function", value),)

    def _last(self, node: ast.Call) -> Node:
        if len(node.args) != 1 or node.keywords:
            self.fail("last takes one metric: last(grad_norm())", node)
        item = node.args[0]
        before = dict(self.offsets)
        inner = self.read(item)
        if not isinstance(inner, Read):
            self.fail("last takes one metric, not an expression: last(grad_norm())", item)
        source = inner.source
        if metric_of(source).counter:
            self.fail(f"{source} is always known and needs no last(...)", item)
        use = MetricUse(source) if isinstance(source, str) else source
        if use.last:
            self.fail("last(...) inside last(...) says nothing more", item)
        self.offsets = before  # what stands inside is not read by itself
        return self._read_use(
            MetricUse(use.metric, use.glob, use.options, last=True), self._at(node)
        )

    def use(
        self,
        metric: Metric,
        glob: str | None,
        offset: int,
        options: tuple[tuple[str, str], ...] = (),
    ) -> Node:
        """A metric in use; all globs of the condition have to be the same."""
        if glob is not None:
            if self._glob is not None and self._glob != glob:
                message = (
                    "all globs of one condition bind the same module: "
                    f"{quoted(glob)} here, {quoted(self._glob)} before"
                )
                self.fail(message, offset)
            self._glob = glob
        return self._read_use(MetricUse(metric.name, glob, options), offset)

    def _read_use(self, use: MetricUse, at: _Place) -> Node:
        self.offsets.setdefault(use, self._at(at))
        return Read(use)


_GLOB = '"model.layers.*"'


def _items(node: Node, kind: type[And] | type[Or]) -> tuple[Node, ...]:
    """The items of a conjunction or disjunction of that kind, else the node itself."""
    return children_of(node) if isinstance(node, kind) else (node,)


def _example(metric: Metric) -> str:
    return "0.5" if metric.high == 1 else "10"


def _call_of(metric: Metric) -> str:
    """How the metric is written in a condition."""
    argument = '"my_module:my_function"' if metric.form == "function" else ""
    call = f"{metric.name}({argument})"
    return call if metric.kind == "bool" else f"{call} > {_example(metric)}"


def _unknown(name: str) -> str:
    if meant := _MEANT.get(name.lower()):
        return f'unknown name "{name}": did you mean {meant}?'
    near = _did_you_mean(name, METRICS)
    return f'unknown metric "{name}"' + (near or f"; the metrics are {', '.join(METRICS)}")


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    import difflib  # only for refused text; the program that is being watched need not load it

    near = difflib.get_close_matches(word.lower(), list(known), 1)
    return f": did you mean {near[0]}?" if near else ""

"""From text to a condition, and messages that point at the character.

Three passes. `_scan` cuts the text into tokens and refuses whatever the language has no use for
(with a hint where one knows what was meant), and `_check_order` that values and operators take
turns: the messages and offsets of Python's SyntaxError vary between versions, ours must not.
Python's own parser then gives the structure, so that chains and precedence are Python's. `_Reader`
turns its syntax tree into ours and checks names, arguments and types.

Length, tokens and depth are limited: no text exhausts the stack of the thread that it arrives on.
"""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from .metrics import METRICS, Metric
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
MAX_TOKENS = 1_000
MAX_DEPTH = 50


class ConditionError(ValueError):
    """A text that is not a condition, or one that is refused; `str()` is the message.

    `offset` is the 0-based place in `text`, the text as it was given, always inside of it.
    """

    def __init__(self, message: str, text: str = "", offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.text = text
        self.offset = max(0, min(offset, len(text) - 1))

    def caret(self) -> str:
        """Two lines: the text (or the part of a long one around the place) and a `^` below."""
        start = 0 if len(self.text) <= _LINE else max(0, self.offset - _LINE // 2)
        shown = re.sub(r"[\s\x00-\x1f\x7f]", " ", self.text[start : start + _LINE])
        return f"{shown}\n{' ' * (self.offset - start)}^"


_LINE = 160


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
    if omitted and (bare := _bare_glob(text.strip())) is not None:
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
    tokens = _scan(text)
    source, base = re.sub(r"\s", " ", text).strip(), lead
    omitted = reader.omitted
    if omitted and (not tokens or tokens[0].text in _COMPARISONS):
        source, base = f"{omitted.name}() {source}", lead - len(omitted.name) - 3
    if not source:
        raise ConditionError("the condition is empty", text)
    _check_order(text, tokens, begun=base < lead)
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


# ---------------------------------------------------------------------------------- characters


@dataclass(frozen=True)
class _Token:
    kind: str  # "string", "number", "name", "op"
    text: str
    start: int


_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<string>"[^"]*"|'[^']*')
    | (?P<path>[^\W\d]\w*(?:\.[\w*]+)+)
    | (?P<number>(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d]\w*)
    | (?P<refused>\*\*|//|&&?|\|\|?|===|=[<>]|<>|<<|>>|:=|!(?!=))
    | (?P<op>[=!<>]=|[-+*/<>=(),])
    """,
    re.VERBOSE,
)

_ODD_NUMBER = re.compile("0[0-9_]*[1-9_]|[0-9_.]*(?:__|_[.]|[.]_|_$).*")

_INSTEAD = {
    "&&": 'write "and"',
    "&": 'write "and"',
    "||": 'write "or"',
    "|": 'write "or"',
    "!": 'write "not"',
    "===": 'write "=="',
    "=>": 'write ">="',
    "=<": 'write "<="',
    "<>": 'write "!="',
    "≥": 'write ">="',
    "≤": 'write "<="',
    "≠": 'write "!="',
    "\N{MULTIPLICATION SIGN}": 'write "*"',
    "“": 'use straight quotes: "',
    "”": 'use straight quotes: "',
    "\N{LEFT SINGLE QUOTATION MARK}": "use straight quotes: '",
    "\N{RIGHT SINGLE QUOTATION MARK}": "use straight quotes: '",
    "#": "conditions have no comments",
    "\\": "conditions have no escapes; a module path needs none",
    ":": "layer:PATH is a breakpoint of its own, not part of a condition",
    ".": 'a module path goes into quotes, for example nonfinite("model.layers.*")',
}

_MEANT = {
    "true": "True",
    "false": "False",
    **dict.fromkeys(("isnan", "isinf", "isfinite", "nan", "inf"), "nonfinite()"),
}


def _scan(text: str) -> list[_Token]:
    """The tokens, or a ConditionError at the first character that cannot be part of any."""
    tokens: list[_Token] = []
    at = 0
    opened = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ConditionError(_stray(text, at), text, at)
        kind, word = str(match.lastgroup), match.group()
        if fault := _lexical_fault(kind, word, text[match.end() : match.end() + 1]):
            raise ConditionError(fault, text, at)
        opened += {"(": 1, ")": -1}.get(word, 0)
        if opened > MAX_DEPTH:
            raise ConditionError(f"more than {MAX_DEPTH} parentheses are open here", text, at)
        if len(tokens) == MAX_TOKENS:
            message = f"a condition has at most {MAX_TOKENS:,} words and operators"
            raise ConditionError(message, text, at)
        if kind == "string" and tokens and tokens[-1].kind == "string":
            # Python would join them, to a string that the canonical text cannot quote.
            raise ConditionError("an operator is missing between two strings", text, at)
        if kind != "space":
            tokens.append(_Token(kind, word, at))
        at = match.end()
    return tokens


def _stray(text: str, at: int) -> str:
    character = text[at]
    if character in "\"'":
        return "this string is not closed"
    shown = character if character.isprintable() else f"U+{ord(character):04X}"
    hint = _INSTEAD.get(character)
    return f'"{shown}" is not part of the condition language' + (f": {hint}" if hint else "")


def _lexical_fault(kind: str, word: str, after: str) -> str | None:
    """What is wrong with a token that the pattern found, `after` being the next character."""
    if kind == "refused":
        hint = _INSTEAD.get(word)
        return f'"{word}" is not part of the condition language' + (f": {hint}" if hint else "")
    if kind == "path":
        return f"a module path goes into quotes: {quoted(word)}"
    if kind == "number" and (
        after.isalnum() or after in ("_", ".") or len(word) > 100 or _ODD_NUMBER.fullmatch(word)
    ):
        return "numbers are written like 10, 0.5 or 1e-3"
    if kind == "string" and (fault := _glob_fault(word)):
        return fault
    if kind == "name":
        allowed = ("and", "or", "not", "True", "False")
        if keyword.iskeyword(word) and word not in allowed:
            return f'"{word}" is not part of the condition language'
        if not word.isidentifier():
            return f'"{word}" is not a name'
        if after and after in "\"'" and word not in allowed:
            return f"strings have no prefix: write {after}...{after}"
    return None


def _glob_fault(word: str) -> str | None:
    if "\\" in word:
        return "conditions have no escapes; a module path needs none"
    bad = next((c for c in word if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    return None if bad is None else f"U+{ord(bad):04X} cannot be part of a string"


# ----------------------------------------------------------------------------------- structure


def _check_order(text: str, tokens: list[_Token], *, begun: bool) -> None:
    """Raises ConditionError where a value, an operator or a parenthesis is missing.

    `begun` says that a value stands before the first token, the metric that was left out.
    """

    def refuse(token: _Token, message: str) -> NoReturn:
        raise ConditionError(message, text, token.start)

    have_value = begun
    before = _Token("op", "", 0)
    open_at: list[tuple[_Token, bool]] = []  # each "(" and whether it is a call's
    for token in tokens:
        word = token.text
        is_value = token.kind != "op" and word not in ("and", "or", "not")
        is_call = word == "(" and have_value and before.kind == "name"
        if is_value or word == "not" or (word == "(" and not is_call):
            if have_value:
                _refuse_neighbours(text, before, token)
            if word == "not" and before.text not in ("", "(", ",", "and", "or", "not"):
                refuse(token, 'put parentheses around the part with "not"')
        if is_value:
            have_value = True
        elif word == "(":
            open_at.append((token, is_call))
            have_value = False
        elif word == ")":
            if not open_at:
                refuse(token, 'this ")" closes nothing')
            _, was_call = open_at.pop()
            if not have_value and not (was_call and before.text in ("(", ",")):
                refuse(token, 'a value is missing before ")"')
            have_value = True
        elif word in ("=", ",") and not (have_value and open_at and open_at[-1][1]):
            refuse(token, 'to compare, write "=="' if word == "=" else 'no "," belongs here')
        elif not have_value and word not in ("not", "-"):
            refuse(token, f'a value is missing before "{word}"')
        else:
            have_value = False
        before = token
    if not have_value:
        refuse(before, f'a value is missing after "{before.text}"')
    if open_at:
        refuse(open_at[-1][0], 'this "(" is not closed')


def _refuse_neighbours(text: str, before: _Token, token: _Token) -> NoReturn:
    """Two values without an operator between them."""
    for each in (token, before):
        small = each.text.lower()
        if small in ("and", "or", "not") and small != each.text:
            raise ConditionError(f'write "{small}" in small letters', text, each.start)
    message = f'an operator such as "and" or ">" is missing before {token.text}'
    raise ConditionError(message, text, token.start)


_BARE_GLOB = re.compile(r"(?:[\w.*?-]|\[!?[\w-]+\])+")


def _bare_glob(text: str) -> str | None:
    """The module glob, if the whole text is one without quotes and nothing else."""
    if not _BARE_GLOB.fullmatch(text) or not re.search(r"[\w*?]", text):
        return None
    try:
        float(text)
    except ValueError:
        own = text in METRICS or text == "last" or keyword.iskeyword(text)
        return None if own else text
    return None


# ------------------------------------------------------------------------------------- meaning

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

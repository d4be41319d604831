"""What each program in this folder is expected to do under the debugger, read from its source.

A program says it in comments, so that the expectation moves with the code:

    # expect: stop event=nonfinite.forward module=net.1 type=Log step=3
    #         file=modeling_gpt2.py
    # expect: no-stop

are the first comments of the file (several `expect: stop` are several stops, in this order; what is
indented further continues one), and the line to stop at ends with `# <- stop`. Where the stops of
one program are at different lines, the comments are numbered from 1: `# <- stop 1`, `# <- stop 2`.
A stop in library code has `file=` (the file's name) and may have `code=` (text of the line); then
the program marks the nearest line of its own on the stack with `# <- user line`. The
line of the operation that made the value (`op=` its name) is the line to stop at unless another
one ends with `# <- op`. A program that
needs more than torch says `# needs: ...`. README.md has the meaning of every field.

Programs are run, never imported: this module only reads their text. Standard library only.
"""

from __future__ import annotations

import io
import re
import shlex
import tokenize
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent

_EVENTS = frozenset(
    {"nonfinite.input", "nonfinite.forward", "nonfinite.backward", "nonfinite.update"}
)
_REQUIRED = frozenset({"event", "module"})
_OPTIONAL = frozenset(
    {"type", "step", "file", "code", "argument", "sample", "op", "op_file", "op_code", "recorded"}
)
_EXPECT = re.compile(r"#\s*expect:\s*(.*)$")
_CONTINUED = re.compile(r"#\s{4,}(\S.*)$")
_NEEDS = re.compile(r"#\s*needs:\s*(.*)$")
_MARK = re.compile(r"#.*<- (stop|user line|op)(?: ([1-9]\d*))?$")


class ExpectationError(ValueError):
    """The comments of a program do not say what is expected, or contradict each other."""


@dataclass(frozen=True)
class ExpectedStop:
    """One stop. A field that is None is not promised.

    `module` is the path below the root module, "" for the root. `file` is the name (no folders) of
    the file on top of the stack, `line` its line: None in library code, where `code` is a piece of
    text of that line. `user_line` is the nearest line of the program itself, which is `line` if
    the program's own code is on top. `argument` and `sample` (index in the first dimension)
    locate a non-finite element in the arguments of the root module.

    `op` is the operation that made the value, found by running the forward again: it isn't found
    if that is None. `op_file` and `op_line` (None in library code, where `op_code` is text of the
    line) are where it, or the forward operation whose backward it is, was called. `recorded` is the
    operation that precision "op" finds where `op` is None.
    """

    event: str
    module: str
    type: str | None
    step: int | None
    file: str
    line: int | None
    code: str | None
    user_line: int
    argument: str | None
    sample: int | None
    op: str | None
    op_file: str
    op_line: int | None
    op_code: str | None
    recorded: str | None


@dataclass(frozen=True)
class Expectation:
    """The stops of the program at `path`, in order. None at all: it must run through.

    `needs` names what it takes besides torch: "transformers", "c++" (a compiler).
    """

    path: Path
    stops: tuple[ExpectedStop, ...]
    needs: tuple[str, ...] = ()


def programs(folder: Path = PROGRAMS) -> list[Path]:
    """Every program below `folder`, sorted; those in `shapes` are traced, not run."""
    own = Path(__file__).resolve()
    return sorted(
        path
        for path in folder.rglob("*.py")
        if path.resolve() != own and "shapes" not in path.relative_to(folder).parts
    )


def load(path: str | Path) -> Expectation:
    """Read the expectation of one program; `ExpectationError` names the file and what is wrong."""
    path = Path(path)
    try:
        comments = _comments(path.read_text(encoding="utf-8"))
        return Expectation(path, _stops(path.name, comments), _needs(comments))
    except ExpectationError as error:
        raise ExpectationError(f"{path}: {error}") from None


def _comments(source: str) -> list[tuple[int, str, bool]]:
    """All comments as (line, text, True if nothing but comments comes before it)."""
    found: list[tuple[int, str, bool]] = []
    header = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            found.append((token.start[0], token.string, header))
        elif token.type != tokenize.NL:
            header = False
    return found


def _stops(name: str, comments: list[tuple[int, str, bool]]) -> tuple[ExpectedStop, ...]:
    words: list[list[str]] = []
    continuing = False
    for line, text, header in comments:
        if match := _EXPECT.match(text):
            if not header:
                raise ExpectationError(f"line {line}: expect: comments belong at the top")
            words.append(shlex.split(match[1]))
            continuing = True
        elif continuing and header and (match := _CONTINUED.match(text)):
            words[-1] += shlex.split(match[1])
        else:
            continuing = False
    if not words:
        raise ExpectationError("no expect: comment")

    marks = _marks(comments)
    if words == [["no-stop"]]:
        if marks:
            raise ExpectationError(f"no-stop, but line {min(marks.values())} is marked")
        return ()
    used: set[tuple[str, int | None]] = set()
    stops = tuple(
        _stop(name, number, fields, marks, used) for number, fields in enumerate(words, start=1)
    )
    if unused := marks.keys() - used:
        raise ExpectationError(
            f"line {marks[unused.pop()]} is marked, but no stop is expected there"
        )
    return stops


def _needs(comments: list[tuple[int, str, bool]]) -> tuple[str, ...]:
    matches = [_NEEDS.match(text) for _, text, header in comments if header]
    return tuple(word for match in matches if match for word in match[1].split())


def _marks(comments: list[tuple[int, str, bool]]) -> dict[tuple[str, int | None], int]:
    marks: dict[tuple[str, int | None], int] = {}
    for line, text, _ in comments:
        if match := _MARK.match(text):
            key = (match[1], int(match[2]) if match[2] else None)
            if key in marks:
                raise ExpectationError(f"lines {marks[key]} and {line} have the same mark")
            marks[key] = line
    return marks


def _stop(
    name: str,
    number: int,
    words: list[str],
    marks: dict[tuple[str, int | None], int],
    used: set[tuple[str, int | None]],
) -> ExpectedStop:
    if words[:1] != ["stop"]:
        raise ExpectationError(f"expected `stop ...` or one `no-stop`, got `{' '.join(words)}`")
    fields: dict[str, str] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key in fields or key not in _REQUIRED | _OPTIONAL:
            raise ExpectationError(f"stop {number}: cannot read `{word}`")
        fields[key] = value
    if missing := _REQUIRED - fields.keys():
        raise ExpectationError(f"stop {number}: {', '.join(sorted(missing))} missing")
    if fields["event"] not in _EVENTS:
        raise ExpectationError(f"stop {number}: unknown event {fields['event']}")

    library = "file" in fields
    if "code" in fields and not library:
        raise ExpectationError(f"stop {number}: code= without file=")
    kind = "user line" if library else "stop"
    key = next((key for key in ((kind, number), (kind, None)) if key in marks), None)
    if key is None:
        raise ExpectationError(f"stop {number}: no line is marked `# <- {kind}`")
    used.add(key)
    op_key = next((key for key in (("op", number), ("op", None)) if key in marks), None)
    if op_key is not None:
        used.add(op_key)
    return ExpectedStop(
        event=fields["event"],
        module=fields["module"],
        type=fields.get("type"),
        step=_number(number, fields, "step"),
        file=fields.get("file", name),
        line=None if library else marks[key],
        code=fields.get("code"),
        user_line=marks[key],
        argument=fields.get("argument"),
        sample=_number(number, fields, "sample"),
        op=fields.get("op"),
        op_file=fields.get("op_file", fields.get("file", name) if op_key is None else name),
        op_line=_op_line(fields, marks[key] if op_key is None else marks[op_key], op_key),
        op_code=fields.get("op_code", fields.get("code") if op_key is None else None),
        recorded=fields.get("recorded"),
    )


def _op_line(fields: dict[str, str], line: int, marked: object) -> int | None:
    """None in library code."""
    library = "op_file" in fields or ("file" in fields and marked is None)
    return None if library else line


def _number(stop: int, fields: dict[str, str], key: str) -> int | None:
    text = fields.get(key)
    if text is None:
        return None
    if not text.isdecimal():
        raise ExpectationError(f"stop {stop}: {key}={text} is not a number")
    return int(text)

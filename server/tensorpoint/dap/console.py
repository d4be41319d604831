"""`tp` commands in the debug console: every feature is reachable from any client's console."""

from __future__ import annotations

import ast
import re
from typing import Any

from ..conditions.metrics import ON_VALUES
from .breakpoints import Refusal, Tensorpoints

_PREFIX = "tp "
_VERBS = ("on", "list", "off", "record", "facts", "nograd", "watch", "precision", "step", "help")
_WORD = re.compile(r"[A-Za-z_]\w*\Z")
_HELP = """\
tp on CONDITION          stop where it turns true, for example: tp on nonfinite("model.layers.*")
tp on layer:PATH         stop when the module is entered; add "if CONDITION" to narrow it
tp list                  what is set, with numbers
tp off NUMBER            take one out; "tp off all" takes out all
tp record on             record facts: shapes, statistics, gradient norms; "tp record off" stops
tp facts [GLOB]          the facts of all layers, or of those whose path matches
tp nograd [GLOB]         which parameters got no gradient in the newest step, and why
tp watch EXPR            stop where a tensor, parameter, gradient or buffer changes; add "if
                         CONDITION" to narrow it: tp watch net.fc.weight.grad if norm > 3
tp precision op          record each operation as it runs (slower); "tp precision module" ends it
tp step layer            step by layers from here; "tp step line" steps by lines again
tp step over|in|out      one step by layers; "back" and "first" run the forward again up to there
tp help                  this text"""

#: What `tp step` takes.
STEPS = ("layer", "line", "over", "in", "out", "back", "first")


class ConsoleError(Exception):
    """The command was not understood; the text says what would be."""


def is_command(expression: str) -> bool:
    """Whether a console line is ours: it starts with `tp ` and isn't valid Python."""
    text = expression.strip()
    if not text.startswith(_PREFIX):
        return False
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return True
    return False


def run(expression: str, tensorpoints: Tensorpoints) -> tuple[str, bool]:
    """Carry out a command; returns the answer and whether the plan changed. Raises ConsoleError."""
    verb, _, rest = expression.strip().removeprefix(_PREFIX).strip().partition(" ")
    rest = rest.strip()
    if verb == "help":
        return _HELP, False
    if verb == "list":
        return _listing(tensorpoints), False
    if verb == "on" and rest:
        made = tensorpoints.add(rest)
        if isinstance(made, Refusal):
            raise ConsoleError(made.reason)
        number = next(n for n, item, _ in tensorpoints.listing() if item.id == made.id)
        return f"{number}: {made.text}", True
    if verb == "off" and rest:
        return _off(rest, tensorpoints), True
    if verb == "record" and rest in ("on", "off"):
        changed = tensorpoints.recording.want("console", rest == "on")
        return f"facts are {'recorded' if rest == 'on' else 'not recorded'}", changed
    if verb == "precision" and rest in ("module", "op"):
        changed = tensorpoints.precision != rest
        tensorpoints.precision = rest
        return f"precision is {rest}", changed
    raise ConsoleError(f"not a tp command: {expression.strip()}\n{_HELP}")


def completions(arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """What we know to complete the text with: metrics as functions, and `tp` commands."""
    text = str(arguments.get("text", ""))[: int(arguments.get("column", 1)) - 1]
    line = text.rpartition("\n")[2]
    if line.startswith(_PREFIX):
        verb = line.removeprefix(_PREFIX)
        return [_target(name, verb, len(line)) for name in _VERBS if name.startswith(verb)]
    found = _WORD.search(line)
    word = found[0] if found is not None else ""
    if not word or line[: -len(word)].endswith("."):
        return []
    return [
        {**_target(name, word, len(line)), "text": f"{name}(", "detail": meaning}
        for name, meaning in ON_VALUES.items()
        if name.startswith(word)
    ]


def _target(name: str, word: str, end: int) -> dict[str, Any]:
    return {"label": name, "type": "function", "start": end - len(word), "length": len(word)}


def facts_glob(expression: str) -> str | None:
    """Which layers a `tp facts` line asks for; None for every other line."""
    return _glob_of("facts", expression)


def watched(expression: str) -> str | None:
    """What a `tp watch` line asks for; None for every other line."""
    verb, _, rest = expression.strip().removeprefix(_PREFIX).strip().partition(" ")
    return rest.strip() if verb == "watch" and rest.strip() else None


def no_grad_glob(expression: str) -> str | None:
    """Which parameters a `tp nograd` line asks for; None for every other line."""
    return _glob_of("nograd", expression)


def step(expression: str) -> str | None:
    """What a `tp step` line asks for; None for every other line."""
    words = expression.split()
    return words[2] if len(words) == 3 and words[1] == "step" and words[2] in STEPS else None


def _glob_of(command: str, expression: str) -> str | None:
    verb, _, rest = expression.strip().removeprefix(_PREFIX).strip().partition(" ")
    return (rest.strip().strip("\"'") or "*") if verb == command else None


def _off(what: str, tensorpoints: Tensorpoints) -> str:
    if what == "all":
        tensorpoints.clear()
        return "no tensorpoint is set"
    removed = tensorpoints.remove(int(what)) if what.isdecimal() else None
    if removed is None:
        raise ConsoleError(f"there is no tensorpoint {what}\n{_listing(tensorpoints)}")
    return f"off: {removed.text}"


def _listing(tensorpoints: Tensorpoints) -> str:
    lines = [
        f"{number}: {tensorpoint.text}  ({source})"
        for number, tensorpoint, source in tensorpoints.listing()
    ]
    return "\n".join(lines) or "no tensorpoint is set"

"""Where torch.compile would break the graph, asked of torch itself: `torch._dynamo.explain`.

On request only: it takes seconds. The file is executed once more as it is, since what is rewritten
tells its values in a way that the compiler would stop at, and runs with real tensors, since what
runs between two graphs asks for values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ...wire.shapes import ShapeDiagnostic, Span
from .errors import first_line
from .inputs import make
from .probing import Probed
from .real import too_large
from .rewriting import Source
from .source import FileModule


class CannotExplain(Exception):
    """There is no answer; the text says why."""


def graph_breaks(probed: Probed, file: FileModule) -> Iterator[ShapeDiagnostic]:
    """A hint at each break. Raises `CannotExplain`."""
    target, sizes = probed.target, probed.runs[0].sizes
    if too_large(target):
        raise CannotExplain(f"{target.qualname} is too large to be run")
    explained = _explained(target.constructor, file.as_it_is(), make(target.inputs, sizes))
    told: set[tuple[int, str]] = set()
    for reason in explained.break_reasons:
        lines = [each.lineno for each in reason.user_stack if each.filename == file.source.path]
        why = _in_a_line(reason.reason)
        if not lines or (lines[-1], why) in told:
            continue
        told.add((lines[-1], why))
        yield ShapeDiagnostic(
            _line(file.source, lines[-1]),
            "hint",
            "graph-break",
            f"torch.compile breaks the graph here: {why}",
        )


def _explained(constructor: str, file: FileModule, arguments: Any) -> Any:
    from torch import _dynamo

    positional, keywords = arguments
    try:
        module: Any = eval(compile(constructor, "<constructor>", "eval"), file.namespace)
        module.eval()
        _dynamo.reset()
        with torch.no_grad():
            return _dynamo.explain(module)(*positional, **keywords)
    except BaseException as error:  # the user's code, and the compiler's own faults
        text = f"{type(error).__name__}: {first_line(error)}"
        raise CannotExplain(f"torch.compile can't explain {constructor}: {text}") from None


def _in_a_line(reason: str) -> str:
    """The sentence of a reason, and the hint behind it: the rest is for the compiler's authors."""
    if reason.startswith("generic_jump"):
        return "data-dependent branching: which way it goes depends on the values of a tensor"
    lines = [line.strip() for line in reason.strip().split("\n")]
    said = [line.partition(":")[2].strip() for line in lines if line.startswith("Explanation:")]
    hint = [line.partition(":")[2].strip() for line in lines if line.startswith("Hint:")]
    return ". ".join(each.rstrip(".") for each in (lines[0], *said[:1], *hint[:1]))[:400]


def _line(source: Source, number: int) -> Span:
    text = source.lines[number - 1]
    return Span(number, len(text) - len(text.lstrip()), number, len(text.rstrip()))

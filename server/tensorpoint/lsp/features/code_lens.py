"""`textDocument/codeLens`: what goes into a class and what comes out, above it."""

from __future__ import annotations

from lsprotocol import types

from .. import words
from ..view import View


def code_lenses(view: View) -> list[types.CodeLens]:
    """A lens above each traced class or function, and one above the `forward` of a class."""
    if not view.settings.code_lens:
        return []
    lenses: list[types.CodeLens] = []
    for call in view.calls:
        title = " · ".join([words.signature(call), *words.costs(call)])
        if any(map(words.guessed, call.inputs)):
            title += " · inputs guessed"
        lenses.append(_lens(view.range(call.span), title))
        if call.forward is not None and call.forward != call.span and view.holds(call.forward):
            lenses.append(_lens(view.range(call.forward), words.signature(call)))
    return lenses


def _lens(place: types.Range, title: str) -> types.CodeLens:
    # Without a command a lens is shown, but not to be clicked.
    return types.CodeLens(place, types.Command(title=title, command=""))

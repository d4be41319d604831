"""Which lines of the debug console are ours, and what they do."""

from __future__ import annotations

import ast
import keyword

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpoint.dap import console
from tensorpoint.dap.breakpoints import Tensorpoints

WORDS = st.sampled_from(
    ["tp", "on", "list", "off", "=", "in", "+", "-", "1", "(", ")", "is", "not", "x", "if", "else"]
)


@given(st.lists(WORDS, max_size=6).map(" ".join) | st.text(max_size=30).map("tp ".__add__))
def test_valid_python_is_never_ours(line: str) -> None:
    try:
        ast.parse(line.strip())
    except (SyntaxError, ValueError):
        ours = line.strip().startswith("tp ")
    else:
        ours = False
    assert console.is_command(line) == ours


@pytest.mark.parametrize(
    "line", ["tp list", " tp list ", "tp on x", "tp help", "tp 'quoted", "tp ("]
)
def test_what_is_ours(line: str) -> None:
    assert console.is_command(line)


@pytest.mark.parametrize("line", ["tp", "tpx list", "tp.list", "tp = 3", "tp + 1", "print(tp)", ""])
def test_what_is_not_ours(line: str) -> None:
    assert not console.is_command(line)


@given(st.text(max_size=40).filter(lambda text: not keyword.iskeyword(text.strip())))
def test_any_command_is_answered_or_refused_with_help(rest: str) -> None:
    tensorpoints = Tensorpoints()
    try:
        answer, _ = console.run(f"tp {rest}", tensorpoints)
    except console.ConsoleError as error:
        assert str(error)
    else:
        assert answer


def test_off_takes_out_by_the_number_that_list_shows() -> None:
    tensorpoints = Tensorpoints()
    said, changed = console.run("tp on layer:a if step > 3", tensorpoints)
    number = said.partition(":")[0]
    assert changed
    listing, changed = console.run("tp list", tensorpoints)
    assert not changed and f"{number}: layer:a if step > 3  (console)" in listing.splitlines()
    said, changed = console.run(f"tp off {number}", tensorpoints)
    assert (said, changed) == ("off: layer:a if step > 3", True)
    with pytest.raises(console.ConsoleError, match=f"no tensorpoint {number}"):
        console.run(f"tp off {number}", tensorpoints)

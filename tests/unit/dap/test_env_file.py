"""What may stand in an `envFile`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorpoint.dap.env_file import read_env_file

FILE = r"""
# a comment
PLAIN=one
  SPACES  =  two words   # with a comment
export EXPORTED=three
EMPTY=
HASH=a#b
SINGLE='${PLAIN} \n # kept'
DOUBLE="${PLAIN}\n\"quoted\" # kept"  # dropped
MANY="first
second"
BEFORE=${PLAIN}-${OUTSIDE}-${NOWHERE}-
ESCAPED=\${PLAIN}
PLAIN=again
URL=postgres://user:p=ss@host/db?x=1
_under_score1=x"""


def test_values_quotes_references_and_comments(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text(FILE, encoding="utf-8-sig")
    assert read_env_file(path, {"OUTSIDE": "out", "PLAIN": "hidden"}) == {
        "PLAIN": "again",
        "SPACES": "two words",
        "EXPORTED": "three",
        "EMPTY": "",
        "HASH": "a#b",
        "SINGLE": "${PLAIN} \\n # kept",
        "DOUBLE": 'one\n"quoted" # kept',
        "MANY": "first\nsecond",
        "BEFORE": "one-out--",
        "ESCAPED": "\\${PLAIN}",
        "URL": "postgres://user:p=ss@host/db?x=1",
        "_under_score1": "x",
    }


def test_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes(b'A=1\r\n\r\n# c\r\nB="x" \r\nC=y z')
    assert read_env_file(path, {}) == {"A": "1", "B": "x", "C": "y z"}


@pytest.mark.parametrize(
    ("text", "line"), [("A=1\nnonsense\n", 2), ("1A=2", 1), ("A=1\n\n=x", 3), ('A="x" y', 1)]
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / ".env"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"\.env:{line}: expected NAME=value"):
        read_env_file(path, {})


def test_a_file_that_is_empty_sets_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.touch()
    assert read_env_file(path, {}) == {}

"""docs/conditions.md says what the program does: its table, examples and messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tensorpoint.conditions import ConditionError, parse
from tensorpoint.conditions.metrics import METRICS
from tensorpoint.conditions.plan import check

_REFERENCE = (Path(__file__).parents[3] / "docs" / "conditions.md").read_text("utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", _REFERENCE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", METRICS)
def test_table_of_metrics_is_that_of_the_program(name: str) -> None:
    metric = METRICS[name]
    call = "" if metric.form == "name" else r"\([^`]*\)"
    row = re.search(rf"^\| `{name}{call}` \|(.*)\|(.*)\|$", _REFERENCE, re.MULTILINE)
    assert row is not None, f"no row for {name}"
    value, meaning = (cell.strip() for cell in row.groups())
    assert value == metric.range_in_words.removeprefix("is ")
    assert meaning == metric.meaning
    if metric.default_glob:
        assert f'{name}(glob="{metric.default_glob}"' in _REFERENCE


@pytest.mark.parametrize("text", "".join(_blocks("python")).splitlines())
def test_examples_are_conditions(text: str) -> None:
    assert parse(text)


@pytest.mark.parametrize("example", [e for b in _blocks("refused") for e in b.split("\n\n")])
def test_refusals_are_the_real_ones(example: str) -> None:
    text, caret, message = example.strip("\n").split("\n")
    with pytest.raises(ConditionError) as refused:
        check(text)
    assert [*refused.value.caret().split("\n"), refused.value.message] == [text, caret, message]


@pytest.mark.parametrize(
    ("written", "meant"), re.findall(r"^\| (\(nothing\)|`.+`) \| `(.+)` \|$", _REFERENCE, re.M)
)
def test_shorthand_means_what_the_table_says(written: str, meant: str) -> None:
    text = "" if written == "(nothing)" else written.strip("`")
    metric = "grad_norm" if "grad_norm" in meant else "nonfinite"
    assert parse(text, shorthand=metric).text == meant

"""Tests that stand for a rule say so, and are held to it.

`@pytest.mark.first("division by 0")`: the rule speaks in this test. `second`: it does so of another
program, which shares no code with that. `near_miss`: what it is about runs here, and it is silent.
`test_table` sees to it that each rule has all three.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tensorpoint.agent import causes
from tensorpoint.agent.causes import RULES, Rule
from tensorpoint.agent.causes.table import rules_for
from tensorpoint.agent.ops.operation import Operation
from tests.unit.agent.causes import capture


@pytest.fixture(autouse=True)
def _held_to_its_marks(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    spoke: set[str] = set()

    def overheard(rule: Rule) -> Rule:
        def judge(operation: Operation, at: Any) -> Any:
            cause = rule.judge(operation, at)
            spoke.update([] if cause is None else [rule.name])
            return cause

        return replace(rule, judge=judge)

    monkeypatch.setattr(causes, "rules_for", lambda operation: map(overheard, rules_for(operation)))
    capture.ran.clear()
    yield
    by_name = {rule.name: rule for rule in RULES}
    for mark in capture.MARKS:
        for marker in request.node.iter_markers(mark):
            for name in marker.args:
                if mark != "near_miss":
                    assert name in spoke, f"the rule {name!r} is silent"
                    continue
                assert name not in spoke, f"the rule {name!r} speaks"
                about = by_name[name].ops
                assert "*" in about or about & capture.ran, f"nothing that {name!r} is about runs"

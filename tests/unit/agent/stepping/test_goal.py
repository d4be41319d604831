"""Where a step ends."""

from __future__ import annotations

import weakref

import pytest
from torch import nn

from tensorpoint.agent.stepping.goal import Goal, How

ENTRY, EXIT = True, False


@pytest.mark.parametrize(
    ("how", "level", "depth", "entering", "reached"),
    [
        ("over", 2, 2, ENTRY, True),  # the next at this level
        ("over", 2, 3, ENTRY, False),  # a child of it
        ("over", 2, 2, EXIT, False),  # its own exit is passed
        ("over", 2, 1, EXIT, True),  # that of the layer around
        ("over", 2, 1, ENTRY, True),
        ("in", 2, 5, ENTRY, True),
        ("in", 2, 2, EXIT, False),
        ("in", 2, 1, EXIT, True),
        ("out", 3, 2, EXIT, True),
        ("out", 3, 3, EXIT, False),
        ("out", 3, 3, ENTRY, False),
        ("out", 1, 1, EXIT, True),  # nothing is around a root
        ("out", 1, 1, ENTRY, True),
        ("out", 3, 1, ENTRY, True),  # the exit of the layer around was not seen: compiled
    ],
)
def test_steps_end(how: How, level: int, depth: int, entering: bool, reached: bool) -> None:
    assert Goal(how, level).is_reached(object(), depth, entering=entering) is reached


def test_a_step_in_that_is_aimed_passes_other_layers() -> None:
    aimed, other = nn.Linear(1, 1), nn.Linear(1, 1)
    goal = Goal("in", 2, weakref.ref(aimed))
    assert not goal.is_reached(other, 2, entering=True)
    assert goal.is_reached(aimed, 3, entering=True)
    assert goal.is_reached(other, 1, entering=False)

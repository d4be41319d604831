"""Recording goes on where steps with it take hardly longer, and stops for good where they do."""

from __future__ import annotations

import pytest

from tensorpoint.agent.ops.worth import Trial


@pytest.mark.parametrize(
    ("recorded", "plain", "goes_on"),
    [
        ((9.0, 1.1, 1.2), (1.0, 1.0, 5.0), True),  # the first step warms up, the last waits
        ((9.0, 1.2, 1.3), (1.0, 1.1, 1.2), False),
        ((0.5, 0.5, 0.5), (1.0, 1.0, 1.0), True),
    ],
)
def test_steps_with_it_and_without_are_compared(
    recorded: tuple[float, ...], plain: tuple[float, ...], goes_on: bool
) -> None:
    now = 0.0
    trial = Trial(lambda: now)
    trial.step()
    for seconds in recorded:
        assert trial.records
        now += seconds
        trial.step()
    for seconds in plain:
        assert not trial.records
        now += seconds
        trial.step()
    for _ in range(3):
        assert trial.records is goes_on
        now += 100
        trial.step()

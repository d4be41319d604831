"""Steps back by layers: the forward is run again, and the program never notices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import PLAIN, Session, line_of

pytestmark = [
    pytest.mark.xdist_group("layer back"),
    pytest.mark.usefixtures("resident_process"),
]

PROGRAM = Path(__file__).parent / "layers" / "stateful.py"


@pytest.fixture(scope="module")
def untouched() -> str:
    """What the program prints by itself."""
    return subprocess.run(
        [sys.executable, str(PROGRAM)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
        env={**os.environ},
    ).stdout


def begin(session: Session, **arguments: Any) -> dict[str, Any]:
    """The stop at the entry of the model's third call."""
    session.launch(
        PROGRAM,
        filters=[],
        functions=[{"name": "layer:Net", "condition": "step == 2"}],
        **arguments,
    )
    session.stopped()
    session.console("tp step layer")
    return session.stopped()


def names(session: Session, stopped: dict[str, Any]) -> list[str]:
    return [frame["name"] for frame in session.frames(stopped)]


def value(session: Session, stopped: dict[str, Any]) -> str:
    return session.evaluate("str([v.tolist() for v in inputs if hasattr(v, 'tolist')])", stopped)


def test_back_and_forth_and_training_goes_on_bit_for_bit(untouched: str) -> None:
    with Session(client=PLAIN) as session:
        assert not session.initialize().get("supportsStepBack")
        stopped = begin(session)
        for command in ("stepIn", "stepIn", "next", "next"):
            stopped = session.step(command, stopped)
        assert stopped["description"] == "Entering first.linear (Linear)"
        live = value(session, stopped)
        # It was offered before the stop at which it is there.
        events = [event["event"] for event in session.events()]
        (capabilities,) = session.seen("capabilities")[-1:]
        assert capabilities == {"capabilities": {"supportsStepBack": True}}
        assert events.index("capabilities") < max(
            position for position, name in enumerate(events) if name == "stopped"
        )
        calls = session.evaluate("len(inputs), __import__('random').getstate()[1][:3]", stopped)

        stopped = session.step("stepBack", stopped)
        assert stopped["description"] == "Entering first.drop (Dropout)"
        assert names(session, stopped)[0] == "first.drop (Dropout) [entry, replayed]"
        assert session.frames(stopped)[1]["line"] == line_of(PROGRAM, "h = self.drop(self.norm(x))")
        stopped = session.step("stepBack", stopped)
        assert stopped["description"] == "Entering first.norm (BatchNorm1d)", stopped["text"]
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Entering first.drop (Dropout)"
        stopped = session.step("next", stopped)  # into the live run
        assert stopped["description"] == "Entering first.linear (Linear)"
        assert names(session, stopped)[0] == "first.linear (Linear) [entry]"
        assert value(session, stopped) == live
        assert calls == session.evaluate(
            "len(inputs), __import__('random').getstate()[1][:3]", stopped
        )

        stopped = session.step("stepOut", stopped)
        assert stopped["description"] == "Leaving first (Noisy)"
        stopped = session.step("stepBack", stopped)  # to its entry
        assert stopped["description"] == "Entering first (Noisy)"
        assert session.evaluate("self.calls", stopped) == "2"  # of the second run
        stopped = session.step("stepOut", session.step("stepIn", stopped))
        assert names(session, stopped)[0] == "first (Noisy) [exit]"  # the live run again
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Entering second (Noisy)"
        stopped = session.step("reverseContinue", stopped)
        assert stopped["description"] == "Entering (root) (Net)"
        assert "begins" in session.refused("stepBack", threadId=stopped["threadId"])
        stopped = session.step("stepIn", stopped)
        assert stopped["description"] == "Entering first (Noisy)"
        stopped = session.step("stepOut", session.step("stepIn", stopped))
        assert names(session, stopped)[0] == "first (Noisy) [exit, replayed]"
        # On from a second run: the live run goes on.
        session.request("continue", threadId=stopped["threadId"])
        assert session.exit_code() == 0
        assert session.output("stdout") == untouched


def test_where_there_is_no_step_back_the_reason_is_told(untouched: str) -> None:
    with Session() as session:
        stopped = begin(session)
        thread = stopped["threadId"]
        assert "go by layers" in session.refused("stepBack", threadId=1) or "by layers" in (
            session.refused("stepBack", threadId=1)
        )
        stopped = session.step("stepOut", stopped)
        stopped = session.step("next", stopped)
        assert stopped["description"].endswith("in backward")
        assert session.seen("capabilities")[-1] == {"capabilities": {"supportsStepBack": False}}
        assert "gradients are added up" in session.refused("stepBack", threadId=thread)
        stopped = session.step("next", stopped)
        assert "optimizer" in session.refused("reverseContinue", threadId=thread)
        stopped = session.step("next", stopped)
        stopped = session.step("stepIn", stopped)
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Entering second (Noisy)"
        # From a second run into lines and on: a step out of it that ends behind the live stop.
        assert session.console("tp step back") == "the forward is run again up to there"
        stopped = session.stopped()
        assert stopped["description"] == "Entering first (Noisy)"
        stopped = session.step("stepIn", stopped)
        assert stopped["description"] == "Entering first.norm (BatchNorm1d)"
        stopped = session.step("stepOut", stopped)
        assert stopped["description"] == "Leaving first (Noisy)"
        stopped = session.step("stepOut", stopped)
        assert stopped["description"] == "Leaving (root) (Net)"
        assert names(session, stopped)[0] == "(root) (Net) [exit]"
        session.request("disconnect", terminateDebuggee=False)
        session.wait_closed()

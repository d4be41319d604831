"""What debugpy says of evaluations that take long."""

from __future__ import annotations

from tests.conftest import Write
from tests.protocol.dap import Session, line_of

PROGRAM = "import time\nprint('here')  # stop\n"


def test_it_is_told_of_the_users_own_and_not_of_ours(write: Write) -> None:
    """Of ours it would show the whole source of what boots the agent."""
    with Session() as session:
        path = write(PROGRAM)
        session.launch(
            path,
            env={"PYDEVD_WARN_EVALUATION_TIMEOUT": "0.01"},
            breakpoints={str(path): [line_of(path, "# stop")]},
        )
        stopped = session.stopped()
        assert session.evaluate("time.sleep(0.5)", stopped, "repl") in ("", "None")
        session.resume()
        session.expect("terminated")
        texts = [event["output"] for event in session.seen("output")]
    told = [text for text in texts if "Evaluating: " in text]
    assert told and all(text.startswith("Evaluating: time.sleep(0.5)") for text in told)

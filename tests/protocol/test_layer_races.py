"""Steps by layers that meet other things: threads, requests in a row, ends, exceptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import Message, Session, eventually, line_of
from tests.protocol.test_layer_steps import at_a_layer, no_breakpoints

pytestmark = pytest.mark.usefixtures("resident_process")

TWO_TRAININGS = Path(__file__).parent / "layers" / "two_trainings.py"
TWO_BACKWARDS = Path(__file__).parent / "layers" / "two_backwards.py"
SIDE_BY_SIDE = Path(__file__).parent / "layers" / "side_by_side.py"


def test_each_thread_that_stands_in_a_model_has_its_layers() -> None:
    with Session() as session:
        session.launch(SIDE_BY_SIDE, filters=[])
        session.expect("process")
        session.request(
            "setBreakpoints",
            source={"path": str(SIDE_BY_SIDE)},
            breakpoints=[{"line": line_of(SIDE_BY_SIDE, "time.sleep(0.001)")}],
        )
        stopped = session.stopped()
        no_breakpoints(session, SIDE_BY_SIDE)
        threads = session.request("threads")["threads"]
        layers = {item["name"]: item["id"] for item in threads if item["id"] >= 900_000_000}
        assert sorted(layers) == ["layers of One", "layers of Other"], threads
        for name, shape in (("One", "[3]"), ("Other", "[2]")):
            (frame,) = session.request("stackTrace", threadId=layers[f"layers of {name}"])[
                "stackFrames"
            ]
            assert frame["name"] == f"(root) ({name})"
            value = session.request(
                "evaluate", expression="list(x.shape)", frameId=frame["id"], context="watch"
            )
            assert value["result"] == shape
        # Clients pause the thread that they have shown last.
        session.request("continue", threadId=layers["layers of One"])
        session.request("continue", threadId=layers["layers of One"])
        session.request("pause", threadId=layers["layers of One"])
        stopped = session.stopped()
        assert stopped["reason"] == "pause"
        session.request("threads")
        # A step on the one that the program did not stop on; the other runs meanwhile.
        at_one = "One" in session.evaluate("type(self).__name__", stopped)
        name, inner = ("Other", "inner (Tanh)") if at_one else ("One", "inner (ReLU)")
        frame = session.request("stackTrace", threadId=layers[f"layers of {name}"])["stackFrames"]
        session.request(
            "evaluate", expression="released.set()", frameId=frame[0]["id"], context="repl"
        )
        session.request("stepIn", threadId=layers[f"layers of {name}"])
        after = session.stopped()
        assert after["threadId"] == layers[f"layers of {name}"]
        assert after["description"] == f"Entering {inner}"
        after = session.step("stepOut", after)
        assert after["description"] == f"Leaving (root) ({name})"
        session.resume(after)
        assert session.exit_code() == 0
        assert "fault" not in session.output("important")


def test_a_step_that_is_asked_for_twice_is_one() -> None:
    with Session() as session:
        thread = at_a_layer(session)["threadId"]
        both = [session.send("next", threadId=thread) for _ in range(2)]
        answers = [session.answer(number) for number in both]
        assert [answer["success"] for answer in answers] == [True, False]
        assert "under way" in answers[1]["message"] or "gone on" in answers[1]["message"]
        stopped = session.stopped()
        assert stopped["description"] == "Entering layers.0.mlp.act (ReLU)"
        # While the program runs there is nothing to step from.
        session.request("continue", threadId=thread)
        for command in ("next", "stepBack", "stackTrace"):
            assert "gone on" in session.refused(command, threadId=thread)
        assert session.exit_code() == 0


@pytest.mark.parametrize("by", ["disconnect", "closing"])
def test_a_session_that_ends_in_a_step_leaves_nothing(by: str) -> None:
    with Session() as session:
        stopped = at_a_layer(session)
        frame = session.frames(stopped)[0]["id"]
        # The thread is busy with an expression: the step waits behind it.
        session.send("evaluate", expression="__import__('time').sleep(3)", frameId=frame)
        session.send("next", threadId=stopped["threadId"])
        if by == "disconnect":
            session.request("disconnect", terminateDebuggee=True)
            session.wait_closed()
        else:
            session.close_input()
        assert session.exit_status() == 0, session.story()
        session.expect_no_process()
        assert "Traceback" not in session.stderr()


def test_bad_input_is_refused_with_the_reason_and_harms_nothing() -> None:
    with Session() as session:
        stopped = at_a_layer(session)
        thread, frame = stopped["threadId"], session.frames(stopped)[0]["id"]
        for command, arguments in (
            ("stepIn", {"threadId": thread, "targetId": 99}),
            ("stepIn", {"threadId": thread, "targetId": "down"}),
            ("next", {"threadId": thread + 50}),
            ("scopes", {"frameId": frame + 1_000_000}),
            ("variables", {"variablesReference": 1_899_999_999}),
            ("setVariable", {"variablesReference": 1_899_999_999, "name": "x", "value": "1"}),
            ("setExpression", {"frameId": frame, "expression": "", "value": "1"}),
            ("setExpression", {"frameId": frame, "expression": "x +", "value": ""}),
            ("evaluate", {"frameId": frame, "expression": "1 +", "context": "watch"}),
            ("tensorpoint/tensor", {"frameId": frame, "expression": "7"}),
            ("tensorpoint/tensor", {"frameId": frame, "expression": "x", "parts": 7}),
            ("tensorpoint/step", {"how": "sideways"}),
            ("goto", {"threadId": thread, "targetId": 1}),
            ("gotoTargets", {"frameId": frame}),
            ("source", {"frameId": frame}),
        ):
            reason = session.refused(command, **arguments)
            assert reason and "Traceback" not in reason and "File " not in reason, (command, reason)
        frames = session.request("stackTrace", threadId=thread)["stackFrames"]
        odd = session.request("stackTrace", threadId=thread, startFrame=-2, levels="many")
        assert odd["stackFrames"] == frames
        past = session.request("stackTrace", threadId=thread, startFrame=70, levels=3)
        assert past == {"stackFrames": [], "totalFrames": 3}
        assert "'x'" in session.refused("completions", frameId=frame, text="h", column="x")
        # It steps on as if nothing had been asked.
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Entering layers.0.mlp.act (ReLU)"
        assert "fault" not in session.output("important")


def test_two_threads_that_step_take_turns() -> None:
    with Session() as session:
        session.launch(TWO_TRAININGS, filters=[], functions=[{"name": "layer:Sequential"}])
        met: set[tuple[int, str]] = set()
        for _ in range(40):
            stopped = session.stopped()
            if "tensorpoint" in stopped:  # a breakpoint, on a thread of the program
                session.console("tp step layer")
                stopped = session.stopped()
            frames = session.frames(stopped)
            assert len(frames) <= 2, frames  # none of the other model's
            met.add((stopped["threadId"], frames[0]["name"].partition(" [")[0]))
            session.request("stepIn", threadId=stopped["threadId"])
        session.stopped()
        session.request("setFunctionBreakpoints", breakpoints=[])
        while not session.seen("exited"):  # the other thread may have come to its stop as well
            stops = len(session.seen("stopped"))
            session.resume()
            eventually(
                lambda stops=stops: session.seen("exited") or len(session.seen("stopped")) > stops,
                "the end, or another stop",
            )
        assert "trained" in session.output("stdout")
        assert "fault" not in session.output("important"), session.output("important")
        inner = {name: thread for thread, name in met if name in ("1 (ReLU)", "1 (Tanh)")}
        assert len(set(inner.values())) == 2, met


def grad_output(session: Session, stopped: Message) -> str:
    scope = session.scopes(stopped)["Gradients"]
    rows = session.request("variables", variablesReference=scope)["variables"]
    return next((row["value"] for row in rows if row["name"] == "grad_output"), "none")


def test_two_backward_passes_at_once_have_their_own_layers_and_gradients() -> None:
    with Session() as session:
        session.launch(TWO_BACKWARDS, filters=[], functions=[{"name": "layer:Own"}])
        gradients = {"ReLU": "f32[1, 2] cpu", "Tanh": "f32[1, 3] cpu"}
        kinds: dict[int, str] = {}
        for kind, gradient in gradients.items():
            session.stopped()
            session.console("tp step layer")
            stopped = session.stopped()
            for layer in ("Entering lower (Linear)", f"Entering kind ({kind})"):
                stopped = session.step("stepIn", stopped)
                assert stopped["description"] == layer
            stopped = session.step("stepIn", stopped)
            assert stopped["description"] == "Leaving (root) (Own)"
            stopped = session.step("stepIn", stopped)
            assert stopped["description"] == "Entering (root) (Own) in backward"
            assert grad_output(session, stopped) == gradient
            kinds[stopped["threadId"]] = kind
            # The other comes while this one waits in its backward pass.
            session.evaluate("released.set()", stopped)
            session.request("stepIn", threadId=stopped["threadId"])
        # Both go on now. While one is stopped the other's step may end, of which nothing is told,
        # and then it runs to its end; so one of them at least is told of all of its layers.
        met: dict[str, list[str]] = {kind: [] for kind in gradients}
        while True:
            stopped = session.stopped()
            kind = kinds[stopped["threadId"]]
            assert grad_output(session, stopped) == gradients[kind]
            met[kind].append(stopped["description"].removesuffix(" in backward"))
            layers = [f"Entering kind ({kind})", "Entering lower (Linear)", "Leaving (root) (Own)"]
            assert met[kind] == layers[: len(met[kind])]
            if met[kind] == layers:
                break
            session.request("stepIn", threadId=stopped["threadId"])
        session.resume(stopped)
        assert session.exit_code() == 0
        assert "fault" not in session.output("important"), session.output("important")


PENDING = """\
import threading

import torch
from torch import nn

entered, gate = threading.Event(), threading.Event()


class Waits(nn.Module):
    def forward(self, x):
        entered.set()
        gate.wait()
        return x


def work():
    entered.wait()
    place = "beside"  # here
    gate.set()


worker = threading.Thread(target=work)
worker.start()
model = nn.Sequential(nn.Linear(2, 2), Waits(), nn.ReLU())
model(torch.ones(1, 2))
worker.join()
print("through")
"""


def test_a_step_that_is_pending_on_another_thread_ends_with_continue(write: Write) -> None:
    path = write(PENDING)
    with Session() as session:
        session.launch(
            path,
            filters=[],
            functions=[{"name": "layer:1"}],
            breakpoints={str(path): [line_of(path, "# here")]},
        )
        stopped = session.stopped()
        main = stopped["threadId"]
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.console("tp step layer")
        stopped = session.stopped()
        session.request("next", threadId=stopped["threadId"])  # it waits in the layer meanwhile
        stopped = session.stopped()
        assert stopped["reason"] == "breakpoint" and stopped["threadId"] != main
        session.resume(stopped)
        assert session.exit_code() == 0
        assert "through" in session.output("stdout")

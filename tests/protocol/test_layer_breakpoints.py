"""Layer breakpoints: by class and path, at entry, exit, in backward, with conditions and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import Session, eventually

pytestmark = pytest.mark.usefixtures("resident_process")

#: The program that the editor tests step through as well.
BLOCKS = Path(__file__).parents[1] / "editor" / "workspace" / "blocks.py"
#: What it prints with nothing set; `test_layer_back` compares with the same.
EPOCHS = 3


def stops(session: Session, count: int) -> list[tuple[str, str, int | None]]:
    """Event, module and step of this many stops, each of which is left."""
    found: list[tuple[str, str, int | None]] = []
    for _ in range(count):
        stopped = session.stopped()
        assert stopped["reason"] == "function breakpoint", stopped
        stop = stopped["tensorpoint"]
        found.append((stop["event"], stop["module"], stop["step"]))
        session.resume(stopped)
    return found


def set_to(session: Session, *names: str, **options: str) -> list[dict[str, Any]]:
    breakpoints = [{"name": f"layer:{name}", **options} for name in names]
    return session.request("setFunctionBreakpoints", breakpoints=breakpoints)["breakpoints"]


def launch(session: Session, *functions: dict[str, str]) -> None:
    session.launch(BLOCKS, filters=[], functions=list(functions))


def test_by_class_at_the_exit_and_in_backward_of_a_layer() -> None:
    with Session() as session:
        launch(session, {"name": "layer:Mlp", "condition": "step == 0"})
        assert stops(session, 1) == [("layer.entry", "layers.0.mlp", 0)]
        at = session.stopped()
        assert at["tensorpoint"]["module"] == "layers.1.mlp"
        # Entered, so the layer thread has it on top and step over goes to what follows.
        thread = session.request("threads")["threads"][-1]
        frames = session.request("stackTrace", threadId=thread["id"])["stackFrames"]
        assert frames[0]["name"] == "layers.1.mlp (Mlp) [entry]"
        # The model is known, so it is said at once whether there are such layers.
        answers = set_to(session, "layers.*@exit", "Linear@backward", condition="step == 1")
        assert [answer["verified"] for answer in answers] == [True, True]
        session.resume(at)
        assert stops(session, 11) == [
            ("layer.exit", "layers.0.norm", 1),
            ("layer.exit", "layers.0.mlp.up", 1),
            ("layer.exit", "layers.0.mlp.act", 1),
            ("layer.exit", "layers.0.mlp.down", 1),
            ("layer.exit", "layers.0.mlp", 1),
            ("layer.exit", "layers.0", 1),
            ("layer.exit", "layers.1.norm", 1),
            ("layer.exit", "layers.1.mlp.up", 1),
            ("layer.exit", "layers.1.mlp.act", 1),
            ("layer.exit", "layers.1.mlp.down", 1),
            ("layer.exit", "layers.1.mlp", 1),
        ]
        at = session.stopped()
        assert (at["tensorpoint"]["event"], at["tensorpoint"]["module"]) == (
            "layer.exit",
            "layers.1",
        )
        thread = session.request("threads")["threads"][-1]
        (exit_frame, _) = session.request("stackTrace", threadId=thread["id"])["stackFrames"]
        assert exit_frame["name"] == "layers.1 (Block) [exit]"
        shape = session.request(
            "evaluate", expression="list(output.shape)", frameId=exit_frame["id"], context="watch"
        )
        assert shape["result"] == "[2, 4]"
        session.resume(at)
        # In the order of backward, where only these are left of the step.
        assert stops(session, 5) == [
            ("layer.backward", name, 1)
            for name in (
                "head",
                "layers.1.mlp.down",
                "layers.1.mlp.up",
                "layers.0.mlp.down",
                "layers.0.mlp.up",
            )
        ]
        assert session.exit_code() == 0


def test_a_step_from_a_layer_breakpoint_does_not_stop_there_again() -> None:
    def at(session: Session, event: str) -> Any:
        """By layers from the breakpoint where a step has ended before its time."""
        stopped = session.stopped()
        assert stopped["tensorpoint"]["event"] == event, stopped
        session.console("tp step layer")
        return session.stopped()

    with Session() as session:
        names = ("layers.0.mlp", "layers.0.mlp.act", "Net@exit")
        launch(session, *({"name": f"layer:{name}", "condition": "step == 0"} for name in names))
        stopped = session.step("stepIn", at(session, "layer.entry"))
        assert stopped["description"] == "Entering layers.0.mlp.up (Linear)"
        session.request("stepIn", threadId=stopped["threadId"])
        stopped = session.step("stepIn", at(session, "layer.entry"))
        assert stopped["description"] == "Entering layers.0.mlp.down (Linear)"
        for layer in ("layers.0.mlp (Mlp)", "layers.0 (Block)"):
            stopped = session.step("stepOut", stopped)
            assert stopped["description"] == f"Leaving {layer}"
        session.request("stepOut", threadId=stopped["threadId"])
        stopped = session.step("stepOut", at(session, "layer.exit"))
        assert stopped["description"] == "Entering (root) (Net) in backward"


def test_conditions_see_the_call_and_leave_no_name_behind() -> None:
    with Session() as session:
        launch(
            session,
            {
                "name": "layer:Linear",
                "condition": "self.out_features == 8 and inputs[0].dim() == 2",
            },
            {
                "name": "layer:*.act@exit",
                "condition": "any(bool((row == 0).all()) for row in output) or step == 2",
            },
            {
                "name": "layer:head@backward",
                "condition": "grad_output.abs().sum() >= 0 and step == 2",
            },
            {"name": "layer:head", "condition": "inputs['input'].shape[1] == 5"},
            {"name": "layer:norm", "condition": "step == 0"},
        )
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "layers.0.mlp.up"
        places = "(__import__('builtins').__dict__, torch.nn.Linear.forward.__globals__)"
        names = f"[n for n in ('self', 'inputs', 'output') for place in {places} if n in place]"
        assert session.evaluate(names, stopped) == "[]"
        assert stopped["tensorpoint"]["condition"] == (
            "layer:Linear if self.out_features == 8 and inputs[0].dim() == 2"
        )
        session.resume(stopped)
        rest: list[tuple[str, str, int | None]] = []
        while True:
            rest += stops(session, 1)
            if rest[-1][0] == "layer.backward":
                break
        assert [item for item in rest if item[0] == "layer.entry"] == [
            ("layer.entry", f"layers.{layer}.mlp.up", step) for step in range(3) for layer in (0, 1)
        ][1:]
        assert [item for item in rest if item[0] == "layer.exit"][-2:] == [
            ("layer.exit", f"layers.{layer}.mlp.act", 2) for layer in (0, 1)
        ]
        assert rest[-1] == ("layer.backward", "head", 2)
        assert session.exit_code() == 0


def test_a_condition_that_cannot_be_is_refused_with_the_reason() -> None:
    with Session() as session:
        session.initialize()
        session.start("launch", program=str(BLOCKS), console="internalConsole")
        wrong = [
            ({"name": "layer:head", "condition": "output.isnan().any()"}, "it is at @exit"),
            ({"name": "layer:head@exit", "condition": "output.isnan("}, "^"),
            ({"name": "layer:head@leave"}, "@forward, @exit, @backward"),
            ({"name": "layer:head@backward", "condition": "inputs[0] > 1"}, "it is at @forward"),
            ({"name": "layer:", "condition": ""}, "needs the path of a module"),
            ({"name": "layer:head", "hitCondition": "often"}, "hit count"),
            ({"name": "layer:head", "condition": "nonfinite()"}, "not known yet"),
        ]
        answers = session.request(
            "setFunctionBreakpoints", breakpoints=[item for item, _ in wrong]
        )["breakpoints"]
        for answer, (_, reason) in zip(answers, wrong, strict=True):
            assert answer["verified"] is False and answer["reason"] == "failed"
            assert reason in answer["message"]


def test_hit_counts() -> None:
    with Session() as session:
        launch(
            session,
            {"name": "layer:Mlp", "hitCondition": "3"},
            {"name": "layer:head", "hitCondition": ">= 2"},
            {"name": "layer:layers.1.norm", "hitCondition": "% 2"},
        )
        assert stops(session, 4) == [
            ("layer.entry", "layers.0.mlp", 1),
            ("layer.entry", "layers.1.norm", 1),
            ("layer.entry", "head", 1),
            ("layer.entry", "head", 2),
        ]
        assert session.exit_code() == 0


def test_what_a_breakpoint_names_is_verified_once_there_is_a_model() -> None:
    with Session() as session:
        session.initialize()
        session.start("launch", program=str(BLOCKS), console="internalConsole")
        answers = set_to(session, "layers.1.mlp", "layers.1.mpl", "Mlpp@exit")
        assert [item["verified"] for item in answers] == [False, False, False]
        assert {item["reason"] for item in answers} == {"pending"}
        session.configure(filters=[])
        stopped = session.stopped()
        eventually(lambda: len(session.seen("breakpoint")) == 3, "three changed breakpoints")
        changed = {
            body["breakpoint"]["id"]: body["breakpoint"] for body in session.seen("breakpoint")
        }
        there, mistyped, no_class = (changed[item["id"]] for item in answers)
        assert there["verified"] is True
        assert mistyped["verified"] is False and "layers.1.mlp" in mistyped["message"]
        assert no_class["verified"] is False and "Mlp" in no_class["message"]
        assert "layers.1.mpl" in session.output("important")
        # From now on it is known at once.
        again = set_to(session, "layers.1.mlp", "layers.1.mpl")
        assert [item["verified"] for item in again] == [True, False]
        set_to(session)
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_condition_that_fails_is_told_once_and_the_program_goes_on() -> None:
    with Session() as session:
        launch(
            session,
            {"name": "layer:Linear", "condition": "inputs[7].sum() > 0"},
            {"name": "layer:head", "condition": "step == 2"},
        )
        assert stops(session, 1) == [("layer.entry", "head", 2)]
        assert session.exit_code() == 0
        told = session.output("important")
        assert told.count("looking at layer:Linear if inputs[7].sum() > 0") == 1
        assert "IndexError" in told

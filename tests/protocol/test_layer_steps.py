"""Steps by layers through a forward, over DAP: the virtual layer thread of a client."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import PLAIN, VSCODE, Message, Session, adapter_environment, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

#: The program that the editor tests step through as well.
BLOCKS = Path(__file__).parents[1] / "editor" / "workspace" / "blocks.py"
DEEP = "# a line three modules deep"
CALL = "# the model is called"


def layer_thread(session: Session) -> int | None:
    """The id of the virtual thread, if there is one."""
    threads = session.request("threads")["threads"]
    return next((item["id"] for item in threads if item["name"].startswith("layers of ")), None)


def names(session: Session, stopped: dict[str, Any]) -> list[str]:
    return [frame["name"] for frame in session.frames(stopped)]


def scope(session: Session, stopped: dict[str, Any], name: str, frame: int = 0) -> dict[str, str]:
    """The rows of a scope of a layer."""
    frame_id = session.frames(stopped)[frame]["id"]
    scopes = session.request("scopes", frameId=frame_id)["scopes"]
    (reference,) = [item["variablesReference"] for item in scopes if item["name"] == name]
    rows = session.request("variables", variablesReference=reference)["variables"]
    return {row["name"]: row["value"] for row in rows}


def no_breakpoints(session: Session, path: Path) -> None:
    session.request("setBreakpoints", source={"path": str(path)}, breakpoints=[])


def at_a_layer(session: Session) -> Message:
    """Step by layers from a line of the forward of `layers.0.mlp`; returns that stop."""
    session.launch(BLOCKS, filters=[], breakpoints={str(BLOCKS): [line_of(BLOCKS, DEEP)]})
    session.stopped()
    no_breakpoints(session, BLOCKS)
    session.console("tp step layer")
    return session.stopped()


@pytest.mark.parametrize("filters", [[], ["nonfinite"]], ids=["nothing armed", "NaN/Inf armed"])
def test_from_a_line_deep_inside_out_of_each_layer_with_its_output(filters: list[str]) -> None:
    with Session() as session:
        session.launch(BLOCKS, filters=filters, breakpoints={str(BLOCKS): [line_of(BLOCKS, DEEP)]})
        at_line = session.stopped()
        no_breakpoints(session, BLOCKS)
        assert session.console("tp step layer") == "stepping by layers, at layers.0.mlp (Mlp)"
        stopped = session.stopped()
        assert stopped["threadId"] == layer_thread(session) != at_line["threadId"]
        assert names(session, stopped) == [
            "layers.0.mlp (Mlp)",
            "layers.0 (Block)",
            "(root) (Net)",
        ]
        # The live lines of the forwards.
        lines = [frame["line"] for frame in session.frames(stopped)]
        assert lines == [
            line_of(BLOCKS, DEEP),
            line_of(BLOCKS, "y = self.mlp(y)"),
            line_of(BLOCKS, "x = layer(x)"),
        ]
        shapes = {
            "layers.0.mlp (Mlp)": "[2, 4]",
            "layers.0 (Block)": "[2, 4]",
            "(root) (Net)": "[2, 1]",
        }
        for layer, shape in shapes.items():
            stopped = session.step("stepOut", stopped)
            assert stopped["description"] == f"Leaving {layer}"
            assert stopped["reason"] == "step"
            assert f"output float32{shape}" in stopped["text"]
            assert names(session, stopped)[0] == f"{layer} [exit]"
            assert scope(session, stopped, "Outputs")["output"] == f"f32{shape} cpu grad"
            assert session.evaluate("list(output.shape)", stopped) == shape
        session.request("continue", threadId=stopped["threadId"])
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 5  # one for each stop, and the switch to layers


def test_over_in_and_out_go_by_layers_and_the_hooks_are_gone_afterwards() -> None:
    with Session() as session:
        session.launch(BLOCKS, filters=[], breakpoints={str(BLOCKS): [line_of(BLOCKS, CALL)]})
        session.stopped()
        no_breakpoints(session, BLOCKS)
        assert layer_thread(session) is None  # no module runs there
        assert session.console("tp step layer") == "stepping by layers"
        stopped = session.stopped()
        seen = [stopped["description"]]
        for command in (
            "stepIn",
            "next",
            "stepIn",
            "next",
            "stepIn",
            "next",
            "next",
            "next",
            "stepOut",
        ):
            stopped = session.step(command, stopped)
            seen.append(stopped["description"])
        assert seen == [
            "Entering (root) (Net)",
            "Entering layers.0 (Block)",
            "Entering layers.1 (Block)",
            "Entering layers.1.norm (LayerNorm)",
            "Entering layers.1.mlp (Mlp)",
            "Entering layers.1.mlp.up (Linear)",
            "Entering layers.1.mlp.act (ReLU)",
            "Entering layers.1.mlp.down (Linear)",
            "Leaving layers.1.mlp (Mlp)",
            "Leaving layers.1 (Block)",
        ]
        hooks = "len(torch.nn.modules.module._global_forward_hooks)"
        assert session.evaluate(hooks, stopped) == "1"
        line = line_of(BLOCKS, "loss = out.pow(2).mean()")
        session.request(
            "setBreakpoints", source={"path": str(BLOCKS)}, breakpoints=[{"line": line}]
        )
        session.request("continue", threadId=stopped["threadId"])
        stopped = session.stopped()
        assert (stopped["reason"], stopped["threadId"]) == ("breakpoint", 1)
        assert session.evaluate(hooks, stopped) == "0"
        assert session.evaluate("torch.autograd._engine_run_backward.__name__", stopped) == (
            "'_engine_run_backward'"
        )
        assert (
            session.evaluate(
                "sum(len(p._post_accumulate_grad_hooks or ()) for p in net.parameters())", stopped
            )
            == "0"
        )


def test_a_layer_is_looked_into_as_a_frame_is() -> None:
    with Session() as session:
        stopped = at_a_layer(session)
        frames = session.frames(stopped)
        mlp, block = frames[0]["id"], frames[1]["id"]
        # The names of the layer, and those that its forward has there.
        assert session.evaluate("type(self).__name__", stopped, "watch") == "'Mlp'"
        assert session.evaluate("[inputs[0] is x, inputs['x'] is x]", stopped) == "[True, True]"
        assert session.evaluate("list(h.shape)", stopped, "hover") == "[2, 8]"
        assert "not defined" in session.refused(
            "evaluate", expression="output", frameId=mlp, context="watch"
        )
        value = session.request("evaluate", expression="y", frameId=block, context="watch")
        assert value["variablesReference"] > 0  # expanded by debugpy, as any value
        children = session.request("variables", variablesReference=value["variablesReference"])
        assert any(row["name"] == "shape" for row in children["variables"])
        # Assignments: to attributes, and to the locals of the running forward.
        assert (
            session.request("setExpression", expression="self.note", value="7", frameId=mlp)[
                "value"
            ]
            == "7"
        )
        session.evaluate("h = h * 0 + 3", stopped)
        assert session.evaluate("h.unique().tolist()", stopped) == "[3.0]"
        labels = [
            item["label"]
            for item in session.request(
                "completions", frameId=mlp, text="inputs[0]; self.u", column=18
            )["targets"]
        ]
        assert "up" in labels and "act" not in labels
        targets = session.request("stepInTargets", frameId=frames[2]["id"])["targets"]
        assert [item["label"] for item in targets] == ["layers (ModuleList)", "head (Linear)"]
        # Scopes.
        assert list(scope(session, stopped, "Inputs")) == ["x"]
        assert scope(session, stopped, "Outputs")["output"].startswith("'not there yet")
        assert next(iter(scope(session, stopped, "Parameters", 2))) == "layers.0.norm.weight"
        assert "cpu grad | µ " in scope(session, stopped, "Statistics")["x"]
        # The frames are dead once the program has gone on.
        reference = session.request("scopes", frameId=mlp)["scopes"][0]["variablesReference"]
        after = session.step("stepOut", stopped)
        assert (
            session.evaluate(
                "output.sum().item() == (self.down(torch.full((2, 8), 3.0))).sum().item()", after
            )
            == "True"
        )
        assert "gone on" in session.refused("scopes", frameId=mlp)
        assert "gone on" in session.refused("variables", variablesReference=reference)
        assert "gone on" in session.refused("evaluate", expression="self", frameId=mlp)


def test_lines_and_layers_take_turns() -> None:
    with Session() as session:
        session.launch(BLOCKS, filters=[], breakpoints={str(BLOCKS): [line_of(BLOCKS, CALL)]})
        session.stopped()
        no_breakpoints(session, BLOCKS)
        session.console("tp step layer")
        stopped = session.step("stepIn", session.stopped())
        assert stopped["description"] == "Entering layers.0 (Block)"
        assert session.console("tp step line") == "stepping by lines"
        line = session.stopped()
        assert (line["reason"], line["threadId"]) == ("step", 1)
        assert session.top(line) == (BLOCKS.name, line_of(BLOCKS, "x = layer(x)"))
        line = session.step("stepIn", line)
        assert session.top(line) == (BLOCKS.name, line_of(BLOCKS, "y = self.norm(x)"))
        line = session.step("next", line)
        assert session.top(line) == (BLOCKS.name, line_of(BLOCKS, "y = self.mlp(y)"))
        # A click on the layer thread in the editor is enough: it steps from where the program is.
        thread = layer_thread(session)
        assert thread is not None
        frames = session.request("stackTrace", threadId=thread, startFrame=0, levels=1)
        assert [frame["name"] for frame in frames["stackFrames"]] == ["layers.0 (Block)"]
        session.request("next", threadId=thread)
        assert session.stopped()["description"] == "Entering layers.0.mlp (Mlp)"
        # The line step that ends a layer step: a breakpoint on the way.
        session.request(
            "setBreakpoints",
            source={"path": str(BLOCKS)},
            breakpoints=[{"line": line_of(BLOCKS, DEEP)}],
        )
        session.request("stepOut", threadId=thread)
        assert session.stopped()["reason"] == "breakpoint"
        no_breakpoints(session, BLOCKS)
        session.request("continue", threadId=1)
        assert session.exit_code() == 0


@pytest.mark.parametrize(
    "client", [PLAIN, {**VSCODE, "supportsVariableType": False}], ids=["plain", "no types"]
)
def test_every_id_of_the_layer_thread_is_answered(client: dict[str, Any]) -> None:
    with Session(client=client) as session:
        session.launch(BLOCKS, filters=[], breakpoints={str(BLOCKS): [line_of(BLOCKS, DEEP)]})
        session.stopped()
        no_breakpoints(session, BLOCKS)
        thread = layer_thread(session)
        assert thread is not None
        frames = session.request("stackTrace", threadId=thread)
        assert frames["totalFrames"] == 3
        rest = session.request("stackTrace", threadId=thread, startFrame=1, levels=20)
        assert rest["stackFrames"] == frames["stackFrames"][1:]
        session.request("pause", threadId=thread)  # it is paused
        for command, arguments in {
            "goto": {"targetId": 1},
            "restartFrame": {"frameId": frames["stackFrames"][0]["id"]},
            "terminateThreads": {},
        }.items():
            answer = session.answer(session.send(command, threadId=thread, **arguments))
            assert command == "terminateThreads" or not answer["success"]
        # A step in that is aimed at a child.
        targets = session.request("stepInTargets", frameId=frames["stackFrames"][0]["id"])[
            "targets"
        ]
        down = next(item["id"] for item in targets if item["label"].startswith("layers.0.mlp.down"))
        session.request("stepIn", threadId=thread, targetId=down)
        stopped = session.stopped()
        assert stopped["description"] == "Entering layers.0.mlp.down (Linear)"
        answer = session.request("continue", threadId=thread)
        assert answer["allThreadsContinued"] is True
        assert session.exit_code() == 0


def test_run_lists_the_layers_of_a_step(tmp_path: Path) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tensorpoint", "run", "--step", "layers", *arguments]
        return subprocess.run(
            command,
            check=False,
            env=adapter_environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    result = run("--json", str(BLOCKS))
    assert result.returncode == 0, result.stderr
    events = [json.loads(line) for line in result.stdout.splitlines()]
    phases = [event["phase"] for event in events]
    assert phases.count("entry") == phases.count("exit") == 14
    assert phases.count("backward entry") == 14
    assert phases[-2:] == ["update", "updated"]
    assert events[1] == {
        "path": "layers.0",
        "type": "Block",
        "phase": "entry",
        "depth": 2,
        "inputs": [{"name": "x", "dtype": "float32", "shape": [2, 4]}],
        "outputs": [],
    }
    backward = [event["path"] for event in events if event["phase"] == "backward entry"]
    assert backward[:4] == ["", "head", "layers.1", "layers.1.mlp"]
    goes_on = run("--on-stop", "continue", str(BLOCKS))
    assert goes_on.returncode == 0
    assert "    entry layers.0.norm (LayerNorm)  input float32[2, 4]" in goes_on.stdout
    assert goes_on.stdout.count("(root) (Net)") == 4 and "result" in goes_on.stdout
    refused = run("--on", "nonfinite", str(BLOCKS))
    assert refused.returncode == 2 and "without --on" in refused.stderr

"""The other ways to set a tensorpoint, and that the set changes while the program runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, eventually, line_of
from tests.protocol.samples import GATE, LAYERS, LAYERS_FOREVER

pytestmark = pytest.mark.usefixtures("resident_process")

# The launch configuration -------------------------------------------------------------------------


def test_launch_tensorpoints_stop_without_a_filter(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],  # a client that knows nothing of the filters made from the configuration
            tensorpoints=["layer:b if step == 2", "layer:a if step == 3"],
            **STUBBED,
        )
        for module, step in (("b", 2), ("a", 3)):
            stopped = session.stopped()
            stop = stopped["tensorpoint"]
            assert (stop["module"], stop["step"]) == (module, step)
            assert stop["condition"] == f"layer:{module} if step == {step}"
            session.resume(stopped)
        assert session.exit_code() == 0


def test_launch_tensorpoints_become_filters_that_can_be_switched_off(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.start(
            "launch",
            program=str(program),
            console="internalConsole",
            tensorpoints=["layer:a if step == 1", "layer:b if step == 1"],
            **STUBBED,
        )
        order = [event["event"] for event in session.events()]
        assert order.index("capabilities") < order.index("initialized")
        (announced,) = session.seen("capabilities")
        filters = announced["capabilities"]["exceptionBreakpointFilters"]
        assert [item["filter"] for item in filters] == [
            *("raised", "uncaught", "userUnhandled"),
            *("nonfinite", "grad_norm", "entropy_shift", "tensorpoint"),
            *("tensorpoint.0", "tensorpoint.1"),
        ]
        assert filters[7]["label"] == "layer:a if step == 1" and filters[7]["default"] is True
        answer = session.configure(filters=["tensorpoint.1"])
        (item,) = answer["breakpoints"]
        assert item["verified"] is True
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "b"
        assert stopped["hitBreakpointIds"] == [item["id"]]
        # All off, as when the last box is unticked: then none of them stops.
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 1


def test_the_condition_of_a_launch_filter_can_be_edited(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            filter_options=[{"filterId": "tensorpoint.0", "condition": "layer:a if step == 3"}],
            tensorpoints=["layer:b if step == 1"],
            **STUBBED,
        )
        stopped = session.stopped()
        assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("a", 3)
        session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 1


def test_invalid_launch_tensorpoints_are_refused_one_by_one_and_the_rest_holds(
    write: Write,
) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            tensorpoints=["nonfinit()", "layer:b if step == 1", "step <"],
            **STUBBED,
        )
        important = session.output("important")
        assert "nonfinit()\n^" in important and "nonfinite" in important
        assert "step <\n" in important
        names = [
            item["filter"]
            for item in session.seen("capabilities")[0]["capabilities"][
                "exceptionBreakpointFilters"
            ]
        ]
        assert names[7:] == ["tensorpoint.1"]
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "b"
        session.resume(stopped)
        assert session.exit_code() == 0


def test_launch_tensorpoints_of_a_wrong_type_fail_the_launch_with_an_example() -> None:
    with Session() as session:
        session.initialize()
        for wrong in ("nonfinite()", {"a": 1}, [1], 3, [None], True):
            message = session.refused(
                "launch", code="pass", console="internalConsole", tensorpoints=wrong
            )
            assert '"tensorpoints": [' in message
        # The session is still usable.
        session.launch(code="pass")
        assert session.exit_code() == 0


# The console --------------------------------------------------------------------------------------


def test_tp_commands_set_list_and_remove(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=["nonfinite"],
            functions=[{"name": "layer:b", "condition": "step == 0"}],
            **STUBBED,
        )
        stopped = session.stopped()
        said = session.console("tp on layer:a if step == 2")
        number = said.partition(":")[0]
        assert said == f"{number}: layer:a if step == 2"
        listing = session.console("tp list").splitlines()
        assert f"{number}: layer:a if step == 2  (console)" in listing
        assert len(listing) == 3 and 'nonfinite("*")' in listing[0]
        assert session.console("tp on layer:a if step == 2") == said  # once more: the same one
        other = session.evaluate("tp on layer:a if step == 1", stopped)
        assert session.console(f"tp off {other.partition(':')[0]}") == "off: layer:a if step == 1"
        session.resume(stopped)
        stopped = session.stopped()
        assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("a", 2)
        assert session.console("tp off all") == "no tensorpoint is set"
        assert session.console("tp list") == "no tensorpoint is set"
        session.resume(stopped)
        assert session.exit_code() == 0


def test_what_is_set_before_a_continue_holds_after_it(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(program, filters=[], functions=[{"name": "layer:a"}], **STUBBED)
        stopped = session.stopped()
        for i in range(30):  # without waiting for an answer
            session.send("evaluate", expression=f"tp on layer:x{i}", context="repl")
        session.send("setFunctionBreakpoints", breakpoints=[{"name": "layer:b"}])
        session.resume(stopped)
        stopped = session.stopped()
        assert (stopped["tensorpoint"]["module"], stopped["tensorpoint"]["step"]) == ("b", 0)
        for i in range(30):
            session.send("evaluate", expression=f"tp on layer:y{i}", context="repl")
        session.send("setFunctionBreakpoints", breakpoints=[])
        session.send("evaluate", expression="tp off all", context="repl")
        session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 2


def test_a_tp_command_that_is_not_understood_says_what_would_be(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(program, filters=[], functions=[{"name": "layer:b"}], **STUBBED)
        stopped = session.stopped()
        for line, expected in (
            ("tp on nonfinit()", "nonfinit()\n^"),
            ("tp on layer:", "path of a module"),
            ("tp on", "tp list"),
            ("tp off 77", "there is no tensorpoint 77"),
            ("tp off x", "there is no tensorpoint x"),
            ("tp off ²", "there is no tensorpoint ²"),
            ("tp wobble 3", "tp help"),
            ("tp off", "tp help"),
        ):
            message = session.refused("evaluate", expression=line, context="repl")
            assert expected in message, line
        assert "tp on CONDITION" in session.console("tp help")
        assert "tp on CONDITION" in session.console("  tp   help  ")
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_line_that_is_python_stays_python(write: Write) -> None:
    program = write("tp = 5\nlist_of = [1]\nprint(tp)  # here\n")
    with Session() as session:
        session.launch(
            program, filters=[], breakpoints={str(program): [line_of(program, "# here")]}
        )
        stopped = session.stopped()
        assert session.evaluate("tp", stopped) == "5"
        assert session.evaluate("tp in [5]", stopped) == "True"
        assert session.evaluate("tp if tp else 0", stopped) == "5"
        assert session.evaluate("tp = 7", stopped) == ""
        assert session.evaluate("tp - 1", stopped) == "6"
        # A watch expression or a hover is never a command.
        for context in ("watch", "hover"):
            with_frame = {"frameId": session.frames(stopped)[0]["id"], "context": context}
            message = session.refused("evaluate", expression="tp list", **with_frame)
            assert "SyntaxError" in message or "invalid syntax" in message
        session.resume(stopped)
        assert session.exit_code() == 0


# While the program runs ---------------------------------------------------------------------------


def test_conditions_change_while_the_program_runs(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        session.launch(program, filters=[], **STUBBED)
        eventually(lambda: "step 3" in session.output("stdout"), "step 3")
        session.request("setFunctionBreakpoints", breakpoints=[{"name": "layer:b"}])
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "b"
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        session.console("tp on layer:a")
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "a"
        session.console("tp off all")
        session.resume(stopped)
        count = session.output("stdout").count("step")
        eventually(lambda: session.output("stdout").count("step") > count + 5, "five more steps")
        assert len(session.seen("stopped")) == 2
        program.with_suffix(".end").touch()
        assert session.exit_code() == 0


def test_the_last_of_many_changes_holds(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        session.launch(program, filters=[], **STUBBED)
        eventually(lambda: "step 3" in session.output("stdout"), "step 3")
        numbers: list[int] = []
        for i in range(40):
            numbers += [
                session.send("setFunctionBreakpoints", breakpoints=[{"name": f"layer:x{i}"}]),
                session.send("evaluate", expression=f"tp on layer:y{i}", context="repl"),
            ]
        numbers += [
            session.send("evaluate", expression="tp off all", context="repl"),
            session.send("setFunctionBreakpoints", breakpoints=[{"name": "layer:b"}]),
        ]
        for number in numbers:
            assert session.answer(number)["success"]
        stopped = session.stopped()
        assert stopped["tensorpoint"]["condition"] == "layer:b"
        assert session.console("tp list").endswith(": layer:b  (function)")
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.resume(stopped)
        program.with_suffix(".end").touch()
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 1


def test_sending_the_same_filters_again_does_not_fire_again_and_none_is_off(write: Write) -> None:
    program = write(GATE)
    with Session() as session:
        first = session.launch(program)
        stopped = session.stopped()
        assert stopped["tensorpoint"]["step"] == 1
        for _ in range(2):
            again = session.request("setExceptionBreakpoints", filters=["nonfinite"])
            assert again["breakpoints"] == first["breakpoints"]
        # Another one is added beside it, as a client does that sends its whole list.
        session.request(
            "setExceptionBreakpoints",
            filters=["nonfinite"],
            filterOptions=[{"filterId": "tensorpoint", "condition": 'nonfinite("nothing")'}],
        )
        session.resume(stopped)
        stopped = session.stopped()
        # Steps 2 and 3 are still NaN at the same layer; 4 is not, 5 is again.
        assert stopped["tensorpoint"]["step"] == 5
        # Switched off, step 7 is nothing to stop at.
        session.request("setExceptionBreakpoints", filters=["uncaught"])
        session.resume(stopped)
        assert session.exit_code() == 0
        assert len(session.seen("stopped")) == 2


def test_a_condition_combines_the_metric_with_the_step(write: Write) -> None:
    program = write(GATE)
    with Session() as session:
        answer = session.launch(
            program,
            filters=[],
            filter_options=[
                {"filterId": "nonfinite", "condition": "lin"},
                {"filterId": "tensorpoint", "condition": 'nonfinite("gate") and step >= 3'},
            ],
        )
        stopped = session.stopped()
        stop = stopped["tensorpoint"]
        assert (stop["module"], stop["step"]) == ("gate", 3)
        assert stopped["hitBreakpointIds"] == [answer["breakpoints"][1]["id"]]
        assert Path(stop["file"]) == program
        session.resume(stopped)
        stopped = session.stopped()
        assert stopped["tensorpoint"]["step"] == 5
        session.request("setExceptionBreakpoints", filters=[])
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_plan_of_many_conditions_is_accepted_quickly(write: Write) -> None:
    program = write(LAYERS)
    options = [
        {"filterId": "tensorpoint", "condition": f'nonfinite("model.{i}.*") and step > {i}'}
        for i in range(100)
    ]
    with Session() as session:
        session.start("launch", program=str(program), console="internalConsole", **STUBBED)
        begun = time.monotonic()
        answer = session.configure(filters=[], filter_options=options)
        assert time.monotonic() - begun < 20
        assert all(item["verified"] for item in answer["breakpoints"])
        assert session.exit_code() == 0

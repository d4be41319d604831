"""`setExceptionBreakpoints` and `setFunctionBreakpoints` carry ours and debugpy's side by side."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, line_of
from tests.protocol.samples import LAYERS, RAISES

pytestmark = pytest.mark.usefixtures("resident_process")

OURS = [{"filterId": "nonfinite", "condition": "model.layers.*"}, {"filterId": "nonfinite"}]


def start(session: Session, code: str = "pass") -> None:
    session.start("launch", code=code, console="internalConsole")


def test_the_filters_are_debugpys_and_then_ours() -> None:
    with Session() as session:
        capabilities = session.initialize()
    filters = capabilities["exceptionBreakpointFilters"]
    assert [item["filter"] for item in filters] == [
        "raised",
        "uncaught",
        "userUnhandled",
        "nonfinite",
        "grad_norm",
        "entropy_shift",
        "tensorpoint",
    ]
    nonfinite, *others, condition = filters[3:]
    assert not any(item["default"] for item in others)
    assert nonfinite["label"] == "NaN/Inf" and nonfinite["default"] is True
    assert condition["label"] == "Tensor condition" and condition["default"] is False
    assert nonfinite["supportsCondition"] and condition["supportsCondition"]
    assert capabilities["supportsExceptionFilterOptions"] is True
    assert capabilities["supportsFunctionBreakpoints"] is True
    assert capabilities["supportsExceptionInfoRequest"] is True


@pytest.mark.parametrize(
    ("as_options", "ours"),
    [(False, []), (True, []), (True, OURS)],
    ids=["filters, ours off", "filterOptions, ours off", "filterOptions, ours on"],
)
def test_an_uncaught_exception_stops(write: Write, as_options: bool, ours: list[Any]) -> None:
    program = write(RAISES)
    with Session() as session:
        if as_options:  # as VS Code sends it once supportsExceptionFilterOptions is advertised
            answer = session.launch(
                program, filters=[], filter_options=[*ours, {"filterId": "uncaught"}]
            )
        else:
            answer = session.launch(program, filters=["uncaught"])
        assert [item["verified"] for item in answer["breakpoints"]] == [True] * (len(ours) + 1)
        stopped = session.stopped()
        assert stopped["reason"] == "exception"
        assert "tensorpoint" not in stopped
        assert session.top(stopped) == ("program.py", line_of(program, "# uncaught"))
        info = session.request("exceptionInfo", threadId=stopped["threadId"])
        assert "ValueError" in info["exceptionId"]
        assert "nobody catches this" in info["description"]
        session.resume(stopped)
        assert session.exit_code() == 1
        assert len(session.seen("stopped")) == 1


def test_a_raised_filter_in_filter_options_stops_at_each_raise(write: Write) -> None:
    program = write(RAISES)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            filter_options=[
                {"filterId": "nonfinite", "condition": "*.mlp"},
                {"filterId": "raised"},
            ],
        )
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "# caught")
        # Taken away while it stands there: the other one isn't stopped at any more.
        answer = session.request(
            "setExceptionBreakpoints", filters=[], filterOptions=[{"filterId": "nonfinite"}]
        )
        assert len(answer["breakpoints"]) == 1
        session.resume(stopped)
        assert session.exit_code() == 1
        assert len(session.seen("stopped")) == 1


def test_answers_come_in_the_clients_order() -> None:
    with Session() as session:
        start(session)
        answer = session.configure(
            filters=["raised", "nonfinite", "uncaught"],
            filter_options=[
                {"filterId": "tensorpoint", "condition": "nonfinit()"},
                {"filterId": "userUnhandled"},
                {"filterId": "tensorpoint", "condition": 'nonfinite("a.*") and step > 3'},
            ],
        )
        items = answer["breakpoints"]
        assert [item["verified"] for item in items] == [True, True, True, False, True, True]
        ids = [item.get("id") for item in items]
        assert ids[1] is not None and ids[5] is not None and ids[1] != ids[5]
        assert session.exit_code() == 0


REFUSED = [
    ("tensorpoint", "nonfinit()", "nonfinite", "nonfinit()\n^"),
    ("tensorpoint", "nonfinite() and", "", "nonfinite() and"),
    ("tensorpoint", "nonfinite() and step < 0", "step", "^"),
    ("tensorpoint", "__import__('os')", "", "__import__('os')\n^"),
    ("grad_norm", "> -1 and > 3", "", "^"),
    ("grad_norm", "", "write a threshold", ""),
    ("entropy_shift", "< 0", "at least 0", "^"),
    ("nonfinite", '"*.mlp" > ', "", "^"),
    ("tensorpoint", "", "write a condition", ""),
]


def test_a_refused_condition_says_why_in_its_row_and_in_the_console() -> None:
    with Session() as session:
        start(session)
        for name, condition, reason, caret in REFUSED:
            (item,) = session.request(
                "setExceptionBreakpoints",
                filters=[],
                filterOptions=[{"filterId": name, "condition": condition}],
            )["breakpoints"]
            assert item["verified"] is False
            assert "id" not in item
            message = item["message"]
            assert reason in message
            assert caret in message
            if condition:
                lines = message.splitlines()
                assert condition.strip() in lines[-2] and lines[-1].strip() == "^", message
            assert message in session.output("important")
        session.configure(filters=[])
        assert session.exit_code() == 0


def test_function_breakpoints_are_merged_in_the_clients_order(write: Write) -> None:
    program = write("def f():\n    return 1\n\n\ndef g():\n    return 2\n\nf()\ng()\n")
    wanted = [
        {"name": "layer:model.a"},
        {"name": "f"},
        {"name": "layer:"},
        {"name": "layer:model.b", "condition": "step >"},
        {"name": "g", "condition": "1 + 1 == 2"},
        {"name": "layer:model.*", "condition": "step > 3"},
    ]
    with Session() as session:
        session.start("launch", program=str(program), console="internalConsole")
        items = session.request("setFunctionBreakpoints", breakpoints=wanted)["breakpoints"]
        # Whether there are such layers is known once a model is called.
        assert [item["verified"] for item in items] == [False, True, False, False, True, False]
        assert "once a model has been called" in items[0]["message"]
        assert "path of a module" in items[2]["message"]
        assert items[3]["message"].endswith("^")
        assert items[3]["message"] in session.output("important")
        # Clients send the whole list again with each change; what they know is not said again.
        before = session.output("important")
        wanted.append({"name": "tensorpoint:grad_norm() >", "condition": ""})
        items = session.request("setFunctionBreakpoints", breakpoints=wanted)["breakpoints"]
        assert items[6]["verified"] is False
        said = session.output("important").removeprefix(before)
        assert items[6]["message"] in said and items[3]["message"] not in said
        session.configure(filters=[])
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "def f")
        session.resume(stopped)
        stopped = session.stopped()
        assert session.top(stopped)[1] == line_of(program, "def g")
        # Taking ours away leaves debugpy's, and none leaves none.
        assert session.request("setFunctionBreakpoints", breakpoints=[])["breakpoints"] == []
        session.resume(stopped)
        assert session.exit_code() == 0


def test_a_layer_stop_with_and_without_condition(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=[{"name": "layer:a", "condition": "step == 1"}, {"name": "layer:b"}],
            **STUBBED,
        )
        steps: list[tuple[str, int]] = []
        while len(steps) < 5:
            stopped = session.stopped()
            stop = stopped["tensorpoint"]
            assert stopped["reason"] == "function breakpoint"
            assert stop["event"] == "layer.entry"
            assert session.top(stopped) == (
                "program.py",
                line_of(program, f"call {stop['module']}"),
            )
            steps.append((stop["module"], stop["step"]))
            session.resume(stopped)
        assert steps == [("b", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 3)]
        assert session.exit_code() == 0


def test_a_layer_condition_counts_steps_and_a_glob_matches_the_root_too(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=[{"name": "layer:*", "condition": "step > 2 and optimizer_step == 0"}],
            **STUBBED,
        )
        seen: list[str] = []
        while len(seen) < 3:
            stopped = session.stopped()
            seen.append(stopped["tensorpoint"]["module"])
            session.resume(stopped)
        assert seen == ["", "a", "b"]
        assert session.exit_code() == 0

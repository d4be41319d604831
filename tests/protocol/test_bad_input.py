"""Whatever a client sends, it gets an answer or a reason, and nothing is left running."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, line_of
from tests.protocol.samples import LAYERS, LAYERS_FOREVER

pytestmark = pytest.mark.usefixtures("resident_process")

# The stream ---------------------------------------------------------------------------------------

GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a header without end": b"x" * 3_000_000,
    "many headers": b"X-Header: 1\r\n" * 20_000,
    "a message of 1 TB": b"Content-Length: 1099511627776\r\n\r\n{",
    "a negative length": b"Content-Length: -5\r\n\r\n{}",
    "no JSON": b"Content-Length: 5\r\n\r\nhello",
    "a list": b"Content-Length: 2\r\n\r\n[]",
    "binary": bytes(range(256)) * 8,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_answered_with_a_reason_and_the_end(garbage: bytes) -> None:
    with Session() as session:
        session.write_raw(garbage)
        session.expect("terminated")
        assert "not the Debug Adapter Protocol" in session.output("important")
        session.wait_closed()
        assert session.exit_status() == 0
        session.expect_no_process()


def test_debugpy_is_heard_before_the_client_has_said_a_word() -> None:
    with Session() as session:
        session.expect("debugpySockets")
        session.request("disconnect")
        session.wait_closed()
        session.expect_no_process()


@pytest.mark.parametrize("half", [b"Content-Length: 100\r\n\r\n{", b"Content-Le"])
def test_a_client_that_goes_in_the_middle_of_a_message_leaves_nothing(half: bytes) -> None:
    with Session() as session:
        session.initialize()
        session.write_raw(half)
        session.close_input()
        session.wait_closed()
        assert session.exit_status() == 0
        session.expect_no_process()


def test_garbage_in_a_running_session_ends_the_program(write: Write) -> None:
    program = write(LAYERS_FOREVER)
    with Session() as session:
        session.launch(program, filters=[], **STUBBED)
        session.expect("output", category="stdout")
        session.write_raw(b"Content-Length: 3\r\n\r\n???")
        session.expect("terminated")
        assert "not the Debug Adapter Protocol" in session.output("important")
        session.wait_closed()
        session.expect_no_process()


def test_a_large_message_arrives(write: Write) -> None:
    program = write("print('x' * 3_000_000)\n")
    with Session() as session:
        session.launch(program, filters=[])
        session.exit_code()
        assert len(session.output("stdout")) >= 3_000_000
    with Session() as session:
        session.launch(code="pass", stopOnEntry=True)
        stopped = session.stopped()
        big = "len('" + "y" * 2_000_000 + "')"
        assert session.evaluate(big, stopped) == "2000000"
        session.resume(stopped)
        assert session.exit_code() == 0


# Messages -----------------------------------------------------------------------------------------

#: (command, arguments) that no client should send; each must be answered all the same.
HUGE = 10**400  # JSON knows no limits; more than a float or an id can hold
VALUES: list[Any] = [None, True, -1, 0, 3.5, HUGE, "x", "1", [], [1], {}, {"a": 1}]
FIELDS = {
    "setExceptionBreakpoints": ["filters", "filterOptions"],
    "setFunctionBreakpoints": ["breakpoints"],
    "stackTrace": ["threadId"],
    "exceptionInfo": ["threadId"],
    "scopes": ["frameId"],
    "variables": ["variablesReference"],
    "evaluate": ["expression", "context"],
}
ITEMS = {
    ("setExceptionBreakpoints", "filters"): ["nonfinite", "tensorpoint.0", "tensorpoint.x", "?"],
    ("setExceptionBreakpoints", "filterOptions"): [
        {"filterId": "nonfinite", "condition": value} for value in VALUES
    ]
    + [{"filterId": value} for value in VALUES]
    + [{}],
    ("setFunctionBreakpoints", "breakpoints"): [
        {"name": "layer:x", "condition": value} for value in VALUES
    ]
    + [{"name": value} for value in VALUES]
    + [{}, {"name": "layer:["}, {"name": "layer:\0"}],
}
DEEP = [
    "tp " + "(" * 5000,
    "tp " + "-" * 50_000 + "1",
    "tp on " + "(" * 5000 + "step" + ")" * 5000 + " > 1",
    "tp on " + "not " * 20_000 + "nonfinite()",
    "tp on " + "nonfinite() and " * 5000 + "nonfinite()",
    "tp \0",
    "tp on \0",
    "tp on nonfinite('" + "*" * 2000 + "x')",
    "tp\ton nonfinite()",
    "tp ",
    "tp",
]


def test_malformed_arguments_are_answered_and_the_session_lives_on(write: Write) -> None:
    program = write(LAYERS)
    with Session() as session:
        session.launch(
            program,
            filters=[],
            functions=[{"name": "layer:b", "condition": "step == 1"}],
            **STUBBED,
        )
        stopped = session.stopped()
        requests: list[tuple[str, Any]] = []
        for command, fields in FIELDS.items():
            requests += [(command, value) for value in VALUES]
            for field in fields:
                requests += [(command, {field: value}) for value in VALUES]
                items = ITEMS.get((command, field), [])
                requests += [(command, {field: [item]}) for item in [*items, None, [], 7]]
        requests += [("evaluate", {"expression": text, "context": "repl"}) for text in DEEP]
        sent = [(session.send_raw(command, given), command, given) for command, given in requests]
        for number, command, given in sent:
            try:
                session.answer(number)
            except AssertionError as error:
                pytest.fail(f"{command} {str(given)[:200]} got no answer: {error}")
        # It still stands there and works.
        assert session.top(stopped)[1] == line_of(program, "# call b")
        assert session.evaluate("y", stopped) == "2"
        session.request("setFunctionBreakpoints", breakpoints=[])
        session.request("setExceptionBreakpoints", filters=[])
        session.console("tp off all")
        session.resume(stopped)
        assert session.exit_code() == 0


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("launch", [{"rules": 5}, {"tensorpoints": 5}, {"tensorpoints": [5]}]),
        (
            "attach",
            [
                {"connect": 5},
                {"connect": []},
                {"connect": {}},
                {"connect": {"port": "x"}},
                {"connect": {"port": None}},
                {"connect": {"port": 99999999}},
                {"connect": {"host": 5, "port": 1}},
                {"connect": {"host": "no such host", "port": 1}},
                {"port": []},
                {"port": HUGE},
                {"connect": {"host": "127.0.0.1", "port": 1}},
            ],
        ),
    ],
)
def test_a_start_request_that_we_refuse_may_be_sent_again(
    command: str, refused: list[dict[str, Any]]
) -> None:
    with Session() as session:
        session.initialize()
        for given in [*VALUES[1:-2], *refused]:
            response = session.answer(session.send_raw(command, given))
            assert not response["success"], given
            assert response["message"]
        session.launch(code="pass")
        assert session.exit_code() == 0


def test_messages_that_are_no_requests_are_ignored() -> None:
    with Session() as session:
        session.initialize()
        for message in (
            {},
            {"type": "request"},
            {"type": "request", "command": None},
            {"type": "request", "command": ["launch"], "seq": 5},
            {"type": "request", "command": {}, "arguments": {}},
            {"type": "request", "command": 5},
            {"type": "event"},
            {"type": "event", "event": "noSuchEvent", "body": {}},
            {"type": "event", "event": ["stopped"]},
            {"type": "response"},
            {"type": "response", "request_seq": 12345, "success": True, "command": "x"},
            {"type": "response", "request_seq": [1], "success": True, "command": "x"},
            {"type": "response", "request_seq": None},
            {"type": ["request"], "command": "threads"},
            {"type": None},
        ):
            session.wire.write(message)
        session.launch(code="pass")
        assert session.exit_code() == 0


def test_a_request_without_a_number_is_answered_or_ignored_but_does_no_harm() -> None:
    with Session() as session:
        for message in (
            {"type": "request", "command": "threads"},
            {"type": "request", "command": "initialize", "arguments": {"adapterID": "x"}},
            {"type": "request", "command": "loadedSources", "seq": "one"},
        ):
            session.wire.write(message)
        session.initialize()
        session.close_input()
        session.wait_closed()
        session.expect_no_process()


def test_unknown_requests_fail_and_requests_that_wedge_debugpy_are_answered() -> None:
    wedging = (
        *("cancel", "restart", "loadedSources", "breakpointLocations", "writeMemory"),
        *("disassemble", "restartFrame", "setInstructionBreakpoints", "terminateThreads"),
    )
    with Session() as session:
        session.start("launch", code="x = 1\nprint(x)", console="internalConsole", stopOnEntry=True)
        session.configure(filters=[])
        stopped = session.stopped()
        for command in wedging:
            assert f"{command} is not supported" in session.refused(command)
            assert session.request("threads")["threads"]
        for command in ("stepBack", "reverseContinue"):  # there is no layer to go back to
            assert session.refused(command)
        assert "name" in session.refused("dataBreakpointInfo")
        assert "memoryReference" in session.refused("readMemory")
        assert "breakpoints" in session.refused("setDataBreakpoints", breakpoints=3)
        assert session.request("setDataBreakpoints") == {"breakpoints": []}
        assert session.refused("noSuchRequest")
        assert session.refused("initialize", adapterID="again")
        assert session.refused("launch", code="pass")
        session.resume(stopped)
        assert session.exit_code() == 0


def test_requests_before_initialize_are_refused() -> None:
    with Session() as session:
        for command in ("launch", "attach", "threads", "evaluate", "setBreakpoints"):
            assert "initialize first" in session.refused(command)
        session.launch(code="pass")
        assert session.exit_code() == 0


@pytest.mark.parametrize("arguments", [None, {}], ids=["null", "{}"])
def test_disconnect_is_answered_in_any_state(arguments: dict[str, Any] | None) -> None:
    with Session() as session:
        # A client whose user changed their mind before anything began.
        assert session.answer(session.send_raw("disconnect", arguments))["success"]
        session.wait_closed()
        session.expect_no_process()
    with Session() as session:
        session.initialize()
        assert session.answer(session.send_raw("disconnect", arguments))["success"]
        session.wait_closed()
        session.expect_no_process()

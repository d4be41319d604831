"""Clients that offer and ask for different things: stops, steps and child sessions work in each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import PLAIN, VSCODE, Message, Session, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

FAMILY = Path(__file__).parent / "layers" / "family.py"
INSIDE = "# inside of a block"


@dataclass(frozen=True)
class Client:
    """What a client says of itself, and how it asks."""

    capabilities: Message
    handles: tuple[str, ...] = ("startDebugging",)
    #: Added to every request for a step.
    step: Message = field(default_factory=dict[str, Any])
    asks_exception_info: bool = False
    #: Added to requests for variables.
    page: Message = field(default_factory=dict[str, Any])
    #: Clients that have no call stack view may never ask for threads.
    asks_threads: bool = True


ALL = {
    **VSCODE,
    "locale": "en",
    "supportsVariablePaging": True,
    "supportsMemoryReferences": True,
    "supportsProgressReporting": True,
    "supportsInvalidatedEvent": True,
    "supportsMemoryEvent": True,
    "supportsArgsCanBeInterpretedByShell": True,
    "supportsANSIStyling": True,
}
CLIENTS = {
    "offers nothing, handles startDebugging": Client(PLAIN, asks_threads=False),
    "offers all, steps by statements": Client(
        ALL,
        step={"granularity": "statement", "singleThread": False},
        asks_exception_info=True,
        page={"start": 0, "count": 100},
    ),
    "steps by instructions of one thread": Client(
        {**VSCODE, "supportsInvalidatedEvent": True},
        step={"granularity": "instruction", "singleThread": True},
        asks_exception_info=True,
    ),
    "declines startDebugging": Client(
        {**VSCODE, "supportsStartDebuggingRequest": False, "supportsVariableType": False},
        handles=(),
        step={"granularity": "line"},
    ),
}
#: Events that a client gets only if it has said that it knows them.
OFFERED = {
    "invalidated": "supportsInvalidatedEvent",
    "memory": "supportsMemoryEvent",
    "progressStart": "supportsProgressReporting",
}


class Steps:
    """One client's way through a session."""

    def __init__(self, session: Session, client: Client) -> None:
        self.session, self.client = session, client

    def step(self, command: str, stopped: Message) -> Message:
        self.session.request(command, threadId=stopped["threadId"], **self.client.step)
        return self.session.stopped()

    def frames(self, stopped: Message) -> list[Message]:
        if self.client.asks_threads:
            threads = self.session.request("threads")["threads"]
            assert stopped["threadId"] in [thread["id"] for thread in threads]
        return self.session.frames(stopped)

    def typed(self, line: str, stopped: Message) -> str:
        """What the console says; it sends the frame that is selected in the call stack."""
        frame = self.frames(stopped)[0]["id"]
        return self.session.request("evaluate", expression=line, frameId=frame, context="repl")[
            "result"
        ]

    def inputs(self, stopped: Message) -> dict[str, str]:
        """The inputs of the innermost layer."""
        top = self.frames(stopped)[0]["id"]
        scopes = self.session.request("scopes", frameId=top)["scopes"]
        reference = next(item["variablesReference"] for item in scopes if item["name"] == "Inputs")
        rows = self.session.request("variables", variablesReference=reference, **self.client.page)[
            "variables"
        ]
        return {row["name"]: row["value"] for row in rows}

    def by_layers(self, stopped: Message) -> None:
        """From a line inside of the first block: over, out, on by lines."""
        assert self.session.top(stopped) == (FAMILY.name, line_of(FAMILY, INSIDE))
        assert self.typed("tp step layer", stopped) == "stepping by layers, at first (Block)"
        stopped = self.session.stopped()
        stopped = self.step("next", stopped)
        assert (stopped["reason"], stopped["description"]) == (
            "step",
            "Entering first.act (Sigmoid)",
        )
        assert [item["name"] for item in self.frames(stopped)] == [
            "first.act (Sigmoid) [entry]",
            "first (Block)",
            "(root) (Net)",
        ]
        assert self.inputs(stopped) == {"input": "f32[1, 4] cpu grad"}
        stopped = self.step("stepOut", stopped)
        assert stopped["description"] == "Leaving first (Block)"
        stopped = self.step("next", stopped)
        assert stopped["description"] == "Entering second (Block)"
        stopped = self.step("stepIn", stopped)
        assert stopped["description"] == "Entering second.up (Linear)"
        assert self.typed("tp step line", stopped) == "stepping by lines"
        stopped = self.session.stopped()
        assert self.session.top(stopped) == (FAMILY.name, line_of(FAMILY, "h = self.up(x)"))
        stopped = self.step("next", stopped)
        assert self.session.top(stopped) == (FAMILY.name, line_of(FAMILY, INSIDE))

    def nan(self, stopped: Message) -> None:
        """All that is to be known is in the stop: not every client asks for more."""
        assert stopped["reason"] == "exception"
        assert "first" in stopped["text"] and "NaN" in stopped["description"] + stopped["text"]
        assert stopped["text"] in self.session.output("console")
        if self.client.asks_exception_info:
            info = self.session.request("exceptionInfo", threadId=stopped["threadId"])
            assert stopped["text"] in info["description"]

    def knows_what_came(self) -> None:
        """No event came that the client has not offered to know."""
        for event, capability in OFFERED.items():
            if not self.client.capabilities.get(capability):
                assert not self.session.seen(event), event


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_stops_steps_and_children_work_in_every_kind_of_client(client: Client) -> None:
    deep = {str(FAMILY): [line_of(FAMILY, INSIDE)]}
    with Session(client=client.capabilities, handles=client.handles) as session:
        steps = Steps(session, client)
        session.launch(FAMILY, filters=["nonfinite"], breakpoints=deep)
        stopped = session.stopped()
        steps.by_layers(stopped)
        session.resume(stopped)

        with session.child(filters=["nonfinite"], breakpoints=deep) as child:
            of_child = Steps(child, client)
            stopped = child.stopped()
            of_child.by_layers(stopped)
            child.resume(stopped)
            child.expect("terminated")
            of_child.knows_what_came()

        stopped = session.stopped()
        session.request("setBreakpoints", source={"path": str(FAMILY)}, breakpoints=[])
        session.resume(stopped)
        steps.nan(session.stopped())
        session.resume(stopped)
        assert session.exit_code() == 0
        steps.knows_what_came()

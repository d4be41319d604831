"""What is armed: breakpoints of all kinds, and the agent that gets them and is asked things."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from ..wire.values import DataRequest
from . import facts, layer_tree, status
from .breakpoints import Refusal, Tensorpoints
from .data import DataBreakpoints
from .injection import AgentError, list_layers, no_grad, sync, values
from .peer import Message, Peer
from .relay import Relay
from .shares import Split, split_filters, split_functions

_log = logging.getLogger(__name__)

#: How long after its debugger is gone a program is told to have ended.
_ENDING_SECONDS = 1.0


class Arming(Relay):
    """The tensorpoints of a session, on their way from the client to the agent."""

    def __init__(self, client: Peer) -> None:
        super().__init__(client)
        self._tensorpoints = Tensorpoints()
        self._data = DataBreakpoints(self._tensorpoints, self._find_value)
        self._agent_running = False
        self._syncing: asyncio.Task[None] | None = None
        #: What was refused of each list when the client last sent it.
        self._refused: dict[str, list[Refusal]] = {}

    async def _carry_out(self, request: Message, work: Awaitable[None]) -> None:
        """Answer a request; what a client sends may fail it but not the session."""
        try:
            await work
        except Exception as error:
            _log.info("%s failed", request["command"], exc_info=True)
            self._client.refuse(request, f"{request['command']}: {error}")

    async def _on_set_exception_breakpoints(self, message: Message) -> None:
        theirs, split, refused = split_filters(message["arguments"], self._tensorpoints.set_filters)
        self._breakpoints_set(message, theirs, split, refused)

    async def _on_set_function_breakpoints(self, message: Message) -> None:
        theirs, split, refused = split_functions(
            message["arguments"], self._tensorpoints.set_functions, self._tensorpoints.unknown
        )
        self._breakpoints_set(message, theirs, split, refused)

    async def _on_set_data_breakpoints(self, message: Message) -> None:
        body, refused = self._data.set(message["arguments"])
        self._tell(message, refused)
        self._sync_plan()
        self._client.respond(message, body)

    def _breakpoints_set(
        self, message: Message, theirs: Message, split: Split, refused: list[Refusal]
    ) -> None:
        self._tell(message, refused)
        self._sync_plan()

        def merge(body: Message) -> None:
            split.refresh(self._tensorpoints.unknown)
            body["breakpoints"] = split.merge(body.get("breakpoints") or [])

        async def answer() -> None:
            if self._syncing is not None:  # the agent says which layers there are
                await self._syncing
            self._pass_on({**message, "arguments": theirs}, merge)

        if self._agent_running and message["command"] == "setFunctionBreakpoints":
            self._spawn(self._carry_out(message, answer()))
        else:
            self._pass_on({**message, "arguments": theirs}, merge)

    def _tell(self, message: Message, refused: list[Refusal]) -> None:
        """VS Code only dims a refused breakpoint's row; say why as well.

        Once: clients send the whole list again with each change of it.
        """
        before = self._refused.get(message["command"], [])
        self._refused[message["command"]] = refused
        for refusal in refused:
            if refusal not in before:
                self._say(refusal)

    def _say(self, refusal: Refusal) -> None:
        self._client.output(f"Tensorpoint: condition refused: {refusal.reason}", "important")

    def _sync_plan(self) -> None:
        if not self._agent_running:
            return
        previous, plan = self._syncing, self._tensorpoints.plan()

        async def send() -> None:
            if previous is not None:
                await previous
            try:
                await sync(self._debugpy, plan)
            except AgentError as error:
                if not await self._is_ending():
                    self._client.output(f"Tensorpoint: not armed: {error}", "important")

        self._syncing = self._spawn(send())

    async def _is_ending(self) -> bool:
        """Whether the program has just ended: it goes before `terminated` comes."""
        try:
            await asyncio.wait_for(self._ended.wait(), _ENDING_SECONDS)
        except asyncio.TimeoutError:  # another class than TimeoutError on Python 3.10
            return False
        return True

    # The agent -----------------------------------------------------------------------------------

    async def _on_facts(self, message: Message) -> None:
        # Not here: a program that doesn't answer must not keep us from reading `disconnect`.
        self._spawn(self._carry_out(message, self._answer_facts(message)))

    async def _answer_facts(self, message: Message) -> None:
        recording = self._tensorpoints.recording
        request = facts.request(message["arguments"])
        if request.record is not None and recording.want("request", request.record):
            self._sync_plan()
        self._client.respond(message, await recording.answer(request, await self._agent()))

    async def _show_facts(self, message: Message, glob: str) -> None:
        text = await self._tensorpoints.recording.table(glob, await self._agent())
        self._client.respond(message, {"result": text, "variablesReference": 0})

    async def _find_value(self, request: DataRequest, agent: Peer) -> Message:
        """What a data breakpoint would be set on. Raises AgentError."""
        return await values(agent, "data", asdict(request))

    async def _watch(self, message: Message, text: str) -> None:
        frame = int(message["arguments"].get("frameId") or 0)
        answer = await self._data.watch(text, frame, await self._agent())
        self._sync_plan()
        self._client.respond(message, {"result": answer, "variablesReference": 0})

    async def _show_no_grad(self, message: Message, glob: str) -> None:
        text = await no_grad(await self._agent(), glob)
        self._client.respond(message, {"result": text, "variablesReference": 0})

    async def _on_layers(self, message: Message) -> None:
        self._spawn(self._carry_out(message, self._answer_layers(message)))

    async def _answer_layers(self, message: Message) -> None:
        body = await layer_tree.answer(message["arguments"], await self._agent())
        self._client.respond(message, body)

    async def _on_status(self, message: Message) -> None:
        self._spawn(self._carry_out(message, self._answer_status(message)))

    async def _answer_status(self, message: Message) -> None:
        agent = await self._agent() if self._agent_running else None
        self._client.respond(message, await status.status(self._tensorpoints, agent))

    async def _on_check(self, message: Message) -> None:
        self._client.respond(message, status.check(message["arguments"]))

    async def _agent(self) -> Peer:
        """The way to the agent, once it has the newest plan. Raises AgentError."""
        if not self._agent_running:
            raise AgentError("there is no agent in this program")
        if self._syncing is not None:
            await self._syncing
        return self._debugpy

    async def _on_agent_event(self, message: Message) -> None:
        body: Message = message.get("body") or {}
        if body.get("kind") == "note":
            self._client.output(f"Tensorpoint: {body.get('text')}", "console")
            return
        if body.get("kind") == "unmatched":
            self._client.output(f"Tensorpoint: {body.get('text')}", "important")
            return
        if body.get("kind") == "listing":
            part = {"events": body["events"], "last": body["last"]}
            self._client.event("tensorpoint/layerEvents", part)
            return
        if body.get("kind") == "layers":
            changed, missing = self._tensorpoints.learn(body["breakpoints"])
            for breakpoint in changed:
                self._client.event("breakpoint", {"reason": "changed", "breakpoint": breakpoint})
            for reason in missing:
                self._client.output(f"Tensorpoint: {reason}", "important")
            return
        _log.warning("the agent reports a fault: %s", body)
        self._client.output(
            f"Tensorpoint: a fault while {body.get('activity')}: {body.get('error')}. It is "
            f"switched off and the program goes on.\n{body.get('traceback', '')}",
            "important",
        )

    async def _on_list_layers(self, message: Message) -> None:
        self._spawn(self._carry_out(message, self._list_layers(message)))

    async def _list_layers(self, message: Message) -> None:
        self._client.respond(message, await list_layers(await self._agent()))

    def _answered_by(
        self, ask: Callable[[Message, Peer], Awaitable[Message]]
    ) -> Callable[[Message], Awaitable[None]]:
        """A request that the agent answers."""

        async def answer(message: Message) -> None:
            self._client.respond(message, await ask(message["arguments"], await self._agent()))

        async def begin(message: Message) -> None:
            # Not here: a program that doesn't answer must not keep us from reading `disconnect`.
            self._spawn(self._carry_out(message, answer(message)))

        return begin

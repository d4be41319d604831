"""A program that is suspended: its stops, threads, frames and values."""

from __future__ import annotations

import logging

from ..wire import Stop
from ..wire.values import DataRequest
from . import console, way
from .arming import Arming
from .injection import AgentError
from .layer_thread import LayerThreads
from .layer_values import name_below
from .peer import Message, Peer
from .stops import Stops, torch_error
from .values import Places

_log = logging.getLogger(__name__)

_ABOUT_A_STOP = "this row tells of the stop: choose the variable or the parameter itself"


class Paused(Arming):
    """Answers for stops that are ours, and adds to what debugpy says of all."""

    def __init__(self, client: Peer) -> None:
        super().__init__(client)
        self._stops = Stops()
        self._places = Places()
        self._layer_threads = LayerThreads(
            client, lambda: self._debugpy, self._resumed, self._places.present
        )

    def _resumed(self) -> None:
        """The program runs: what was numbered at its stop is no more."""
        self._stops.clear()
        self._places.clear()
        self._layer_threads.clear()

    async def _on_stopped(self, message: Message) -> None:
        self._layer_threads.catch_up()
        self._resumed()
        body: Message = message.get("body") or {}
        self._layer_threads.take(body)
        told = self._stops.take(body) or torch_error(body)
        if told is not None:
            self._client.event(
                "output",
                {
                    "category": "console",
                    "output": f"{told.text}\n",
                    "source": {"path": told.file},
                    "line": told.line,
                },
            )
        for output in way.outputs(told.operation) if isinstance(told, Stop) else ():
            self._client.event("output", output)
        self._client.send(message)

    async def _on_continued(self, message: Message) -> None:
        self._layer_threads.catch_up()
        if not self._layer_threads.swallow_continued():
            self._resumed()
            self._client.send(message)

    async def _on_threads(self, message: Message) -> None:
        self._spawn(self._carry_out(message, self._list_threads(message)))

    async def _list_threads(self, message: Message) -> None:
        response = await self._debugpy.request("threads", message["arguments"])
        if response.get("success") and self._agent_running:
            try:
                await self._layer_threads.add_threads(response["body"])
            except AgentError as error:  # the threads are there all the same
                _log.info("no layers: %s", error)
        self._client.send({**response, "request_seq": message["seq"]})

    async def _on_back_by_lines(self, message: Message) -> None:
        self._client.refuse(
            message,
            'lines have no step back: it goes by layers, on the thread named "layers of ..." or '
            "by tp step back in the debug console",
        )

    async def _on_step(self, message: Message) -> None:
        self._spawn(self._carry_out(message, self._take_step(message)))

    async def _take_step(self, message: Message) -> None:
        how = str(message["arguments"].get("how"))
        if how not in console.STEPS:
            raise ValueError(f"how must be one of {', '.join(console.STEPS)}")
        await self._agent()
        await self._layer_threads.take_step(message, how)

    async def _on_stack_trace(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        thread = int(arguments.get("threadId", 0))
        start, levels = (int(arguments.get(name) or 0) for name in ("startFrame", "levels"))
        self._pass_on(message, lambda body: self._stops.note_stack(thread, start, levels, body))

    async def _on_exception_info(self, message: Message) -> None:
        body = self._stops.exception_info(message["arguments"])
        if body is None:
            self._pass_on(message)
        else:
            self._client.respond(message, body)

    async def _on_scopes(self, message: Message) -> None:
        frame = int(message["arguments"].get("frameId", 0))
        if self._stops.is_past(frame):
            self._client.respond(message, {"scopes": []})
            return
        scope = self._stops.scope(frame)

        def put_first(body: Message) -> None:
            if scope is not None:
                body["scopes"] = [scope, *(body.get("scopes") or [])]

        self._pass_on(message, put_first)

    async def _on_variables(self, message: Message) -> None:
        reference = int(message["arguments"].get("variablesReference", 0))
        if self._stops.owns(reference):
            self._spawn(self._carry_out(message, self._answer_variables(message, reference)))
        else:
            self._pass_on(message, self._present_variables)

    def _present_variables(self, body: Message) -> None:
        self._places.take_out_of_all(body)
        name_below(body)

    async def _answer_variables(self, message: Message, reference: int) -> None:
        body = {"variables": await self._stops.variables(reference, self._debugpy)}
        self._places.take_out_of_all(body)
        self._client.respond(message, body)

    async def _on_set(self, message: Message) -> None:
        if self._stops.owns(int(message["arguments"].get("variablesReference") or 0)):
            self._client.refuse(message, _ABOUT_A_STOP)
            return
        self._pass_on(message, self._places.take_out)

    async def _on_locations(self, message: Message) -> None:
        self._client.respond(message, self._places.location(message["arguments"]))

    async def _find_value(self, request: DataRequest, agent: Peer) -> Message:
        if self._layer_threads.has(request):
            return await self._layer_threads.watchable(request)
        if self._stops.owns(request.variablesReference):
            raise AgentError(_ABOUT_A_STOP)
        return await super()._find_value(request, agent)

    # The console ---------------------------------------------------------------------------------

    def _is_of_layers(self, message: Message) -> bool:
        """Whether the layer threads answer: not what is set by something at a frame of theirs."""
        is_ours = message["command"] == "dataBreakpointInfo" or _command(message) is not None
        return self._layer_threads.concerns(message) and not is_ours

    async def _on_evaluate(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        expression = _command(message)
        if expression is None:
            if self._stops.is_past(int(arguments.get("frameId") or 0)):
                self._client.refuse(message, "that operation is over: choose a frame of the stack")
            else:
                self._pass_on(message, self._places.take_out)
            return
        glob = console.facts_glob(expression)
        if glob is not None:
            self._spawn(self._carry_out(message, self._show_facts(message, glob)))
            return
        watched = console.watched(expression)
        if watched is not None:
            self._spawn(self._carry_out(message, self._watch(message, watched)))
            return
        glob = console.no_grad_glob(expression)
        if glob is not None:
            self._spawn(self._carry_out(message, self._show_no_grad(message, glob)))
            return
        how = console.step(expression)
        if how is not None:
            step = {**message, "arguments": {"how": how}}
            self._spawn(self._carry_out(message, self._take_step(step)))
            return
        try:
            answer, changed = console.run(expression, self._tensorpoints)
        except console.ConsoleError as error:
            self._client.refuse(message, str(error))
            return
        if changed:
            self._sync_plan()
        self._client.respond(message, {"result": answer, "variablesReference": 0})

    async def _on_completions(self, message: Message) -> None:
        targets = console.completions(message["arguments"])

        def add(body: Message) -> None:
            known = {item.get("label") for item in body.get("targets") or ()}
            mine = [item for item in targets if item["label"] not in known]
            body["targets"] = [*(body.get("targets") or ()), *mine]

        self._pass_on(message, add)


def _command(message: Message) -> str | None:
    """The `tp` command that a request is, if it is one."""
    arguments: Message = message["arguments"]
    line = str(arguments.get("expression", ""))
    is_typed = message["command"] == "evaluate" and arguments.get("context") in ("repl", None)
    return line if is_typed and console.is_command(line) else None

"""One debug session: who answers what, and what is changed on the way through.

The client's messages and debugpy's are read by one task each; both run on the same event loop, so
nothing here is locked. Requests we don't know go to debugpy, its events and answers go to the
client; the tables at the top of `Session` name everything that is treated otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from . import console, launch
from .breakpoints import (
    OUR_FILTERS,
    Refusal,
    Split,
    Tensorpoints,
    split_filters,
    split_functions,
)
from .children import ChildListener
from .framing import FramingError
from .injection import AgentError, boot, sync
from .peer import Message, Peer
from .stops import Stops
from .upstream import Upstream

_log = logging.getLogger(__name__)

#: DAP requests that debugpy knows by name but never answers: after one of them it answers nothing
#: any more, so they end here (found by comparing pydevd's schema with its handlers).
_UNSUPPORTED = frozenset(
    {
        "breakpointLocations",
        "cancel",
        "dataBreakpointInfo",
        "disassemble",
        "loadedSources",
        "readMemory",
        "restart",
        "restartFrame",
        "reverseContinue",
        "setDataBreakpoints",
        "setInstructionBreakpoints",
        "stepBack",
        "terminateThreads",
        "writeMemory",
    }
)
_RESUMING = frozenset({"continue", "next", "stepIn", "stepOut", "goto", "disconnect", "terminate"})
#: How long a client that doesn't advertise `startDebugging` has for answering it.
_START_DEBUGGING_SECONDS = 2.0
_DISARM_SECONDS = 1.0
#: How long debugpy has for a disconnect, and for one that lets a launched program end by itself.
_DISCONNECT_SECONDS = 8.0
_EXIT_BY_ITSELF_SECONDS = 40.0
#: How long what listens at an address to attach to has for its first answer.
_HELLO_SECONDS = 10.0


class Session:
    """A client on one side, debugpy's adapter on the other."""

    def __init__(
        self, client: Peer, log_dir: Path | None = None, child_of: ChildListener | None = None
    ) -> None:
        self._client = client
        self._log_dir = log_dir
        self._child_of = child_of
        self._opening: asyncio.Task[None] | None = None
        self._upstream: Upstream | None = None
        self._reading: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._sessions: set[asyncio.Task[None]] = set()
        self._children = ChildListener(self._child_handler)
        self._tensorpoints = Tensorpoints()
        self._stops = Stops()
        self._initialize: Message = {}
        self._launch_texts: list[str] = []
        self._debugpy_filters: list[Message] = []
        self._agent_wanted = False
        self._agent_running = False
        #: True if the other side is a proxy like this one, which then does all the work.
        self._transparent = False
        self._syncing: asyncio.Task[None] | None = None
        self._terminated = False
        self._over = asyncio.Event()
        self._requests: dict[str, Callable[[Message], Awaitable[None]]] = {
            "initialize": self._on_initialize,
            "launch": self._on_start,
            "attach": self._on_start,
            "configurationDone": self._on_configuration_done,
            "setExceptionBreakpoints": self._on_set_exception_breakpoints,
            "setFunctionBreakpoints": self._on_set_function_breakpoints,
            "stackTrace": self._on_stack_trace,
            "exceptionInfo": self._on_exception_info,
            "scopes": self._on_scopes,
            "variables": self._on_variables,
            "evaluate": self._on_evaluate,
            "disconnect": self._on_disconnect,
        }
        self._events: dict[str, Callable[[Message], Awaitable[None]]] = {
            "initialized": self._on_initialized,
            "stopped": self._on_stopped,
            "continued": self._on_continued,
            "debugpyAttach": self._on_debugpy_attach,
            "terminated": self._on_terminated,
            "tensorpoint": self._on_agent_event,
        }

    # The two streams ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the client until it leaves or debugpy's side has ended."""
        self._opening = asyncio.ensure_future(self._open())
        serving = asyncio.ensure_future(self._read_client())
        over = asyncio.ensure_future(self._over.wait())
        try:
            await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            over.cancel()
            await self._finish()

    async def _open(self) -> None:
        """Reach debugpy's adapter. At once: a client may wait for its first events. Or OSError."""
        if self._child_of is not None and self._child_of.real is not None:
            upstream = await Upstream.connect(*self._child_of.real)
        else:
            upstream = await Upstream.spawn(self._log_dir)
        self._upstream = upstream
        self._reading = asyncio.ensure_future(self._read_debugpy(upstream))

    async def _read_client(self) -> None:
        try:
            while (message := await self._client.read()) is not None:
                await self._from_client(message)
                await self._client.drain()
        except FramingError as error:
            self._give_up(f"this is not the Debug Adapter Protocol: {error}")
        except (ConnectionError, OSError) as error:
            _log.warning("the client's connection broke: %s", error)

    async def _finish(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        if self._reading is not None and not self._initialize:
            self._reading.cancel()  # the client came for nothing, so there is nothing to tell it
        if self._upstream is not None:
            await self._upstream.close()
        if self._reading is not None:
            self._reading.cancel()
        await self._client.drain()
        self._client.close()
        if self._sessions:  # children may outlive their parent's session
            await asyncio.wait(self._sessions)
        self._children.close()

    async def _from_client(self, message: Message) -> None:
        if not _is_request(message):
            _log.warning("the client sent what is neither request nor response: %s", message)
            return
        command = message["command"]
        if message.get("arguments") is None:
            message["arguments"] = {}
        if not isinstance(message["arguments"], dict):
            self._client.refuse(message, f"{command}: the arguments must be an object")
        elif not self._initialize and command == "disconnect":
            self._client.respond(message)
            self._over.set()
        elif not self._initialize and command != "initialize":
            self._client.refuse(message, f"{command}: send initialize first")
        elif command in _UNSUPPORTED and not self._transparent:
            self._client.refuse(message, f"{command} is not supported")
        elif command in self._requests and not (self._transparent and command != "attach"):
            await self._carry_out(message, self._requests[command](message))
        else:
            if command in _RESUMING:
                self._stops.clear()
            self._pass_on(message)

    async def _carry_out(self, request: Message, work: Awaitable[None]) -> None:
        """Answer a request; what a client sends may fail it but not the session."""
        try:
            await work
        except Exception as error:
            _log.info("%s failed", request["command"], exc_info=True)
            self._client.refuse(request, f"{request['command']}: {error}")

    async def _read_debugpy(self, upstream: Upstream) -> None:
        try:
            while (message := await upstream.peer.read()) is not None:
                await self._from_debugpy(message)
                await self._client.drain()
        except Exception:
            _log.warning("debugpy's connection broke", exc_info=True)
        upstream.peer.close()
        if upstream is self._upstream:
            if not self._terminated:
                self._give_up("debugpy's adapter ended; the program may still be running")
            self._over.set()

    async def _from_debugpy(self, message: Message) -> None:
        if message.get("type") == "event":
            handle = self._events.get(message["event"])
            if handle is not None and not self._transparent:
                await handle(message)
            else:
                self._client.send(message)
        elif message.get("command") == "startDebugging":
            await self._on_start_debugging(message)
        else:
            self._relay_to_client(message)

    def _pass_on(
        self,
        request: Message,
        change: Callable[[Message], None] | None = None,
        then: Callable[[], None] | None = None,
    ) -> None:
        """Forward a request to debugpy; its answer goes back, after `change` if it succeeded."""

        def answer(response: Message) -> None:
            if change is not None and response.get("success"):
                body: Message = response.get("body") or {}
                response["body"] = body
                change(body)
            self._client.send({**response, "request_seq": request["seq"]})
            if then is not None:
                then()

        self._debugpy.forward(request, answer)

    def _relay_to_client(self, request: Message) -> None:
        debugpy = self._debugpy

        def answer(response: Message) -> None:
            if request.get("command") == "runInTerminal" and not response.get("success"):
                # debugpy would wait a minute for a program that nobody starts.
                reason = response.get("message") or "the editor gave no reason"
                self._give_up(f"the program could not be started in a terminal: {reason}")
                self._over.set()
            debugpy.send({**response, "request_seq": request["seq"]})

        self._client.forward(request, answer)

    @property
    def _debugpy(self) -> Peer:
        assert self._upstream is not None
        return self._upstream.peer

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _give_up(self, reason: str) -> None:
        """Say why it ends: an adapter that exits silently shows nothing in an editor."""
        self._client.output(f"Tensorpoint: {reason}", "important")
        self._client.event("terminated")
        self._terminated = True

    # Start -------------------------------------------------------------------------------------

    async def _on_initialize(self, message: Message) -> None:
        if self._initialize:
            self._client.refuse(message, "initialize: the session is initialized already")
            return
        assert self._opening is not None
        try:
            await self._opening
        except OSError as error:
            self._client.refuse(message, f"cannot reach debugpy's adapter: {error}")
            self._give_up(f"cannot reach debugpy's adapter: {error}")
            return
        self._initialize = message
        self._pass_on({**message, "arguments": self._hello()}, self._add_capabilities)

    def _hello(self) -> Message:
        """The arguments of debugpy's `initialize`.

        `startDebugging` is always advertised: debugpy would send its private debugpyAttach event
        otherwise.
        """
        return {**self._initialize["arguments"], "supportsStartDebuggingRequest": True}

    def _add_capabilities(self, body: Message) -> None:
        filters: list[Message] = list(body.get("exceptionBreakpointFilters") or [])
        ours = {item["filter"] for item in OUR_FILTERS}
        if any(item.get("filter") in ours for item in filters):
            self._transparent = True
            return
        self._debugpy_filters = filters
        body["exceptionBreakpointFilters"] = [*filters, *OUR_FILTERS]
        body["supportsExceptionFilterOptions"] = True
        body["supportsExceptionInfoRequest"] = True
        body["supportsFunctionBreakpoints"] = True

    async def _on_start(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        try:
            if message["command"] == "attach":
                await self._dial(arguments)
            else:
                launch.check_interpreter(arguments)
                launch.read_environment(arguments)
            texts = launch.take_tensorpoints(arguments) if not self._transparent else []
        except (ValueError, OSError) as error:
            self._client.refuse(message, str(error))
            return
        if not self._transparent:
            self._launch_texts = texts
            for refusal in self._tensorpoints.set_launch(texts):
                if self._child_of is None:  # a child's were refused in its parent's session
                    self._tell(refusal)
            # Ctrl+F5: debugpy sends no `initialized` then and there is nothing to inject into.
            self._agent_wanted = not arguments.get("noDebug")
            if self._agent_wanted:
                launch.hide_agent(arguments)
        self._pass_on(message)

    async def _dial(self, arguments: Message) -> None:
        """Attach to an adapter that listens: leave the one we started and connect to that.

        Editors that start us as an executable send such an address (nvim-dap for child sessions),
        where VS Code's own extension would have connected by itself. Raises OSError, ValueError.
        """
        if self._child_of is not None:
            self._child_of.restore(arguments)
            return
        address = launch.address_to_dial(arguments)
        if address is None:
            return
        host, port = address
        try:
            upstream = await Upstream.connect(host, port)
        except OSError as error:
            raise OSError(
                f"cannot attach to {host}:{port}: {error.strerror or error}. "
                "Is the program running under debugpy --listen?"
            ) from None
        reading = asyncio.ensure_future(self._read_debugpy(upstream))
        hello = upstream.peer.request("initialize", self._hello())
        try:
            answer = await asyncio.wait_for(hello, _HELLO_SECONDS)
        except asyncio.TimeoutError:
            answer: Message = {"success": False}
        if not answer.get("success"):
            reading.cancel()
            upstream.peer.close()
            raise OSError(f"what listens at {host}:{port} is not a debug adapter")
        if self._reading is not None:
            self._reading.cancel()
        if self._upstream is not None:
            self._spawn(self._upstream.close())
        self._upstream, self._reading = upstream, reading
        self._add_capabilities(answer.get("body") or {})

    async def _on_initialized(self, message: Message) -> None:
        self._spawn(self._boot_agent(message))

    async def _boot_agent(self, initialized: Message) -> None:
        if self._agent_wanted:
            plan = self._tensorpoints.plan()
            try:
                await boot(self._debugpy, plan)
                self._agent_running = True
                if self._tensorpoints.plan() != plan:  # an eager client did not wait
                    self._sync_plan()
            except AgentError as error:
                self._client.output(
                    f"Tensorpoint: the agent could not be started in the program ({error}); "
                    "debugging goes on without tensorpoints.",
                    "important",
                )
            filters = self._tensorpoints.filters()
            if len(filters) > len(OUR_FILTERS):
                capabilities = {"exceptionBreakpointFilters": [*self._debugpy_filters, *filters]}
                self._client.event("capabilities", {"capabilities": capabilities})
        self._client.send(initialized)

    async def _on_configuration_done(self, message: Message) -> None:
        # Not here: a program that doesn't answer must not keep us from reading `disconnect`.
        self._spawn(self._carry_out(message, self._finish_configuration(message)))

    async def _finish_configuration(self, message: Message) -> None:
        if self._syncing is not None:
            await self._syncing
        self._pass_on(message)

    # Tensorpoints ------------------------------------------------------------------------------

    async def _on_set_exception_breakpoints(self, message: Message) -> None:
        theirs, split, refused = split_filters(message["arguments"], self._tensorpoints.set_filters)
        self._breakpoints_set(message, theirs, split, refused)

    async def _on_set_function_breakpoints(self, message: Message) -> None:
        theirs, split, refused = split_functions(
            message["arguments"], self._tensorpoints.set_functions
        )
        self._breakpoints_set(message, theirs, split, refused)

    def _breakpoints_set(
        self, message: Message, theirs: Message, split: Split, refused: list[Refusal]
    ) -> None:
        for refusal in refused:
            self._tell(refusal)
        self._sync_plan()

        def merge(body: Message) -> None:
            body["breakpoints"] = split.merge(body.get("breakpoints") or [])

        self._pass_on({**message, "arguments": theirs}, merge)

    def _tell(self, refusal: Refusal) -> None:
        """VS Code only dims a refused breakpoint's row; say why as well."""
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
                self._client.output(f"Tensorpoint: not armed: {error}", "important")

        self._syncing = self._spawn(send())

    async def _on_evaluate(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        expression = str(arguments.get("expression", ""))
        if arguments.get("context") not in ("repl", None) or not console.is_command(expression):
            self._pass_on(message)
            return
        try:
            answer, changed = console.run(expression, self._tensorpoints)
        except console.ConsoleError as error:
            self._client.refuse(message, str(error))
            return
        if changed:
            self._sync_plan()
        self._client.respond(message, {"result": answer, "variablesReference": 0})

    async def _on_agent_event(self, message: Message) -> None:
        body: Message = message.get("body") or {}
        _log.warning("the agent reports a fault: %s", body)
        self._client.output(
            f"Tensorpoint: a fault while {body.get('activity')}: {body.get('error')}. It is "
            f"switched off and the program goes on.\n{body.get('traceback', '')}",
            "important",
        )

    # Stops -------------------------------------------------------------------------------------

    async def _on_stopped(self, message: Message) -> None:
        self._stops.clear()
        stop = self._stops.take(message.get("body") or {})
        if stop is not None:
            self._client.event(
                "output",
                {
                    "category": "console",
                    "output": f"{stop.text}\n",
                    "source": {"path": stop.file},
                    "line": stop.line,
                },
            )
        self._client.send(message)

    async def _on_continued(self, message: Message) -> None:
        self._stops.clear()
        self._client.send(message)

    async def _on_stack_trace(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        if arguments.get("startFrame"):
            self._pass_on(message)
        else:
            thread = int(arguments.get("threadId", 0))
            self._pass_on(message, lambda body: self._stops.note_stack(thread, body))

    async def _on_exception_info(self, message: Message) -> None:
        body = self._stops.exception_info(message["arguments"])
        if body is None:
            self._pass_on(message)
        else:
            self._client.respond(message, body)

    async def _on_scopes(self, message: Message) -> None:
        scope = self._stops.scope(int(message["arguments"].get("frameId", 0)))

        def put_first(body: Message) -> None:
            if scope is not None:
                body["scopes"] = [scope, *(body.get("scopes") or [])]

        self._pass_on(message, put_first)

    async def _on_variables(self, message: Message) -> None:
        reference = int(message["arguments"].get("variablesReference", 0))
        if self._stops.owns(reference):
            self._spawn(self._carry_out(message, self._answer_variables(message, reference)))
        else:
            self._pass_on(message)

    async def _answer_variables(self, message: Message, reference: int) -> None:
        rows = await self._stops.variables(reference, self._debugpy)
        self._client.respond(message, {"variables": rows})

    # Children ----------------------------------------------------------------------------------

    def _child_handler(self, listener: ChildListener) -> Any:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            session = Session(Peer("child client", reader, writer), self._log_dir, listener)
            task = asyncio.ensure_future(session.run())
            self._sessions.add(task)
            task.add_done_callback(self._sessions.discard)
            await task

        return serve

    async def _on_start_debugging(self, message: Message) -> None:
        configuration: Message = message.get("arguments", {}).get("configuration") or {}
        if not self._transparent:
            await self._redirect(configuration)
        advertised = self._initialize["arguments"].get("supportsStartDebuggingRequest")
        if advertised:
            self._relay_to_client(message)
            return
        self._debugpy.respond(message)
        if advertised is False:
            self._announce_child(configuration)
        else:
            # Some clients handle the request without advertising it, others know only debugpy's
            # own event; who it is can't be told from `clientID`, so ask, and fall back.
            self._spawn(self._offer_child(message, configuration))

    async def _offer_child(self, message: Message, configuration: Message) -> None:
        offer = self._client.request("startDebugging", message["arguments"])
        try:
            answer = await asyncio.wait_for(offer, _START_DEBUGGING_SECONDS)
        except asyncio.TimeoutError:
            answer = {"success": False}
        if not answer.get("success"):
            self._announce_child(configuration)

    def _announce_child(self, configuration: Message) -> None:
        self._client.event("debugpyAttach", {**configuration, "request": "attach"})

    async def _on_debugpy_attach(self, message: Message) -> None:
        await self._redirect(message["body"])
        self._client.send(message)

    async def _redirect(self, configuration: Message) -> None:
        """Let a child's session come through us, with the tensorpoints of its parent."""
        launch.forget_hiding(configuration)
        if self._launch_texts:
            configuration[launch.TENSORPOINTS] = self._launch_texts
        await self._children.redirect(configuration)

    # End ---------------------------------------------------------------------------------------

    async def _on_terminated(self, message: Message) -> None:
        self._terminated = True
        self._client.send(message)

    async def _on_disconnect(self, message: Message) -> None:
        """Detach without leaving a hook behind."""
        self._stops.clear()
        if self._agent_running and not self._terminated:
            self._tensorpoints.clear()
            try:
                await asyncio.wait_for(
                    sync(self._debugpy, self._tensorpoints.plan()), _DISARM_SECONDS
                )
            except (AgentError, asyncio.TimeoutError) as error:
                _log.info("not disarmed before the disconnect: %s", error)
        self._terminated = True
        self._pass_on(message, then=self._over.set)
        # debugpy's adapter answers nothing while it waits for a program that hangs.
        patient = message["arguments"].get("terminateDebuggee") is False
        asyncio.get_running_loop().call_later(
            _EXIT_BY_ITSELF_SECONDS if patient else _DISCONNECT_SECONDS, self._over.set
        )


def _is_request(message: Message) -> bool:
    return (
        message.get("type") == "request"
        and isinstance(message.get("command"), str)
        and isinstance(message.get("seq"), int)
    )

"""One debug session: who answers what, and what is changed on the way through.

Requests we don't know go to debugpy, its events and answers go to the client; the tables at the top
of `Session` name everything that is treated otherwise. How breakpoints are set is in `arming`, what
is said of a program that is suspended in `paused`; here are its start, its children and its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ..resident.handover import usual_folder
from ..wire import WIRE_VERSION, Plan
from . import hot_swap, launch, resident, values
from .breakpoints import FILTERS
from .children import ChildListener
from .data import BREAKPOINT_MODES
from .injection import AgentError, boot, imported, is_ours_too_slow, sync
from .last_run import LastRun
from .paused import Paused
from .peer import Message, Peer, is_request
from .upstream import NEVER_ANSWERED, Upstream

_log = logging.getLogger(__name__)

_RESUMING = frozenset({"continue", "next", "stepIn", "stepOut"})
#: How long a client that doesn't advertise `startDebugging` has for answering it.
_START_DEBUGGING_SECONDS = 2.0
_DISARM_SECONDS = 1.0
#: How long debugpy has for a disconnect, and for one that lets a launched program end by itself.
_DISCONNECT_SECONDS = 8.0
_EXIT_BY_ITSELF_SECONDS = 40.0
#: How long what listens at an address to attach to has for its first answer.
_HELLO_SECONDS = 10.0
#: How long after its first stop a program is asked what it has imported: the editor asks first.
_LEARNING_SECONDS = 0.5


class Session(Paused):
    """What we make of a debug session: who answers what."""

    def __init__(
        self, client: Peer, log_dir: Path | None = None, child_of: ChildListener | None = None
    ) -> None:
        super().__init__(client)
        self._log_dir = log_dir
        self._child_of = child_of
        self._sessions: set[asyncio.Task[None]] = set()
        self._children = ChildListener(self._child_handler)
        self._initialize: Message = {}
        self._launch_texts: list[str] = []
        self._debugpy_filters: list[Message] = []
        self._agent_wanted = False
        #: True if the other side is a proxy like this one, which then does all the work.
        self._transparent = False
        #: The launch from the resident process, and the event that waits for its process id.
        self._resident: resident.Launch | None = None
        self._process_event: Message | None = None
        self._pid: int | None = None
        self._learned = False
        self._hot_swap = False
        #: Whether the program has not stopped since it was told to continue, or at all.
        self._goes_on = True
        self._leaving = False
        self._last_run = LastRun(lambda why: client.output(f"Tensorpoint: {why}."))
        self._requests: dict[str, Callable[[Message], Awaitable[None]]] = {
            "initialize": self._on_initialize,
            "launch": self._on_start,
            "attach": self._on_start,
            "configurationDone": self._on_configuration_done,
            "setExceptionBreakpoints": self._on_set_exception_breakpoints,
            "setFunctionBreakpoints": self._on_set_function_breakpoints,
            "threads": self._on_threads,
            "stackTrace": self._on_stack_trace,
            "exceptionInfo": self._on_exception_info,
            "scopes": self._on_scopes,
            "variables": self._on_variables,
            "evaluate": self._on_evaluate,
            "completions": self._on_completions,
            "setVariable": self._on_set,
            "setExpression": self._on_set,
            "locations": self._on_locations,
            "dataBreakpointInfo": self._answered_by(self._data.info),
            "setDataBreakpoints": self._on_set_data_breakpoints,
            "readMemory": self._answered_by(values.memory),
            "tensorpoint/inlineValues": self._answered_by(values.inline),
            "tensorpoint/tensor": self._answered_by(values.tensor),
            "tensorpoint/facts": self._on_facts,
            "tensorpoint/layers": self._on_layers,
            "stepBack": self._on_back_by_lines,
            "reverseContinue": self._on_back_by_lines,
            "tensorpoint/step": self._on_step,
            "tensorpoint/listLayers": self._on_list_layers,
            "tensorpoint/status": self._on_status,
            "tensorpoint/check": self._on_check,
            "disconnect": self._on_disconnect,
        }
        self._events: dict[str, Callable[[Message], Awaitable[None]]] = {
            "initialized": self._on_initialized,
            "output": self._on_output,
            "process": self._on_process,
            "stopped": self._on_stopped,
            "continued": self._on_continued,
            "debugpyAttach": self._on_debugpy_attach,
            "terminated": self._on_terminated,
            "tensorpoint": self._on_agent_event,
        }

    # The two streams ---------------------------------------------------------------------------

    async def _open(self) -> Upstream:
        if self._child_of is not None and self._child_of.real is not None:
            return await Upstream.connect(*self._child_of.real)
        return await Upstream.spawn(self._log_dir)

    async def _finish(self) -> None:
        await super()._finish()
        if self._sessions:  # children may outlive their parent's session
            await asyncio.wait(self._sessions)
        self._children.close()

    async def _from_client(self, message: Message) -> None:
        if not is_request(message):
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
        elif not self._transparent and self._is_of_layers(message):
            self._spawn(self._carry_out(message, self._layer_threads.serve(message)))
        elif command in self._requests and not (self._transparent and command != "attach"):
            await self._carry_out(message, self._requests[command](message))
        elif command in NEVER_ANSWERED and not self._transparent:
            self._client.refuse(message, f"{command} is not supported")
        elif command == "continue" and self._goes_on and not self._transparent:
            # debugpy would answer at the next stop, and nothing else until then.
            self._client.respond(message, {"allThreadsContinued": True})
        else:
            if command in _RESUMING:
                self._resumed()
                self._goes_on = command == "continue"
            if command in _RESUMING and self._syncing is not None and not self._syncing.done():
                self._spawn(self._carry_out(message, self._pass_on_when_armed(message)))
            else:
                self._pass_on(message)

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
        self._greeted = True
        self._pass_on({**message, "arguments": self._hello()}, self._add_capabilities)

    def _hello(self) -> Message:
        """The arguments of debugpy's `initialize`.

        `startDebugging` is always advertised: debugpy would send its private debugpyAttach event
        otherwise.
        """
        return {**self._initialize["arguments"], "supportsStartDebuggingRequest": True}

    def _add_capabilities(self, body: Message) -> None:
        filters: list[Message] = list(body.get("exceptionBreakpointFilters") or [])
        if any(item.get("filter") in FILTERS for item in filters):
            self._transparent = True
            return
        self._debugpy_filters = filters
        body["exceptionBreakpointFilters"] = [
            *filters,
            *(item.message for item in FILTERS.values()),
        ]
        body["supportsExceptionFilterOptions"] = True
        body["supportsExceptionInfoRequest"] = True
        body["supportsFunctionBreakpoints"] = True
        body["supportsReadMemoryRequest"] = True
        body["supportsDataBreakpoints"] = True
        body["breakpointModes"] = [*(body.get("breakpointModes") or ()), *BREAKPOINT_MODES]

    async def _on_start(self, message: Message) -> None:
        arguments: Message = message["arguments"]
        try:
            if message["command"] == "attach":
                await self._dial(arguments)
            else:
                launch.check_interpreter(arguments)
                launch.read_environment(arguments)
                self._children.is_local = True
                preload = resident.take_preload(arguments)
                if resident.take_resident(arguments) and not self._transparent:
                    self._resident = resident.Launch(arguments, preload)
            texts: list[str] = []
            if not self._transparent:
                texts = launch.take_tensorpoints(arguments)
                self._tensorpoints.recording.take(arguments, self._child_of is not None)
                self._tensorpoints.precision = launch.take_precision(arguments)
                self._tensorpoints.keep_weights = launch.take_switch(arguments, launch.KEEP_WEIGHTS)
                if launch.take_switch(arguments, launch.KEEP_ON_DEVICE):
                    self._tensorpoints.weights_host = usual_folder()
                self._hot_swap = launch.take_switch(arguments, launch.HOT_SWAP)
        except (ValueError, OSError) as error:
            self._client.refuse(message, str(error))
            return
        if not self._transparent:
            self._last_run.begin(arguments)
            self._launch_texts = texts
            for refusal in self._tensorpoints.set_launch(texts):
                if self._child_of is None:  # a child's were refused in its parent's session
                    self._say(refusal)
            # Ctrl+F5: debugpy sends no `initialized` then and there is nothing to inject into.
            self._agent_wanted = not arguments.get("noDebug")
            if self._agent_wanted:
                launch.hide_agent(arguments)
        if self._resident is not None:
            # Not here: a host that doesn't answer must not keep us from reading `disconnect`.
            self._spawn(self._carry_out(message, self._launch_resident(message, self._resident)))
        else:
            self._pass_on(message)

    async def _launch_resident(self, message: Message, launching: resident.Launch) -> None:
        told = await asyncio.to_thread(launching.prepare)
        if told:
            self._client.output(f"Tensorpoint: {told}.")
        self._pass_on(message)

    async def _on_process(self, message: Message) -> None:
        """The process that debugpy has started is the stub; the program's own says who it is."""
        self._last_run.on_process(message["body"])
        if self._resident is None or not self._resident.resident or not self._agent_wanted:
            self._client.send(message)
            return
        self._process_event = message
        if self._pid is not None:
            self._pass_on_process()

    def _pass_on_process(self) -> None:
        if self._process_event is not None:
            body: Message = self._process_event["body"]
            if self._pid is not None:
                body["stubProcessId"] = body.get("systemProcessId")
                body["systemProcessId"] = self._pid
            self._client.send(self._process_event)
            self._process_event = None

    async def _on_output(self, event: Message) -> None:
        if not is_ours_too_slow(str(event["body"].get("output", ""))):
            self._client.send(event)

    async def _on_stopped(self, message: Message) -> None:
        self._goes_on = False
        if self._resident is not None and not self._learned:
            self._learned = True
            self._spawn(self._learn(self._resident))
        await super()._on_stopped(message)
        if self._agent_running and self._tensorpoints.recording.is_on:
            self._spawn(self._last_run.ask(self._debugpy))

    async def _on_agent_event(self, message: Message) -> None:
        body: Message = message.get("body") or {}
        if body.get("kind") == "facts":
            self._last_run.keep(body["facts"])
        else:
            await super()._on_agent_event(message)

    async def _learn(self, launching: resident.Launch) -> None:
        """Tell the host what this program imports, so that the next one has it already."""
        await asyncio.sleep(_LEARNING_SECONDS)
        try:
            names = await imported(self._debugpy)
            await asyncio.to_thread(launching.learn, names)
        except AgentError as error:
            _log.info("what the program has imported is not known: %s", error)

    async def _dial(self, arguments: Message) -> None:
        """Attach to an adapter that listens: leave the one we started and connect to that.

        Editors that start us as an executable send such an address (nvim-dap for child sessions),
        where VS Code's own extension would have connected by itself. Raises OSError, ValueError.
        """
        if self._child_of is not None:
            self._child_of.restore(arguments)
            self._children.is_local = self._child_of.is_local
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
                told = await boot(self._debugpy, plan)
                self._pid = told.get("pid")
                self._last_run.on_agent(told.get("age"))
                self._agent_running = True
                if self._tensorpoints.plan() != plan:  # an eager client did not wait
                    self._sync_plan()
                if self._hot_swap:
                    began = self._last_run.began
                    self._spawn(hot_swap.follow(self._debugpy, self._client, self._ended, began))
            except AgentError as error:
                self._client.output(
                    f"Tensorpoint: the agent could not be started in the program ({error}); "
                    "debugging goes on without tensorpoints.",
                    "important",
                )
            self._pass_on_process()
            filters = self._tensorpoints.filters()
            if len(filters) > len(FILTERS):
                capabilities = {"exceptionBreakpointFilters": [*self._debugpy_filters, *filters]}
                self._client.event("capabilities", {"capabilities": capabilities})
        self._client.send(initialized)

    async def _on_configuration_done(self, message: Message) -> None:
        # Not here: a program that doesn't answer must not keep us from reading `disconnect`.
        self._spawn(self._carry_out(message, self._pass_on_when_armed(message)))

    async def _pass_on_when_armed(self, message: Message) -> None:
        """Let the program go on once what was set before this request is in force."""
        if self._syncing is not None:
            await self._syncing
        self._pass_on(message)

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
        texts = [*self._launch_texts, *self._tensorpoints.from_console()]
        if texts:
            configuration[launch.TENSORPOINTS] = texts
        self._tensorpoints.recording.pass_on(configuration)
        if self._tensorpoints.keep_weights:
            configuration[launch.KEEP_WEIGHTS] = True
        if self._tensorpoints.weights_host:
            configuration[launch.KEEP_ON_DEVICE] = True
        if self._hot_swap:
            configuration[launch.HOT_SWAP] = True
        if self._tensorpoints.precision != "module":
            configuration[launch.PRECISION] = self._tensorpoints.precision
        await self._children.redirect(configuration)

    # End ---------------------------------------------------------------------------------------

    async def _on_terminated(self, message: Message) -> None:
        self._pass_on_process()
        self._ended.set()
        self._client.send(message)

    async def _on_disconnect(self, message: Message) -> None:
        """Detach without leaving a hook behind."""
        if self._leaving:  # a stop button that is pressed twice
            self._client.respond(message)
            return
        self._leaving = True
        self._resumed()
        if self._agent_running and not self._ended.is_set():
            if self._tensorpoints.recording.is_on:
                await self._last_run.ask(self._debugpy, at_once=True)
            try:
                await asyncio.wait_for(sync(self._debugpy, Plan(WIRE_VERSION)), _DISARM_SECONDS)
            except (AgentError, asyncio.TimeoutError) as error:
                _log.info("not disarmed before the disconnect: %s", error)
        self._ended.set()
        self._pass_on(message, then=self._over.set)
        # debugpy's adapter answers nothing while it waits for a program that hangs.
        patient = message["arguments"].get("terminateDebuggee") is False
        asyncio.get_running_loop().call_later(
            _EXIT_BY_ITSELF_SECONDS if patient else _DISCONNECT_SECONDS, self._over.set
        )

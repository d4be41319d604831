"""The virtual layer thread: a stack of layers with a thread id of its own, for any DAP client.

Beside a Python thread that is suspended inside of modules stands "layers of LlamaForCausalLM". Its
frames are the layers that run, innermost first; next, step in, step out and continue on it go by
layers. A stop of a layer step carries its id, all other stops that of the Python thread: an editor
shows the thread that a stop names. Threads, frames and scopes are numbered here, far above
debugpy's numbers, until the program goes on; every request that carries such a number is answered
here. What is shown of a layer is in `layer_values`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ..wire.codec import convert
from ..wire.layer_stack import LayerFrame, LayerStack
from ..wire.values import DataRequest
from .injection import AgentError, evaluated
from .layer_values import FIRST_SCOPE, LAST_SCOPE, LayerValues, Place, number_in
from .peer import Message, Peer
from .suspended import Suspended, asking

_FIRST_THREAD = 900_000_000
_FIRST_FRAME = 1_700_000_000
_BACK = frozenset({"back", "first"})
_STEPS = {"next": "over", "stepIn": "in", "stepOut": "out"}


@dataclass(frozen=True)
class _Layers:
    """A layer thread that is shown."""

    id: int
    stack: LayerStack

    @property
    def thread(self) -> int:
        """The Python thread."""
        return self.stack.thread

    @property
    def name(self) -> str:
        return f"layers of {self.stack.root}"

    @property
    def stops_where(self) -> str:
        """The innermost layer in words."""
        return f"at {_name(self.stack.frames[0])}"


class LayerThreads:
    """The layer threads of one session."""

    def __init__(
        self,
        client: Peer,
        debugpy: Callable[[], Peer],
        on_resume: Callable[[], None],
        present: Callable[[Message], None],
    ) -> None:
        self._client = client
        self._threads = Suspended(debugpy)
        self._values = LayerValues(self._threads, self._place)
        self._on_resume = on_resume
        #: Gives what debugpy has answered of variables the form that the client gets.
        self._present = present
        self._ids = itertools.count(_FIRST_THREAD)
        self._known: dict[tuple[int, str, int], int] = {}
        self._numbers = itertools.count()
        #: The Python thread that the program stopped on; None while it runs.
        self._stopped: int | None = None
        #: The layer thread that is in front: the stop was a layer step, or the user switched to it.
        self._front: _Layers | None = None
        self._shown: dict[int, _Layers] = {}
        self._frames: dict[int, tuple[_Layers, int]] = {}
        #: Events `continued` of debugpy's that the client knows of already. One comes some time
        #: after each `continue`, at times when the program has stopped again.
        self._expected = 0
        #: While a step is asked for: what is to be done once the program has gone on.
        self._leaving: Callable[[], None] | None = None
        self._offers_back = False
        #: How requests are answered; those that let the program go on answer themselves, before it
        #: can stop again.
        self._answers: dict[str, Callable[[Message, Message], Awaitable[Message | None]]] = {
            "stackTrace": self._stack_trace,
            "stepInTargets": self._step_in_targets,
            "exceptionInfo": self._of_thread,
            "pause": self._pause,
            "continue": self._continue,
            "stepBack": self._step_back,
            "reverseContinue": self._step_back,
            **dict.fromkeys(_STEPS, self._step),
        }
        self._shows: dict[str, Callable[[Message], Awaitable[Message]]] = {
            "scopes": self._values.scopes,
            "variables": self._values.variables,
            "evaluate": self._values.evaluate,
            "completions": self._values.completions,
            "setVariable": self._values.set_variable,
            "setExpression": self._values.set_expression,
            "tensorpoint/tensor": self._values.tensor,
            "tensorpoint/inlineValues": self._values.inline,
        }

    # Stops ----------------------------------------------------------------------------------------

    def clear(self) -> None:
        """The program runs again: frame ids and references are dead."""
        self._stopped = self._front = None
        for numbered in (self._shown, self._frames, self._values, self._threads):
            numbered.clear()

    def take(self, body: Message) -> None:
        """Let a `stopped` event be the layer thread's if it is a layer step's."""
        self._stopped = int(body.get("threadId", 0))
        given = body.pop("layerStack", None)
        if given is None:
            return
        layers = self._show(convert({**given, "thread": self._stopped}, LayerStack))
        self._front = layers
        if layers.stack.top:
            self._threads.know_top(layers.thread, layers.stack.top)
        self._tell_of_back(layers.stack)
        body["threadId"] = layers.id
        body["layer"] = _announced(layers.stack)

    def _tell_of_back(self, stack: LayerStack) -> None:
        """Let the client offer a step back where there is one."""
        offered = stack.back is None
        if offered != self._offers_back:
            self._offers_back = offered
            self._client.event("capabilities", {"capabilities": {"supportsStepBack": offered}})

    def catch_up(self) -> None:
        """An event says that the program has gone on, or stopped since.

        The answer to a step may come behind these: debugpy's adapter puts one that was there before
        it looked in line behind what came meanwhile (`Message.on_response`).
        """
        if self._leaving is not None:
            self._leaving()

    def swallow_continued(self) -> bool:
        """Whether a `continued` event is none to the client: we let the program go on."""
        expected, self._expected = self._expected, max(self._expected - 1, 0)
        return expected > 0

    async def add_threads(self, body: Message) -> None:
        """Add to the answer of `threads` a layer thread for each that stands in a model."""
        stopped, threads = self._stopped, list(body.get("threads") or ())
        if stopped is None:
            return
        standing = [stopped]
        if len(threads) > 1:
            standing += [item for item in await self._threads.waiting() if item != stopped]
        found = [await self._find(thread) for thread in standing]
        body["threads"] = [
            *threads,
            *({"id": item.id, "name": item.name} for item in found if item),
        ]

    async def _find(self, thread: int) -> _Layers | None:
        """The layer thread of a thread that stands still; None where no layer runs on it."""
        found = next((item for item in self._shown.values() if item.thread == thread), None)
        if found is not None:
            return found
        answer = await self._threads.ask(thread, ask="stack")
        if not answer["stack"] or self._stopped is None:
            return None
        return self._show(convert({**answer["stack"], "thread": thread}, LayerStack))

    def _show(self, stack: LayerStack) -> _Layers:
        key = (stack.thread, stack.root, stack.root_id)
        if key not in self._known:
            self._known[key] = next(self._ids)
        layers = _Layers(self._known[key], stack)
        self._shown[layers.id] = layers
        return layers

    # Requests -------------------------------------------------------------------------------------

    def concerns(self, message: Message) -> bool:
        """Whether a request carries one of our ids."""
        arguments: Message = message["arguments"]
        return (
            number_in(arguments, "threadId") >= _FIRST_THREAD
            or _FIRST_FRAME <= number_in(arguments, "frameId") <= LAST_SCOPE
            or FIRST_SCOPE <= number_in(arguments, "variablesReference") <= LAST_SCOPE
        )

    def has(self, request: DataRequest) -> bool:
        """Whether a data breakpoint would be set on something in a layer."""
        return (
            _FIRST_FRAME <= request.frameId <= LAST_SCOPE
            or FIRST_SCOPE <= request.variablesReference <= LAST_SCOPE
        )

    async def watchable(self, request: DataRequest) -> Message:
        """What that is. Raises AgentError with the reason if it can't be watched."""
        return await self._values.watchable(request)

    async def serve(self, message: Message) -> None:
        """Answer a request that `concerns` us. Raises AgentError with the reason where it can't."""
        command, arguments = message["command"], message["arguments"]
        if command in self._shows:
            body = await self._shows[command](arguments)
        elif command in self._answers:
            body = await self._answers[command](message, arguments)
        else:
            raise AgentError("there is no such thing in a layer thread")
        if body is not None:
            self._present(body)
            self._client.respond(message, body)

    async def take_step(self, message: Message, how: str) -> None:
        """A step by the console or a button, from wherever the program stands; says what it does.

        `layer` goes over to layers where the program stands, or at the next one that is called;
        `line` goes back to lines.
        """

        def say(text: str) -> None:
            self._client.respond(message, {"result": text, "variablesReference": 0})

        thread = self._stopped
        if thread is None:
            raise AgentError("the program is running: a step needs a stop")
        if how == "line":
            say("stepping by lines" if self._front else "stepping by lines already")
            self._to_lines()
            return
        layers = await self._find(thread) if how == "layer" else None
        if layers is not None:
            say(f"stepping by layers, {layers.stops_where}")
            self._switch_to(layers)
            return
        words = "the forward is run again up to there" if how in _BACK else "stepping by layers"

        def goes_on() -> None:
            say(words)
            # To the client this is no answer to a step, so it hears that the program goes on.
            self._client.event("continued", {"threadId": thread, "allThreadsContinued": True})

        if how in _BACK:
            await self._go(thread, goes_on, ask="back", first=how == "first")
        else:
            await self._go(thread, goes_on, ask="step", how="in" if how == "layer" else how)

    def _to_lines(self) -> None:
        if self._front is None:
            return
        self._client.event("continued", {"threadId": self._front.id, "allThreadsContinued": True})
        self._front = None
        self._announce(self._stopped or 0, "Stepping by lines")

    def _switch_to(self, layers: _Layers) -> None:
        # Some clients let a second thread that stops go on at once; to them the first has gone on.
        self._client.event("continued", {"threadId": layers.thread, "allThreadsContinued": True})
        self._front = layers
        self._tell_of_back(layers.stack)
        self._announce(
            layers.id, f"Stepping by layers, {layers.stops_where}", _announced(layers.stack)
        )

    def _announce(self, thread: int, description: str, layer: Message | None = None) -> None:
        body: Message = {
            "reason": "step",
            "threadId": thread,
            "allThreadsStopped": True,
            "description": description,
        }
        self._client.event("stopped", body if layer is None else {**body, "layer": layer})

    async def _step(self, message: Message, arguments: Message) -> None:
        await self._go(
            self._thread(arguments).thread,
            lambda: self._client.respond(message),
            ask="step",
            how=_STEPS[message["command"]],
            target=None if "targetId" not in arguments else number_in(arguments, "targetId"),
        )

    async def _step_back(self, message: Message, arguments: Message) -> None:
        await self._go(
            self._thread(arguments).thread,
            lambda: self._client.respond(message),
            ask="back",
            first=message["command"] == "reverseContinue",
        )

    async def _go(self, thread: int, goes_on: Callable[[], None], **request: Any) -> None:
        """Let the agent take a step, with which the program goes on.

        `goes_on` tells the client. It runs as the answer is read, or what overtakes it: a later
        message may be the stop already. Raises AgentError where the agent refuses.
        """
        if self._leaving is not None:
            raise AgentError("a step is under way already")
        top = await self._threads.top(thread)
        done = asyncio.get_running_loop().create_future()

        def gone_on() -> None:
            self._leaving = None
            self._expected += 1
            self.clear()
            self._on_resume()
            goes_on()

        def answered(response: Message) -> None:
            if done.done():  # nobody waits any more: the session ends
                return
            if self._leaving is gone_on:
                try:
                    evaluated(response, in_frame=True)
                except AgentError as error:
                    self._leaving = None
                    done.set_exception(error)
                    return
                gone_on()
            done.set_result(None)

        arguments = {
            "expression": asking(request),
            "frameId": top,
            "context": "clipboard",
        }
        self._leaving = gone_on
        request = {"type": "request", "command": "evaluate", "arguments": arguments}
        self._threads.debugpy().forward(request, answered)
        await done

    async def _continue(self, message: Message, arguments: Message) -> Message | None:
        if self._stopped is None:  # a key that is pressed twice
            return {"allThreadsContinued": True}
        thread = self._thread(arguments).thread
        self._client.respond(message, {"allThreadsContinued": True})
        self._expected += 1
        self.clear()
        self._on_resume()
        await self._threads.debugpy().request("continue", {"threadId": thread})

    async def _pause(self, message: Message, arguments: Message) -> Message:
        if self._stopped is None:  # clients pause the thread that they have shown last
            wanted = number_in(arguments, "threadId")
            for (thread, *_), known in self._known.items():
                if known == wanted:
                    await self._threads.request("pause", threadId=thread)
                    return {}
        self._thread(arguments)
        return {}  # it is paused

    async def _of_thread(self, message: Message, arguments: Message) -> Message:
        """What is as good for the Python thread."""
        thread = self._thread(arguments).thread
        return await self._threads.request(message["command"], **{**arguments, "threadId": thread})

    async def _stack_trace(self, message: Message, arguments: Message) -> Message:
        layers = self._thread(arguments)
        start, levels = (max(number_in(arguments, name), 0) for name in ("startFrame", "levels"))
        frames = layers.stack.frames
        end = start + levels if levels else len(frames)
        return {
            "stackFrames": [
                self._frame(layers, number) for number in range(start, min(end, len(frames)))
            ],
            "totalFrames": len(frames),
        }

    def _frame(self, layers: _Layers, number: int) -> Message:
        frame = layers.stack.frames[number]
        known = (item for item, value in self._frames.items() if value == (layers, number))
        identity = next(known, None) or _FIRST_FRAME + next(self._numbers)
        self._frames[identity] = (layers, number)
        name = _name(frame, layers.stack.replayed)
        body: Message = {"id": identity, "name": name, "line": frame.line or 0, "column": 1}
        if frame.file is None:
            return {**body, "column": 0, "presentationHint": "label"}
        body["source"] = {"name": os.path.basename(frame.file), "path": frame.file}
        return {**body, "presentationHint": "subtle"} if frame.library else body

    async def _step_in_targets(self, message: Message, arguments: Message) -> Message:
        place = self._place(number_in(arguments, "frameId"))
        answer = await self._threads.ask(place.thread, ask="targets", frame=place.number)
        return {
            "targets": [
                {"id": position, "label": label} for position, label in enumerate(answer["targets"])
            ]
        }

    def _thread(self, arguments: Message) -> _Layers:
        layers = self._shown.get(number_in(arguments, "threadId"))
        if layers is None:
            raise AgentError("the program has gone on since: there is no such layer thread now")
        return layers

    def _place(self, frame: int) -> Place:
        found = self._frames.get(frame)
        if found is None:
            raise AgentError("the program has gone on since: this frame is no more")
        layers, number = found
        return Place(layers.thread, number, layers.stack.frames[number])


def _name(frame: LayerFrame, replayed: bool = False) -> str:
    notes = [frame.phase] if frame.phase != "forward" else []
    notes += [frame.note] if frame.note else []
    notes += ["replayed"] if replayed else []
    name = f"{frame.path or '(root)'} ({frame.type})"
    return f"{name} [{', '.join(notes)}]" if notes else name


def _announced(stack: LayerStack) -> Message:
    """What our own views are told of a stop at a layer."""
    frame = stack.frames[0]
    return {"module": frame.path, "module_type": frame.type, "phase": frame.phase}

"""Evaluates on suspended threads, in the frame on top of their real stack."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine
from typing import Any

from .injection import AgentError, evaluate
from .peer import Message, Peer

_AGENT = "__import__('sys').modules['_tensorpoint.agent.requests']"
_VIEW = "__import__('sys').modules['_tensorpoint.agent.stepping.scopes']"

#: How long the program's other threads have for standing still.
_STANDING_SECONDS = 0.2
_ASKING_AGAIN_SECONDS = 0.01


class Suspended:
    """The threads that stand still, until the program goes on."""

    def __init__(self, debugpy: Callable[[], Peer]) -> None:
        self.debugpy = debugpy
        self._tops: dict[int, int] = {}
        #: What waits for answers of threads that stand still.
        self._waiting: set[asyncio.Future[Message]] = set()

    def clear(self) -> None:
        """The program runs again: the numbers of frames are dead, and who asked is told so.

        debugpy evaluates on the thread itself, and answers no sooner than at its next stop.
        """
        self._tops.clear()
        waiting, self._waiting = self._waiting, set()
        for answer in waiting:
            answer.cancel()

    def know_top(self, thread: int, frame: int) -> None:
        """The frame on top of a thread's stack is known from elsewhere."""
        self._tops[thread] = frame

    async def top(self, thread: int) -> int:
        """The frame on top of a thread's stack. Raises AgentError."""
        if thread not in self._tops:
            body = await self.request("stackTrace", threadId=thread, startFrame=0, levels=1)
            frames: list[Message] = body.get("stackFrames") or []
            if not frames:
                raise AgentError("this thread has no frame to evaluate in")
            self._tops[thread] = int(frames[0]["id"])
        return self._tops[thread]

    async def ask(self, thread: int, **request: Any) -> Message:
        """What the agent answers on a thread. Raises AgentError."""
        return await self._while_suspended(
            evaluate(self.debugpy(), asking(request), await self.top(thread))
        )

    async def waiting(self) -> list[int]:
        """The threads that stand still, once those in a model have had the time for it.

        The program has stopped when the first does; others follow at their next line.
        """
        ends = time.monotonic() + _STANDING_SECONDS
        while True:
            answer = await evaluate(self.debugpy(), asking({"ask": "waiting"}))
            if not answer["more"] or time.monotonic() > ends:
                return [*answer["threads"]]
            await asyncio.sleep(_ASKING_AGAIN_SECONDS)

    async def value(self, thread: int, expression: str, context: str) -> Message:
        """The answer to an `evaluate`, which debugpy expands as any. Raises AgentError."""
        return await self.request(
            "evaluate", expression=expression, frameId=await self.top(thread), context=context
        )

    async def request(self, command: str, **arguments: Any) -> Message:
        """The body of debugpy's answer. Raises AgentError."""
        response = await self._while_suspended(self.debugpy().request(command, arguments))
        if not response.get("success"):
            raise AgentError(str(response.get("message") or f"{command} failed"))
        return response.get("body") or {}

    async def _while_suspended(self, asked: Coroutine[Any, Any, Message]) -> Message:
        answer = asyncio.ensure_future(asked)
        self._waiting.add(answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer in self._waiting:  # it is we who are cancelled
                raise
            raise AgentError("the program has gone on since") from None
        finally:
            self._waiting.discard(answer)


def asking(request: Message) -> str:
    """The expression by which the agent is asked."""
    return f"{_AGENT}.steps({json.dumps(request)!r})"


_LITERAL = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
#: What leads from a scope's row, or from an expression in a layer, to what is below it.
BELOW = re.compile(
    rf"{re.escape(_VIEW)}\.(?:"
    rf"scope\({re.escape(_AGENT)}\.layer\(\d+\), '(?P<scope>\w+)'\)\[(?P<row>{_LITERAL})\]"
    rf"|evaluate\({re.escape(_AGENT)}\.layer\(\d+\), (?P<text>{_LITERAL})\))"
)


def in_layer(number: int, expression: str) -> str:
    """What evaluates `expression` in a layer of the thread, innermost first."""
    return f"{_VIEW}.evaluate({_AGENT}.layer({number}), {expression!r})"


def scope_of(number: int, name: str) -> str:
    """What evaluates to the rows of a scope of a layer."""
    return f"{_VIEW}.scope({_AGENT}.layer({number}), {name!r})"

"""`tensorpoint/layers`: the module tree of the running model, for views."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from ..wire.codec import convert
from ..wire.layers import LayerTree
from . import injection
from .peer import Peer


@dataclass(frozen=True)
class Request:
    """What is asked for; without `modules` only the roots and how far they are."""

    modules: bool = True


def request(arguments: dict[str, Any]) -> Request:
    """The arguments of a client's request. Raises ValueError."""
    try:
        return convert(arguments, Request)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


async def ask(debugpy: Peer, wanted: Request) -> LayerTree:
    """What the agent says. Raises AgentError."""
    answer = await injection.layer_tree(debugpy, asdict(wanted))
    return convert(answer, LayerTree)


async def answer(arguments: dict[str, Any], debugpy: Peer) -> dict[str, Any]:
    """The body of the answer. Raises AgentError, ValueError."""
    return asdict(await ask(debugpy, request(arguments)))

"""What a client asks about tensorpoints beside DAP's own requests.

`tensorpoint/status`: what is set in a session, and how far the program is. `tensorpoint/check`:
whether a condition would be accepted, asked before it is set; it needs no program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ..wire.codec import convert
from . import layer_tree
from .breakpoints import LAYER_PREFIX, Refusal, Tensorpoints
from .injection import AgentError
from .peer import Peer


@dataclass(frozen=True)
class Check:
    """A condition as a user wrote it; `filter` is the exception filter whose box it was written in.

    Without `filter` it is a whole condition or `layer:PATH if CONDITION`, as after `tp on`.
    """

    condition: str
    filter: str = ""


def check(arguments: dict[str, Any]) -> dict[str, Any]:
    """The body of the answer to `tensorpoint/check`. Raises ValueError."""
    try:
        wanted = convert(arguments, Check)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    tensorpoints = Tensorpoints()
    if wanted.filter and not wanted.condition.strip().startswith(LAYER_PREFIX):
        (made,) = tensorpoints.set_filters([(wanted.filter, wanted.condition)])
    else:
        made = tensorpoints.add(wanted.condition)
    if isinstance(made, Refusal):
        return {"verified": False, "message": made.reason}
    return {"verified": True, "condition": made.text}


async def status(tensorpoints: Tensorpoints, debugpy: Peer | None) -> dict[str, Any]:
    """The body of the answer to `tensorpoint/status`; `debugpy` is None where there is no agent."""
    body: dict[str, Any] = {
        "tensorpoints": [
            {"number": number, "text": item.text, "source": source}
            for number, item, source in tensorpoints.listing()
        ],
        "recording": tensorpoints.recording.is_on,
        "step": None,
        "optimizer_step": None,
    }
    if debugpy is not None:
        try:
            tree = await layer_tree.ask(debugpy, layer_tree.Request(modules=False))
        except AgentError:  # the program is ending; what is set is known all the same
            return body
        body |= {"step": tree.step, "optimizer_step": tree.optimizer_step}
    return body

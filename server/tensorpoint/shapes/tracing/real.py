"""The last word on a fault: the same call with real tensors at the same sizes.

A meta kernel may complain of what the real one takes. Modules above `MOST` elements are not
materialized; there the meta run, whose complaints `modes` has already put to the real kernel,
stands.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from .inputs import Sizes, make
from .running import Target

MOST = 50_000_000


def too_large(target: Target) -> bool:
    """Whether the module can't be made real here."""
    module = target.module
    return module is not None and sum(each.numel() for each in module.parameters()) > MOST


def real_error(target: Target, sizes: Sizes) -> BaseException | None:
    """How the call fails with real tensors; None if it runs."""
    recorder = target.recorder
    recorder.on = False
    try:
        module = target.module
        call: Any = target.call
        if module is not None:
            call = copy.deepcopy(module).to_empty(device="cpu")
            for tensor in [*call.parameters(), *call.buffers()]:
                tensor.data.zero_()
        positional, keywords = make(target.inputs, sizes)
        with torch.no_grad():
            call(*positional, **keywords)
    except BaseException as error:
        return error
    return None

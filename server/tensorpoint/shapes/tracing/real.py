"""The last word on a fault: the same call with real tensors at the same sizes.

A meta kernel may complain of what the real one takes. Modules above `MOST` elements are not
materialized; there the meta run, whose complaints `modes` has already put to the real kernel,
stands. A run that takes long is given up, and then says nothing: `TooLong` is no fault of the file.
"""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from .inputs import Sizes, make
from .modes import Deadline
from .running import Target

MOST = 50_000_000
#: For one run: meta runs of the same call take a hundredth of that.
_SECONDS = 5.0


def too_large(target: Target) -> bool:
    """Whether the module can't be made real here."""
    return sum(each.numel() for each in target.module.parameters()) > MOST


def real_error(
    target: Target, sizes: Sizes, watch: Any = None, filled: Sequence[int] = (0,)
) -> BaseException | None:
    """How the call fails with real tensors; None if it runs, `TooLong` if it was given up.

    `watch` is entered around the call. Inputs of integers and truth values hold what is in
    `filled`, in turn.
    """
    try:
        module: Any = copy.deepcopy(target.module).to_empty(device="cpu")
        for tensor in [*module.parameters(), *module.buffers()]:
            tensor.data.zero_()
        positional, keywords = make(target.inputs, sizes)
        for value in tree_leaves((positional, keywords)):
            if isinstance(value, torch.Tensor) and not value.is_floating_point():
                value.fill_(filled[0])
                filled = (*filled[1:], filled[0])
        watching = watch if watch is not None else contextlib.nullcontext()
        with watching, torch.no_grad(), Deadline(time.monotonic() + _SECONDS):
            module(*positional, **keywords)
    except BaseException as error:  # SystemExit, KeyboardInterrupt: the user's code
        return error
    return None

"""Recurrent layers as one step: their meta kernels go through the sequence in Python.

An LSTM of two layers over 35 words took 0.2 s a run, of which a table takes dozens. What comes out
follows from the sizes alone; that they fit was checked by the layer before it called the function.
"""

from __future__ import annotations

from typing import Any

import torch

#: The functions of `torch._VF`.
RECURRENT = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def recurrent(
    name: str, args: tuple[Any, ...], dtype: torch.dtype | None = None
) -> tuple[Any, int]:
    """What `torch.lstm(*args)` and the like give, and their floating point operations.

    (input, state, weights, biases, layers, dropout, training, bidirectional, batch_first), or, of a
    packed sequence, (data, batch_sizes, state, weights, biases, layers, dropout, training,
    bidirectional). `dtype` is that of what comes out, where it isn't that of what goes in.
    """
    packed = isinstance(args[2], torch.Tensor) or (
        isinstance(args[1], torch.Tensor) and args[1].dim() == 1
    )
    data, state, weights, bidirectional = args[0], args[1], args[2], args[7]
    if packed:
        state, weights, bidirectional = args[2], args[3], args[8]
    states = tuple(state) if isinstance(state, (tuple, list)) else (state,)
    width = states[0].shape[-1] * (2 if bidirectional else 1)
    output = data.new_empty((*data.shape[:-1], width), dtype=dtype)
    steps = 1
    for size in data.shape[:-1]:
        steps = steps * size
    used = sum(weight.numel() for weight in weights if weight.dim() == 2)
    flops = 2 * steps * used if isinstance(steps, int) else 0
    return (output, *(each.new_empty(each.shape, dtype=dtype) for each in states)), flops


def packed(assumptions: Any, data: Any, _: Any, batch_first: bool) -> tuple[Any, Any]:
    """What `pack_padded_sequence` makes: how many rows and steps there are, lengths decide."""
    rows, steps = assumptions.count("packed rows"), assumptions.count("packed steps")
    batch = data.shape[0 if batch_first else 1]
    # Real, since the layer takes the size of the batch from its first element.
    sizes = torch.full((steps,), batch, dtype=torch.long, device="cpu")
    return data.new_empty((rows, *data.shape[2:])), sizes


def padded(
    data: Any, sizes: Any, batch_first: bool, padding: float, total_length: int
) -> tuple[Any, Any]:
    """What `pad_packed_sequence` makes of it again."""
    steps, batch = total_length if total_length > 0 else sizes.shape[0], int(sizes[0])
    order = (batch, steps) if batch_first else (steps, batch)
    return data.new_empty((*order, *data.shape[1:])), data.new_empty((batch,), dtype=torch.long)

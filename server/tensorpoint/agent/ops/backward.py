"""Runs the backward of a model again, from the gradients that came into its output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from ..tensors import tensors_in
from .recorder import NotReplayable
from .state import Entry


def forward_and_backward(entry: Entry, parameter: Any) -> Sequence[Any]:
    """The gradient of `parameter`, or of all if it isn't this model's; `.grad` is not touched."""
    torch = sys.modules["torch"]
    given = entry.gradients  # looked at now: it is the pass that runs
    args, kwargs = _cut_off((entry.args, entry.kwargs))
    output = entry.call_with(args, kwargs)
    pairs = [
        (tensor, given[position])
        for position, (_, tensor) in enumerate(tensors_in(output, ""))
        if given.get(position) is not None and tensor.requires_grad
    ]
    if not pairs:
        raise NotReplayable("the gradient of the model's output was too large to keep")
    outputs, gradients = zip(*pairs, strict=True)
    leaves = _leaves(entry.module, (args, kwargs))
    targets = [leaf for leaf in leaves if leaf is parameter] or leaves
    try:
        return torch.autograd.grad(outputs, targets, gradients, allow_unused=True)
    except RuntimeError as error:
        if "Checkpointing" not in str(error):
            raise
    return _by_accumulating(leaves, outputs, gradients, targets)


def _cut_off(arguments: Any) -> Any:
    """The arguments without the graph that computed them, whose backward may be over."""
    torch = sys.modules["torch"]

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.requires_grad:
            return value
        return value.detach().requires_grad_()

    return torch.utils._pytree.tree_map(leaf, arguments)


def _leaves(module: Any, arguments: object) -> list[Any]:
    given = [tensor for _, tensor in tensors_in(arguments, "")]
    return [tensor for tensor in (*module.parameters(), *given) if tensor.requires_grad]


def _by_accumulating(
    leaves: Sequence[Any], outputs: Sequence[Any], gradients: Sequence[Any], targets: Sequence[Any]
) -> Sequence[Any]:
    """The same for reentrant checkpoints, which know only `backward()`: `.grad` is put back."""
    was = [(leaf, leaf.grad) for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        sys.modules["torch"].autograd.backward(outputs, gradients)
        return [target.grad for target in targets]
    finally:
        for leaf, gradient in was:
            leaf.grad = gradient

"""Adapters: what is particular to a framework or a model family. `spec` says what one is."""

from .grad_scaler import adapter as grad_scaler
from .spec import Adapter, Observer, Switch, Tap
from .torch_attention import adapter as torch_attention
from .torch_clip import adapter as torch_clip

#: The adapters that come with Tensorpoint; others are found by entry point.
BUILT_IN: tuple[Adapter, ...] = (torch_attention, torch_clip, grad_scaler)

__all__ = ["BUILT_IN", "Adapter", "Observer", "Switch", "Tap"]

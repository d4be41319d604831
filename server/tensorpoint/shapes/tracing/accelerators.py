"""accelerate's `Accelerator` in a script: one process, no device, and the precision it was told.

The real one starts what it finds on the machine and keeps it for the process. What scripts ask it
for is little: it gives back what it prepares, and puts the forward of a model under an autocast of
its device, whose halves leave the model as f32. A model is not changed here, as it is there, since
other runs have the same one: who calls it asks `call`.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from .casting import autocast_of
from .unknown import SHUT, UNKNOWN, Unknown

_HALVES = (torch.float16, torch.bfloat16)
#: How much of it is asked for by position.
_POSITIONS = ("device_placement", "split_batches", "mixed_precision")


def is_accelerator(kind: Any) -> bool:
    """Whether it is the class, or stands for it."""
    if kind is Accelerator:
        return True
    home = getattr(kind, "__module__", None) or ""
    named = isinstance(kind, type) and kind.__name__ == "Accelerator"
    return named and home.partition(".")[0] == "accelerate"


def put_in_place(namespace: dict[str, Any]) -> None:
    """Have the names of a file that are accelerate's class be the one below."""
    for name, value in namespace.items():
        if is_accelerator(value):
            namespace[name] = Accelerator


def mixed(precision: Any, on_cpu: bool, *, needs_gpu: bool = False) -> Any:
    """The autocast that a precision is, None if none; raises `ValueError` if it isn't known.

    bf16 is of the device that is there, or needs a GPU; fp16 is done without where there is none.
    """
    if precision == "no":
        return None
    if precision not in ("bf16", "fp16"):
        raise ValueError(f"what {precision!r} does to dtypes is not known")
    if precision == "bf16":
        if on_cpu or needs_gpu:
            device = "cpu" if on_cpu else "cuda"
            return autocast_of({"device_type": device, "dtype": torch.bfloat16}, ())
        return autocast_of({"dtype": torch.bfloat16}, {"device_type"})
    if on_cpu:
        return None
    return autocast_of({"device_type": "cuda", "dtype": torch.float16}, {"enabled"})


class Accelerator:
    """What scripts ask accelerate's for; all else is unknown."""

    device = torch.device("cpu")
    is_main_process = is_local_main_process = is_last_process = sync_gradients = True
    num_processes = 1
    process_index = local_process_index = 0

    def __init__(self, *given: Any, **named: Any) -> None:
        arguments = {**dict(zip(_POSITIONS, given)), **named}
        precision = arguments.get("mixed_precision")
        #: None is what `accelerate launch` was told.
        self.mixed_precision = UNKNOWN if precision is None else precision
        self._on_cpu = arguments.get("cpu", False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return UNKNOWN

    @property
    def _is_known(self) -> bool:
        unknown = isinstance(self.mixed_precision, Unknown) or isinstance(self._on_cpu, Unknown)
        return not unknown and self.mixed_precision in ("no", "bf16", "fp16")

    def autocast(self, *handlers: Any, **named: Any) -> Any:
        if not self._is_known or handlers or named:
            return SHUT
        return mixed(self.mixed_precision, self._on_cpu) or contextlib.nullcontext()

    def call(self, model: Any, args: Any, kwargs: Any) -> Any:
        """What a model that was prepared gives."""
        if self._is_known:
            with self.autocast():
                result = model(*args, **kwargs)
            return result if self.mixed_precision == "no" else tree_map(_whole, result)
        result = model(*args, **kwargs)
        # Mixed precision or not, what is f32 is so outside; what is half may be either.
        half = any(isinstance(v, torch.Tensor) and v.dtype in _HALVES for v in tree_leaves(result))
        return UNKNOWN if half else result

    def prepare(self, *given: Any, **_: Any) -> Any:
        return given[0] if len(given) == 1 else given

    def prepare_model(self, model: Any, *_: Any, **__: Any) -> Any:
        return model

    prepare_data_loader = prepare_optimizer = prepare_scheduler = unwrap_model = prepare_model
    gather = gather_for_metrics = pad_across_processes = prepare_model

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Trains, prints or waits."""

    backward = print = log = wait_for_everyone = free_memory = clear = _nothing

    def _plainly(self, *_: Any, **__: Any) -> Any:
        return contextlib.nullcontext()

    accumulate = no_sync = join_uneven_inputs = _plainly
    main_process_first = local_main_process_first = profile = _plainly


#: Methods that put their arguments under mixed precision.
PREPARING = ("prepare", "prepare_model")


def _whole(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in _HALVES
    return value.float() if half else value

"""Loss scaling by torch's GradScaler, the sharded one of FSDP included.

Between `scale` and `unscale_` gradients are multiplied by the scale. `step` calls `unscale_` itself
(a fused optimizer divides inside its kernel, and the gradients stay scaled), and `update` ends the
iteration. accelerate and Lightning use these classes. A scaler that is not enabled says nothing.

The scale is handed on as the scaler's own tensor: reading it would wait for the device.
"""

from __future__ import annotations

from typing import Any

from .spec import Adapter, Observer, Tap


def after_scale(observer: Observer, result: Any, scaler: Any, *others: Any, **more: Any) -> None:
    if scaler.is_enabled() and scaler._scale is not None:
        observer.gradients_scaled(scaler._scale)


def after_unscale(
    observer: Observer, result: Any, scaler: Any, optimizer: Any, *others: Any, **more: Any
) -> None:
    if scaler.is_enabled():
        groups = optimizer.param_groups
        observer.gradients_unscaled([tensor for group in groups for tensor in group["params"]])


def after_update(observer: Observer, result: Any, scaler: Any, *others: Any, **more: Any) -> None:
    if scaler.is_enabled() and scaler._scale is not None:
        observer.gradients_unscaled()
        observer.scale(scaler._scale)


_SCALERS = (
    "torch.amp.grad_scaler:GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler:ShardedGradScaler",  # overrides all three
)

adapter = Adapter(
    "grad-scaler",
    taps=tuple(
        Tap(f"{scaler}.{method}", "gradients", after=after)
        for scaler in _SCALERS
        for method, after in (
            ("scale", after_scale),
            ("unscale_", after_unscale),
            ("update", after_update),
        )
    ),
)

"""By how much the gradients are scaled at the moment, as the adapters tell it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


class Scaling:
    """Which gradients are multiplied by a scale: all since `scaled`, until they are `unscaled`."""

    def __init__(self) -> None:
        self._scale: float | torch.Tensor | None = None
        #: By id: their gradients are divided by the scale again. Forgotten with the scale.
        self._unscaled: set[int] = set()

    def scaled(self, scale: float | torch.Tensor) -> None:
        self._scale = scale
        self._unscaled = set()

    def unscaled(self, parameters: Iterable[torch.Tensor] | None) -> None:
        if parameters is None:
            self._scale = None
            self._unscaled = set()
        elif self._scale is not None:
            self._unscaled.update(map(id, parameters))

    def forget(self) -> None:
        """Nothing is known to be scaled."""
        self.unscaled(None)

    def is_scaled(self, parameter: torch.Tensor | None) -> bool:
        """Whether the gradient of `parameter` is scaled now; None is for one that is to come."""
        return self._scale is not None and (
            parameter is None or id(parameter) not in self._unscaled
        )

    def scale_of(self, parameter: torch.Tensor | None) -> float | None:
        """What the gradient of `parameter` is multiplied by, None if by nothing.

        On CUDA this waits for the device.
        """
        scale = self._scale
        return float(scale) if scale is not None and self.is_scaled(parameter) else None

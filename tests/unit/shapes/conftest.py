"""What tests of the tracer share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tensorpoint.shapes.tracing.casting import allow_all_devices
from tensorpoint.shapes.tracing.machines import hanging
from tensorpoint.shapes.tracing.quiet import no_device_is_available


@pytest.fixture
def every_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in a tracer's own process; there is no GPU here, and none is said to be."""
    kind: Any = torch.amp.autocast_mode.autocast
    for owner, name in ((kind, "__init__"), (kind, "__enter__"), (torch, "is_autocast_enabled")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(torch.cuda, "is_available", no_device_is_available)
    allow_all_devices(hanging)
    yield
    del kind.is_given

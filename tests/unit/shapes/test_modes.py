"""The modes that runs of the tracer are under."""

from __future__ import annotations

import time

import pytest
import torch

from tensorpoint.shapes.tracing.modes import Deadline, TooLong


def works_on() -> None:
    with Deadline(time.monotonic() + 0.1), torch.no_grad(), torch.autocast("cpu"):
        while True:
            torch.ones(1)


def test_what_takes_too_long_leaves_torch_as_it_was() -> None:
    with pytest.raises(TooLong):
        works_on()
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_what_ends_too_late_leaves_torch_as_it_was() -> None:
    with Deadline(time.monotonic() + 0.1), torch.no_grad():
        time.sleep(0.2)
    assert torch.is_grad_enabled()

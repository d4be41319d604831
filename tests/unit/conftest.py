"""What holds for every unit test: it draws the same numbers, whatever ran before it."""

from __future__ import annotations

import random
import sys

import pytest


@pytest.fixture(autouse=True)
def seeds() -> None:
    random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)

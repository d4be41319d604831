"""Has the resident process ready for traces: without it each takes the import of torch."""

from __future__ import annotations

import logging
import os
import threading

from ..resident import client as resident
from ..resident.messages import Environment
from ..resident.places import RESIDENT_VARIABLE

_log = logging.getLogger(__name__)


class Warm:
    """Asks for a zygote of each environment once, on a thread: starting a host takes a moment."""

    def __init__(self) -> None:
        self._asked: set[tuple[str, ...]] = set()

    def begin(self, environment: Environment) -> None:
        """Have the first trace find a zygote, or the next."""
        mode = os.environ.get(RESIDENT_VARIABLE)
        if mode in ("0", "running") or resident.supported():
            return
        if environment.python not in self._asked:
            self._asked.add(environment.python)
            threading.Thread(target=_start, args=(environment,), daemon=True).start()


def _start(environment: Environment) -> None:
    try:
        client = resident.Client()
        client.start()
        client.acquire(environment)
    except resident.NoHost as error:
        _log.info("traces are cold: %s", error)

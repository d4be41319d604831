"""On what the numbers were measured: without this they mean nothing."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

_PACKAGES = ("torch", "transformers", "debugpy")


@dataclass(frozen=True)
class Machine:
    """The machine and the versions; `load` is the load average as the bench began."""

    processor: str
    cores: int
    system: str
    python: str
    packages: dict[str, str]
    load: float

    def __str__(self) -> str:
        packages = ", ".join(f"{name} {number}" for name, number in self.packages.items())
        return (
            f"{self.processor}, {self.cores} cores, {self.system}, Python {self.python}, "
            f"{packages}; load {self.load:.1f} at the start"
        )


def describe() -> Machine:
    """This machine, now."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        packages={name: version(name) for name in _PACKAGES},
        load=load(),
    )


def load() -> float:
    """The load average of the last minute; 0 where the system has none."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()

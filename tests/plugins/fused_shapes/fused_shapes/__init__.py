"""An operator with a kernel for the CPU only: torch can't tell which shape comes out of it."""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("fused_shapes", "DEF")
_LIBRARY.define("pool_and_project(Tensor x, Tensor weight, int stride) -> Tensor")


def _on_cpu(x: torch.Tensor, weight: torch.Tensor, stride: int) -> torch.Tensor:
    return x[:, ::stride].contiguous() @ weight


_LIBRARY.impl("pool_and_project", _on_cpu, "CPU")
pool_and_project = torch.ops.fused_shapes.pool_and_project


def attend(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Calls a library that only takes memory: `ctypes`, which no tracer sees into."""
    raise OSError("libfused.so: no such file")

"""Makes the process harmless before the user's code runs in it.

No output, no devices, no other processes, no network. The process ends with the answer, so nothing
is put back. Processes and the network are refused by an audit hook, which Python code can't take
away and which sees what libraries do by `_socket` and `_posixsubprocess` too; a library in C that
opens sockets by itself is not seen.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from typing import Any

import torch

from .casting import allow_all_devices
from .machines import hanging
from .weights import leave_out_weights

_INITIALIZERS = (
    "uniform_", "normal_", "trunc_normal_", "constant_", "ones_", "zeros_", "eye_", "dirac_",
    "xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_", "orthogonal_",
    "sparse_",
)  # fmt: skip


def keep_quiet() -> None:
    """Once, first of all."""
    os.environ.update(CUDA_VISIBLE_DEVICES="", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    sys.stdin = open(nothing, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = sys.stderr = open(nothing, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # a fork of a process whose threads have worked would hang in them
    torch.cuda.is_available = no_device_is_available
    torch.compile = torch.jit.script = torch.jit.script_if_tracing = _as_it_is
    _skip_initialization()
    sys.addaudithook(_refuse)
    leave_out_weights()
    allow_all_devices(hanging)
    argparse.ArgumentParser.parse_args = _defaults
    argparse.ArgumentParser.parse_known_args = lambda *a, **k: (_defaults(*a, **k), [])


def no_device_is_available() -> bool:
    return False


# Scripts ask it, and may call what is torch's.
no_device_is_available.__module__, no_device_is_available.__name__ = "torch.cuda", "is_available"


def _skip_initialization() -> None:
    """Values never matter here: Llama's constructor takes 0.04 s instead of 0.7."""
    for name in _INITIALIZERS:
        if hasattr(torch.nn.init, name):
            setattr(torch.nn.init, name, _first_argument)


def _first_argument(tensor: Any = None, *_: Any, **keywords: Any) -> Any:
    return keywords.get("tensor", tensor)


def _as_it_is(function: Any = None, *_: Any, **__: Any) -> Any:
    return function if function is not None else _as_it_is


_PROCESSES = {
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.system",
    "pty.spawn", "subprocess.Popen",
}  # fmt: skip
_NETWORK = {
    "socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyaddr",
    "socket.gethostbyname", "socket.sendmsg", "socket.sendto",
}  # fmt: skip


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if event in _PROCESSES:
        raise PermissionError("a file that is traced for shapes can't start processes")
    if event in _NETWORK:
        raise PermissionError("a file that is traced for shapes can't reach the network")


def _defaults(self: argparse.ArgumentParser, args: Any = None, namespace: Any = None) -> Any:
    """What the options are without a command line."""
    values = namespace or argparse.Namespace()
    for action in self._actions:
        if action.dest is not argparse.SUPPRESS and not hasattr(values, action.dest):
            if action.default is not argparse.SUPPRESS:
                default = action.default
                if isinstance(default, str):
                    default = self._get_value(action, default)
                setattr(values, action.dest, default)
    for name, value in self._defaults.items():
        if not hasattr(values, name):
            setattr(values, name, value)
    return values

"""The arguments of `launch` and `attach`: what is ours in them, and what we add to debugpy's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

from ..wire import Precision
from .env_file import read_env_file

PACKAGE_FOLDER = Path(__file__).resolve().parent.parent
#: The adapters for frameworks: next to our package when installed, else in the repository.
ADAPTERS_FOLDER = next(
    folder
    for above in (PACKAGE_FOLDER.parent, PACKAGE_FOLDER.parent.parent / "adapters")
    if (folder := above / "tensorpoint_adapters").is_dir()
)
#: The key in launch and attach arguments that holds conditions.
TENSORPOINTS = "tensorpoints"
#: The keys that ask for facts: to record them, and to leave them in a file.
RECORD, FACTS_FILE = "record", "factsFile"
#: The key that says how closely to look: "module" or "op".
PRECISION = "precision"
#: The keys that have edited functions swapped, and checkpoints kept: converted, and on a GPU.
HOT_SWAP, KEEP_WEIGHTS, KEEP_ON_DEVICE = "hotSwap", "keepWeights", "keepWeightsOnDevice"
#: A key that VS Code's Python extension puts into each configuration that has gone through it.
_VSCODE_PYTHON = "clientOS"
#: For debugpy: the folders of ours that are loaded in the program are not the user's code.
_HIDING_RULES = [
    {"path": str(folder / "**"), "include": False}
    for folder in (
        *(PACKAGE_FOLDER / room for room in ("agent", "conditions", "wire")),
        ADAPTERS_FOLDER,
    )
]


def take_tensorpoints(arguments: dict[str, Any]) -> list[str]:
    """Remove our key from `arguments` and return the conditions.

    Raises ValueError, with what to write instead, if it is not a list of strings.
    """
    given = arguments.pop(TENSORPOINTS, None)
    if given is None:
        return []
    if isinstance(given, list):
        items: list[object] = list(given)  # pyright: ignore[reportUnknownArgumentType]
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) == len(items):
            return texts
    raise ValueError(
        f'"{TENSORPOINTS}" must be a list of conditions, for example '
        f'"{TENSORPOINTS}": ["nonfinite(\\"model.layers.*\\")"]'
    )


def take_recording(arguments: dict[str, Any]) -> tuple[bool, str]:
    """Remove our keys from `arguments`: whether to record facts, and the file for them or "".

    Raises ValueError, with what to write instead, if they are of another type.
    """
    record: Any = arguments.pop(RECORD, None)
    file: Any = arguments.pop(FACTS_FILE, None)
    if record is not None and not isinstance(record, bool):
        raise ValueError(f'"{RECORD}" must be true or false')
    if file is not None and not isinstance(file, str):
        raise ValueError(f'"{FACTS_FILE}" must be the path of a file')
    if file:
        file = os.path.abspath(os.path.join(arguments.get("cwd") or "", file))
    return bool(record or file), file or ""


def take_switch(arguments: dict[str, Any], key: str) -> bool:
    """Remove a key of ours from `arguments`: whether it is on. Raises ValueError."""
    given: Any = arguments.pop(key, False)
    if not isinstance(given, bool):
        raise ValueError(f'"{key}" must be true or false')
    return given


def take_precision(arguments: dict[str, Any]) -> Precision:
    """Remove our key from `arguments`: how closely to look.

    Raises ValueError, with what to write instead, if it is something else.
    """
    given: Any = arguments.pop(PRECISION, "module")
    if given not in ("module", "op"):
        raise ValueError(f'"{PRECISION}" must be "module" or "op"')
    return given


def check_interpreter(arguments: dict[str, Any]) -> None:
    """Raise ValueError if the configuration names an interpreter that isn't there.

    In a terminal nobody would tell the debugger, which then waits a minute for the program.
    """
    python: Any = arguments.get("python") or arguments.get("pythonPath") or ""
    command = python if isinstance(python, str) else str(python[0])
    if os.sep in command and not Path(arguments.get("cwd") or "", command).exists():
        raise ValueError(f'there is no interpreter "{command}"')


def read_environment(arguments: dict[str, Any]) -> None:
    """Put the variables of `envFile` into `env`, which wins where both have one.

    debugpy ignores `envFile`: VS Code's Python extension reads it, other editors leave it to us.
    That extension always names one, which need not exist. Raises ValueError if it can't be read.
    """
    name: str = arguments.pop("envFile", None) or ""
    if not name or _VSCODE_PYTHON in arguments:
        return
    path = Path(arguments.get("cwd") or "", name)
    try:
        found = read_env_file(path, os.environ)
    except OSError as error:
        raise ValueError(f'"envFile": cannot read {path}: {error.strerror}') from None
    arguments["env"] = {**found, **(arguments.get("env") or {})}


def hide_agent(arguments: dict[str, Any]) -> None:
    """Keep the debugger from stepping into the agent and from listing its frames."""
    arguments["rules"] = [*_HIDING_RULES, *(arguments.get("rules") or [])]


def forget_hiding(configuration: dict[str, Any]) -> None:
    """Undo `hide_agent`: debugpy offers a child's configuration with what it got for its parent."""
    given: list[Any] = configuration.pop("rules", None) or []
    if rules := [rule for rule in given if rule not in _HIDING_RULES]:
        configuration["rules"] = rules


def address_to_dial(arguments: dict[str, Any]) -> tuple[str, int] | None:
    """Where an attach connects to an adapter that listens already, or None for all other kinds.

    Raises ValueError if the address is incomplete.
    """
    connect: Any = arguments.get("connect")
    if connect is None and "port" in arguments and "listen" not in arguments:
        connect = {"host": arguments.get("host"), "port": arguments["port"]}
    if connect is None:
        return None
    if not isinstance(connect, dict) or "port" not in connect:
        raise ValueError('"connect" needs a port: "connect": {"host": "127.0.0.1", "port": 5678}')
    address = cast("dict[str, object]", connect)
    host, port = address.get("host"), address["port"]
    if not str(port).isdecimal():
        raise ValueError(f'"connect": the port must be a number, not {port!r}')
    return str(host or "127.0.0.1"), int(str(port))

"""What a run is asked to do, checked before anything starts, and how it went."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from ..wire import Precision, Stop
from ..wire.layer_event import LayerEvent

#: Exit status of `tensorpoint run` when a tensorpoint fired.
STATUS_FIRED = 3
#: Exit status for a command or condition that is refused; nothing was run.
STATUS_REFUSED = 2

#: The filter that `--on nonfinite` names, and the prefix of a layer breakpoint.
NONFINITE = "nonfinite"
LAYER = "layer:"


class RunError(Exception):
    """The program could not be run, with the exit status that says so."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Program:
    """What is run: a file, a module (`-m`) or code (`-c`), with its arguments."""

    kind: Literal["program", "module", "code"]
    target: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """How a program is run."""

    program: Program
    #: Tensorpoints as `--on` takes them; none means NaN/Inf.
    on: tuple[str, ...] = ()
    #: Report no more than this many stops.
    max_stops: int | None = None
    #: After the last stop that is reported: end the program, or let it run to its end.
    on_stop: Literal["continue", "quit"] = "quit"
    python: str | None = None
    log_dir: Path | None = None
    #: Leave the facts there; those of child processes in FILE.PID.
    facts: Path | None = None
    #: List the layer events of one step in place of stopping.
    step: Literal["layers"] | None = None
    #: "op" records each operation as it runs.
    precision: Precision = "module"
    subprocess: bool = True
    #: Whether the program may come from the resident process, if one runs.
    resident: bool = True
    #: Send the program's stdout to our stderr: our stdout carries the stops.
    stdout_is_ours: bool = False
    adapter: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """How it went: our exit status and the stops that were reported."""

    status: int
    stops: tuple[Stop, ...]
    #: Whether Ctrl-C ended it: a shell script goes on unless we die of SIGINT ourselves.
    interrupted: bool = False
    #: Whether the program was ended at its last stop.
    quit: bool = False


@dataclass(frozen=True)
class Reported:
    """A stop as the report needs it."""

    stop: Stop
    number: int
    #: Which process, where it is not the program itself.
    process: str | None


#: Called with the layer events of the step, once.
ReportLayers = Callable[[Sequence[LayerEvent]], None]


@dataclass(frozen=True)
class Arming:
    """`--on` options, sorted into the ways a DAP client sets a tensorpoint."""

    nonfinite: bool
    conditions: tuple[str, ...] = ()
    layers: tuple[tuple[str, str], ...] = ()


def arm(on: Sequence[str], step: Literal["layers"] | None = None) -> Arming:
    """Check `--on` options and sort them; raises `RunError` for one that is refused.

    Without any it is NaN/Inf. `nonfinite` alone names the NaN/Inf filter, `layer:PATH` and
    `layer:PATH if CONDITION` stop at the entry of layers, all else is a condition.
    """
    if step is not None:
        if on:
            raise RunError("--step lists the layers of one step: without --on", STATUS_REFUSED)
        return Arming(nonfinite=False)
    if not on:
        return Arming(nonfinite=True)
    conditions: list[str] = []
    layers: list[tuple[str, str]] = []
    nonfinite = False
    for text in map(str.strip, on):
        if text == NONFINITE:
            nonfinite = True
        elif text.startswith(LAYER):
            name, _, condition = text[len(LAYER) :].partition(" if ")
            if not name.strip():
                raise RunError(f"--on {text!r}: name a layer, like layer:model.layers.3", 2)
            _check(condition, name)
            layers.append((name.strip(), condition.strip()))
        else:
            _check(text)
            conditions.append(text)
    return Arming(nonfinite, tuple(conditions), tuple(layers))


def _check(condition: str, layer: str | None = None) -> None:
    # Here, not at the top: the check loads the solver.
    from ..conditions import ConditionError
    from ..conditions.plan import check, check_layer

    try:
        if layer is None:
            check(condition)
        else:
            check_layer(layer, condition)
    except ConditionError as error:
        caret = "\n".join(f"  {line}" for line in error.caret().splitlines())
        raise RunError(f"--on is refused: {error.message}\n{caret}", STATUS_REFUSED) from None


def find_python(python: str | None) -> str:
    """The interpreter to run the program with; raises `RunError` where there is none."""
    if python is None:
        return sys.executable
    found = shutil.which(python)
    if found is None:
        raise RunError(f"there is no interpreter {python!r}", STATUS_REFUSED)
    return os.path.abspath(found)


def check_file(target: str) -> None:
    """Raises `RunError` as python would refuse the file, with its words and status.

    debugpy would print a traceback of its own.
    """
    path = os.path.abspath(target)
    if not os.path.exists(path):
        raise RunError(f"can't open file {path!r}: [Errno 2] No such file or directory", 2)
    holds_modules = os.path.isdir(path) or zipfile.is_zipfile(path)
    if holds_modules and PathFinder.find_spec("__main__", [path]) is None:
        raise RunError(f"can't find '__main__' module in {path!r}", 1)

"""`tensorpoint run` on the command line: its options, its report, and how it ends.

Our options end where the program begins; from there on the words are the program's own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, NoReturn, TextIO

from ..command_options import add_log_dir, add_python
from ..report import layer_as_json, layer_line, print_stop, report_console, stop_as_json
from ..wire.layer_event import LayerEvent
from .options import Options, Program, Reported, RunError
from .program import run

_USAGE = "tensorpoint run [options] (PROGRAM | -m MODULE | -c CODE) [ARGS ...]"
_EPILOG = """\
Everything after PROGRAM, MODULE or CODE is the program's own, as with `python`.

Conditions of --on:
  nonfinite                    NaN or Inf born anywhere (the default without --on)
  'nonfinite("model.layers.*") and step > 100'
  layer:model.layers.3         stop when that layer is entered
  'layer:*.mlp if step > 10'   the same with a condition

Exit status: 3 if a tensorpoint fired, 2 if the command or a condition is refused,
else the program's own (128+N if signal N ended it).

The report of a stop goes to standard error. With --json each stop is one line of JSON on standard
output, the only thing there: what the program prints goes to standard error.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorpoint run",
        usage=_USAGE,
        description="Run a program and report each stop, without an editor.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--on",
        metavar="CONDITION",
        action="append",
        default=[],
        help="stop on this condition; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="report each stop as a line of JSON")
    parser.add_argument(
        "--max-stops",
        metavar="N",
        type=_positive,
        help="report at most N stops (1, or without limit with --on-stop continue)",
    )
    parser.add_argument(
        "--on-stop",
        choices=("continue", "quit"),
        help="after the last stop that is reported: let the program run on, or end it (quit)",
    )
    parser.add_argument(
        "--facts",
        metavar="FILE",
        type=Path,
        help="record shapes, statistics and gradient norms, and leave them there as JSON; those "
        "of child processes in FILE.PID",
    )
    parser.add_argument(
        "--precision",
        choices=("module", "op"),
        default="module",
        help="module (the default): find the operation by running a forward again; op: record each "
        "operation as it runs, which is slower but also names it in what can't be run again",
    )
    parser.add_argument(
        "--step",
        choices=("layers",),
        help="list the layers that one step enters and leaves: forward, backward, optimizer; then "
        "end the program, or let it run on with --on-stop continue",
    )
    add_python(parser)
    parser.add_argument(
        "--no-subprocess",
        action="store_true",
        help="do not watch the processes that the program starts",
    )
    parser.add_argument(
        "--no-resident",
        action="store_true",
        help="start a fresh interpreter even if a resident process runs (see tensorpoint host)",
    )
    add_log_dir(parser)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of stops")
    return int(text)


_FLAGS: tuple[tuple[str, Literal["module", "code"]], ...] = (("-m", "module"), ("-c", "code"))


def split_command(argv: Sequence[str]) -> tuple[list[str], Program | None]:
    """Our options, and the program with all that follows it, left as it is."""
    with_value = {
        *("--on", "--max-stops", "--on-stop", "--python", "--log-dir", "--facts", "--precision"),
        "--step",
    }
    i = 0
    while i < len(argv):
        word = argv[i]
        if word in with_value:
            i += 2
            continue
        for flag, kind in _FLAGS:
            if word == flag and i + 1 < len(argv):
                return list(argv[:i]), Program(kind, argv[i + 1], tuple(argv[i + 2 :]))
            # As python has it: -mMODULE.
            if word.startswith(flag) and len(word) > len(flag):
                return list(argv[:i]), Program(kind, word[2:], tuple(argv[i + 1 :]))
        if word == "--" and i + 1 < len(argv):
            return list(argv[:i]), Program("program", argv[i + 1], tuple(argv[i + 2 :]))
        if not word.startswith("-"):
            return list(argv[:i]), Program("program", word, tuple(argv[i + 1 :]))
        i += 1
    return list(argv), None


def run_options(argv: Sequence[str]) -> tuple[Options, bool]:
    """The options of `tensorpoint run`, and whether stops are reported as JSON."""
    ours, program = split_command(argv)
    parser = _parser()
    given = parser.parse_args(ours)
    if program is None:
        parser.error("name a PROGRAM, -m MODULE or -c CODE")
    max_stops: int | None = given.max_stops
    if max_stops is None and given.on_stop != "continue":
        max_stops = 1
    options = Options(
        program=program,
        on=tuple(given.on),
        max_stops=max_stops,
        on_stop=given.on_stop or "quit",
        python=given.python,
        log_dir=given.log_dir,
        facts=given.facts,
        precision=given.precision,
        step=given.step,
        subprocess=not given.no_subprocess,
        resident=not given.no_resident,
        stdout_is_ours=given.json,
    )
    return options, given.json


def run_command(argv: Sequence[str]) -> int:
    """Run it; returns the exit status. Dies of SIGINT where Ctrl-C ended the program."""
    options, as_json = run_options(argv)
    console = report_console()

    def report(reported: Reported) -> None:
        if as_json:
            print(stop_as_json(reported.stop), flush=True)
        else:
            print_stop(console, reported.stop, number=reported.number, process=reported.process)

    def report_layers(events: Sequence[LayerEvent]) -> None:
        for event in events:
            print(layer_as_json(event) if as_json else layer_line(event))
        sys.stdout.flush()

    try:
        outcome = run(options, report, report_layers)
    except RunError as error:
        print(f"tensorpoint: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        _die_of_interrupt()
    finally:
        _forget_broken(sys.stdout)
    if outcome.quit and not as_json:
        with suppress(BrokenPipeError):
            print(
                "tensorpoint: the program was ended there; --on-stop continue lets it go on",
                file=sys.stderr,
            )
    _forget_broken(sys.stderr)
    if outcome.interrupted:
        _die_of_interrupt()
    return outcome.status


def _forget_broken(stream: TextIO) -> None:
    """Keep the interpreter from complaining at exit that nobody reads our output."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _die_of_interrupt() -> NoReturn:
    """End as a program does that Ctrl-C ended: the shell script that called us ends, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)

"""The command line: what each command takes. What it does lives in the module of its name.

Modules are imported by the command that needs them: an editor waits for `tensorpoint dap`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn

if TYPE_CHECKING:
    from tensorpoint.run import Options, Program
    from tensorpoint.wire.layer_event import LayerEvent

_RUN_USAGE = "tensorpoint run [options] (PROGRAM | -m MODULE | -c CODE) [ARGS ...]"
_RUN_EPILOG = """\
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        # By hand: argparse would take the program's options for ours.
        return _run(arguments[1:])
    if arguments[:1] == ["dap"] and "-h" not in arguments and "--help" not in arguments:
        from tensorpoint.resident.handover import hand_over

        hand_over(arguments)
    options = _parser().parse_args(arguments)
    if options.command == "dap":
        return _dap(options)
    if options.command == "lsp":
        return _lsp(options)
    if options.command == "doctor":
        return _doctor(options)
    if options.command == "demo":
        return _demo(options)
    if options.command == "host":
        return _host(options)
    if options.command == "shapes":
        return _shapes(options)
    _parser().print_help()
    return 0


def _parser() -> argparse.ArgumentParser:
    from tensorpoint import __version__

    parser = argparse.ArgumentParser(
        prog="tensorpoint",
        description="A debugger for PyTorch that stops on tensor conditions.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tensorpoint {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")

    dap = commands.add_parser("dap", help="the debug adapter that an editor starts")
    _add_listen(dap)
    # See `resident.handover`.
    dap.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    _add_log_dir(dap)

    lsp = commands.add_parser(
        "lsp", help="the language server: shapes in the editor before the program runs"
    )
    _add_listen(lsp)
    lsp.add_argument(
        "--stdio", action="store_true", help="the default; clients that always say it may"
    )
    _add_log_dir(lsp)

    # Parsed elsewhere, listed here.
    commands.add_parser("run", help="run a program and report each stop", add_help=False)

    demo = commands.add_parser("demo", help="train a small GPT-2 with a planted NaN and find it")
    _add_python(demo)
    _add_log_dir(demo)

    host = commands.add_parser(
        "host",
        help="the resident process, from which programs start in a moment",
        description="The resident process has torch imported already; programs are forked from it.",
        epilog="status: what runs. start: have it ready for the interpreter, and wait for that. "
        "restart: with fresh imports. stop: end it, and what it runs. logs: what it has written. "
        "python: print the path of an executable to use in place of the interpreter, "
        "in a debug configuration or for torchrun (PYTHON_EXEC). "
        "facts: what was recorded of the last run. weights: the converted checkpoints "
        'that are kept in memory ("keepWeights"); --drop gives that back.',
    )
    host.add_argument(
        "action",
        choices=(
            "status",
            "start",
            "restart",
            "stop",
            "logs",
            "python",
            "facts",
            "weights",
            "serve",
        ),
        nargs="?",
        default="status",
    )
    host.add_argument("--json", action="store_true", help="status, facts or weights as JSON")
    host.add_argument("--drop", action="store_true", help="weights: keep none any longer")
    _add_python(host)

    _add_shapes(commands.add_parser("shapes", help="the shapes of a file's tensors, without a run"))

    doctor = commands.add_parser("doctor", help="say what works here and what does not")
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    _add_python(doctor)
    _add_log_dir(doctor)
    return parser


def _add_shapes(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a file with the shapes that its tensors will have. Nothing is run but "
        "the forward of its modules, without data, and what that needs."
    )
    parser.epilog = "Exit status: 1 if there are errors in the shapes, 2 if nothing can be traced."
    parser.add_argument("file", metavar="FILE", nargs="?", help="a Python file")
    parser.add_argument("--class", metavar="C", dest="class_name", help="trace only this class")
    parser.add_argument(
        "--spec",
        metavar="S",
        action="append",
        default=[],
        help="the inputs, as in 'x: f32[B, 3, H, W], H %% 32 == 0'; may be given several times",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.add_argument(
        "--object",
        metavar="M:C",
        default="",
        help="trace an installed class in the place of a file",
    )
    parser.add_argument(
        "--config",
        metavar="F",
        default="",
        help="JSON that the configuration of --object is made from",
    )
    parser.add_argument(
        "--smt2",
        metavar="F",
        type=Path,
        help="write the conditions on the sizes there, as SMT-LIB 2",
    )
    parser.add_argument(
        "--breaks",
        action="store_true",
        help="ask torch.compile where it would break the graph, which takes some seconds",
    )
    parser.add_argument(
        "--plugin",
        metavar="M:F",
        action="append",
        default=[],
        help="a function that says what operations do to shapes; may be given several times",
    )
    _add_python(parser)


def _run_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorpoint run",
        usage=_RUN_USAGE,
        description="Run a program and report each stop, without an editor.",
        epilog=_RUN_EPILOG,
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
    _add_python(parser)
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
    _add_log_dir(parser)
    return parser


def _add_listen(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        help="wait for editors on a port instead of standard input and output",
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="let --listen take an address that other machines reach; "
        "whoever connects can run code here",
    )


def _add_python(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python",
        metavar="PY",
        help="the interpreter that runs the program (the one that runs tensorpoint)",
    )


def _add_log_dir(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("TENSORPOINT_LOG_DIR")
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        type=Path,
        default=Path(default) if default else None,
        help="write logs of all processes there ($TENSORPOINT_LOG_DIR)",
    )


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    host = host.removeprefix("[").removesuffix("]")  # [::1]:5678
    return (host if colon and host else "127.0.0.1", int(port))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of stops")
    return int(text)


# -- run


_FLAGS: tuple[tuple[str, Literal["module", "code"]], ...] = (("-m", "module"), ("-c", "code"))


def split_command(argv: Sequence[str]) -> tuple[list[str], Program | None]:
    """Our options, and the program with all that follows it, left as it is."""
    from tensorpoint.run import Program

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
    from tensorpoint.run import Options

    ours, program = split_command(argv)
    parser = _run_parser()
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


def _run(argv: Sequence[str]) -> int:
    from tensorpoint.report import (
        layer_as_json,
        layer_line,
        print_stop,
        report_console,
        stop_as_json,
    )
    from tensorpoint.run import Reported, RunError, run

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
        _forget_broken_stdout()
    if outcome.quit and not as_json:
        print(
            "tensorpoint: the program was ended there; --on-stop continue lets it go on",
            file=sys.stderr,
        )
    if outcome.interrupted:
        _die_of_interrupt()
    return outcome.status


def _forget_broken_stdout() -> None:
    """Keep the interpreter from complaining at exit that nobody reads our output."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _die_of_interrupt() -> NoReturn:
    """End as a program does that Ctrl-C ended: the shell script that called us ends, too."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    raise SystemExit(128 + signal.SIGINT)


# -- the others


def _dap(options: argparse.Namespace) -> int:
    from tensorpoint.dap.server import serve

    return serve(options.listen, options.allow_remote, options.log_dir)


def _lsp(options: argparse.Namespace) -> int:
    from tensorpoint.lsp.server import serve

    return serve(options.listen, options.allow_remote, options.log_dir)


def _host(options: argparse.Namespace) -> int:
    from tensorpoint.resident.commands import host

    if options.action == "facts":
        return _facts_of_last_run(options.json)
    if options.drop and options.action != "weights":
        print("tensorpoint host: --drop goes with weights", file=sys.stderr)
        return 2
    return host(options.action, python=options.python, as_json=options.json, drop=options.drop)


def _demo(options: argparse.Namespace) -> int:
    from tensorpoint.demo import demo

    return demo(options.python, options.log_dir)


def _doctor(options: argparse.Namespace) -> int:
    from tensorpoint.doctor import doctor

    return doctor(options.python, as_json=options.json, log_dir=options.log_dir)


def _facts_of_last_run(as_json: bool) -> int:
    from tensorpoint.dap.facts import table
    from tensorpoint.resident.runs import last_run
    from tensorpoint.wire.codec import encode

    found = last_run(os.getcwd()) or last_run()
    if found is None:
        print(
            "tensorpoint host: no facts are kept: record some, by "
            '"record": true in a launch configuration or tp record on in the debug console',
            file=sys.stderr,
        )
        return 1
    run, facts = found
    if as_json:
        print(encode({"run": run, "facts": facts}))
        return 0
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.read))
    print(f"{run.program}, process {run.pid}, {'ended' if run.ended else 'as of'} {when}")
    print(table(facts))
    return 0


def _shapes(options: argparse.Namespace) -> int:
    from tensorpoint.shapes.show import Options, shapes

    if bool(options.file) == bool(options.object):
        print("tensorpoint shapes: name a FILE or --object MODULE:CLASS", file=sys.stderr)
        return 2
    if options.class_name and options.object:
        print("tensorpoint shapes: --class goes with a FILE, --object names one", file=sys.stderr)
        return 2
    if options.config and not options.object:
        print("tensorpoint shapes: --config goes with --object", file=sys.stderr)
        return 2
    return shapes(
        Options(
            file=options.file,
            class_name=options.class_name,
            specs=tuple(options.spec),
            as_json=options.json,
            object=options.object,
            config=options.config,
            smt2=options.smt2,
            plugins=tuple(options.plugin),
            breaks=options.breaks,
            python=options.python,
        )
    )

"""The command line: what each command takes. What it does lives in the module of its name.

Modules are imported by the command that needs them: an editor waits for `tensorpoint dap`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from .command_options import add_listen, add_log_dir, add_python, why_no_logs


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["run"]:
        # By hand: argparse would take the program's options for ours.
        from tensorpoint.run.command import run_command

        return run_command(arguments[1:])
    options = _parser().parse_args(arguments)
    if options.command in ("doctor", "demo") and (reason := why_no_logs(options.log_dir)):
        print(f"tensorpoint {options.command}: {reason}", file=sys.stderr)
        return 2
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
    add_listen(dap)
    # See `resident.handover`.
    dap.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    add_log_dir(dap)

    lsp = commands.add_parser(
        "lsp", help="the language server: shapes in the editor before the program runs"
    )
    add_listen(lsp)
    lsp.add_argument(
        "--stdio", action="store_true", help="the default; clients that always say it may"
    )
    add_log_dir(lsp)

    # Parsed elsewhere, listed here.
    commands.add_parser("run", help="run a program and report each stop", add_help=False)

    demo = commands.add_parser("demo", help="train a small GPT-2 with a planted NaN and find it")
    add_python(demo)
    add_log_dir(demo)

    host = commands.add_parser(
        "host",
        help="the resident process, from which programs start in a moment",
        description="The resident process has torch imported already; programs are forked from it.",
        epilog="status: what runs. start: have it ready for the interpreter, and wait for that. "
        "restart: with fresh imports. stop: end it, and what it runs. logs: what it has written. "
        "python: print the path of an executable to use in place of the interpreter, "
        "in a debug configuration or for torchrun (PYTHON_EXEC). "
        "facts: what was recorded of the last run. weights: the checkpoints that are kept "
        'in memory ("keepWeights") and on GPUs ("keepWeightsOnDevice"); --drop gives that back.',
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
    add_python(host)

    _add_shapes(commands.add_parser("shapes", help="the shapes of a file's tensors, without a run"))

    doctor = commands.add_parser("doctor", help="say what works here and what does not")
    doctor.add_argument("--json", action="store_true", help="as one JSON object")
    add_python(doctor)
    add_log_dir(doctor)
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
    add_python(parser)


# -- what they do


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

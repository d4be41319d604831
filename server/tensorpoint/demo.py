"""`tensorpoint demo`: one NaN from the stop to the clean run, on a program that trains a GPT-2.

Nothing in it is staged: `demo_program/train.py` runs under the real adapter, by the machinery of
`tensorpoint run`; the fix is applied to a copy of it, which then runs under the same watch.
"""

from __future__ import annotations

import difflib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tensorpoint.report import print_stop, report_console
from tensorpoint.run import Options, Outcome, Program, Reported, RunError, find_python, run

PROGRAM = Path(__file__).parent / "demo_program" / "train.py"

#: The line with the bug, and the line to write instead.
FIX = ("log_p = p.log()", "log_p = sharp.log_softmax(dim=-1)")

_NEEDED = ("torch", "transformers")

_PROBE = """\
import importlib.util, json, sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""

_WHY = """\
Why: the penalty sharpens the logits with a falling temperature. From this step on the softmax of \
some characters is so small that it is 0 in float32. Then log(0) is -inf and 0 * -inf is NaN. The \
loss would be NaN from here on, and after the next optimizer step every weight of the model, with \
nothing left to say where it came from."""

_NEXT = """\
Your own program: {command} train.py ARGS
In an editor: start `{command_dap}` as its debug adapter; the breakpoint "NaN/Inf" is on."""


def demo(python: str | None = None, log_dir: Path | None = None) -> int:
    """Run the demo; 0 if all of it went as it says."""
    console = report_console(sys.stdout)
    try:
        python = find_python(python)
        _require(python)
        return _Demo(console, python, log_dir).show()
    except RunError as error:
        print(f"tensorpoint: {error}", file=sys.stderr)
        return error.status


class _Demo:
    def __init__(self, console: Console, python: str, log_dir: Path | None) -> None:
        self._console = console
        self._python = python
        self._log_dir = log_dir

    def show(self) -> int:
        self._step(1, "A program with a bug", f"It trains a small GPT-2. The program: {PROGRAM}")
        self._step(2, "Run it, and stop where a NaN is born", f"$ tensorpoint run {PROGRAM.name}")
        outcome = self._run(PROGRAM)
        if outcome.interrupted:
            return outcome.status
        if not outcome.stops:
            self._say(f"\nIt ended with status {outcome.status} and without a stop: not as meant.")
            return 1
        self._say(_WHY)

        self._step(3, "The fix, one line", "")
        broken = PROGRAM.read_text(encoding="utf-8")
        fixed = broken.replace(*FIX)
        self._show_diff(broken, fixed)

        self._step(4, "Run it again, still watching for NaN", f"$ tensorpoint run {PROGRAM.name}")
        with tempfile.TemporaryDirectory(prefix="tensorpoint-demo-") as folder:
            copy = Path(folder) / PROGRAM.name
            copy.write_text(fixed, encoding="utf-8")
            outcome = self._run(copy)
        if outcome.interrupted:
            return outcome.status
        if outcome.status != 0:
            self._say(f"\nIt ended with status {outcome.status}: not as meant.")
            return 1
        self._say("\nClean: the program ran to its end, no NaN or Inf was born.\n")
        self._say(_NEXT.format(command="tensorpoint run", command_dap="tensorpoint dap"))
        return 0

    def _run(self, program: Path) -> Outcome:
        options = Options(
            program=Program("program", str(program)),
            max_stops=1,
            python=self._python,
            log_dir=self._log_dir,
        )
        return run(options, self._report)

    def _report(self, reported: Reported) -> None:
        print_stop(self._console, reported.stop)

    def _step(self, number: int, title: str, text: str) -> None:
        self._console.print(Text(f"\n{number}. {title}", style="bold green"))
        if text:
            self._say(text)

    def _say(self, text: str) -> None:
        self._console.print(Text(text))

    def _show_diff(self, broken: str, fixed: str) -> None:
        styles = {"+": "green", "-": "red", "@": "cyan"}
        lines = difflib.unified_diff(
            broken.splitlines(),
            fixed.splitlines(),
            fromfile=PROGRAM.name,
            tofile=PROGRAM.name,
            lineterm="",
            n=2,
        )
        for line in lines:
            self._console.print(Text(line, style=styles.get(line[:1], "")))


def _require(python: str) -> None:
    try:
        probe = subprocess.run(
            [python, "-c", _PROBE, *_NEEDED],
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
            check=True,
        )
        missing: list[str] = json.loads(probe.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise RunError(f"{python} does not run: {error}") from None
    if missing:
        raise RunError(
            f"the demo needs {' and '.join(missing)}, which {python} does not have.\n"
            f"To install: {python} -m pip install 'tensorpoint[demo]'"
        )

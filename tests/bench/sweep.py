"""`make sweep`: the shapes of transformers, timm and torchvision, compared with real runs.

Each architecture that builds is traced as `tensorpoint shapes --object` does it, in a fork with
limits of time and memory, and then run with real tensors at two odd sizes that no probe had,
telling the values of the same expressions (`truth`). A hint is right if every value that it had
there is one that it shows; one that was never reached does not count. The code works, so each error
or warning is a false alarm.

    python tests/bench/sweep.py [NAME ...] [--family text vision timm torchvision] [--json FILE]

Nothing is asserted: the shares are printed, and what does not work. `--json` gets a line for each
architecture as it comes; those that are there already are not run again. They come in an order
drawn once, so that the first hundred are a sample. `--depth probes` leaves out the FX pass, and
`symbolic` the diagnostics: a third, and half of the time.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import random
import resource
import statistics
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "server"):
    sys.path.insert(0, str(folder))

from tests.bench.architectures import (  # noqa: E402
    FAMILIES,
    Architecture,
    known,
    with_torchvision,
)

#: Of one architecture: CPU time, and waiting, on a machine that is busy.
_CPU_SECONDS, _SECONDS = 240, 1800
_MEMORY = 12 << 30
#: Parameters up to which an architecture is made real.
_LARGEST = 60_000_000
_SYMBOLIC_SECONDS = 60.0
_EXAMPLES = 6
#: Modules that each fork would import by itself.
_SHARED = (
    *("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes"),
    *("transformers.modeling_utils", "tensorpoint.shapes.branches"),
    *("tensorpoint.shapes.tracing.main", "tensorpoint.shapes.tracing.readable"),
)
_DEPTHS = ("probes", "symbolic", "diagnostics")
#: What is compared is at these sizes, where the architecture takes them.
_ODD = (
    {"B": 3, "T": 21, "U": 26, "H": 131, "W": 157, "D": 21},
    {"B": 2, "T": 33, "U": 14, "H": 175, "W": 203, "D": 27},
)


@dataclass
class Score:
    """One architecture. `skipped` says why there is no real run to compare with."""

    family: str
    name: str
    skipped: str = ""
    failed: str = ""
    inputs: str = ""
    places: int = 0
    right: int = 0
    wrong: int = 0
    #: Of the wrong ones, those that the FX pass has confirmed.
    wrong_symbolic: int = 0
    unfit: int = 0
    #: None where the FX pass was left out.
    symbolic: int | None = None
    seconds: float = 0.0
    #: Errors and warnings about code that works.
    alarms: tuple[str, ...] = ()
    examples: tuple[str, ...] = ()


# -- one architecture, in its own process


def score(each: Architecture, depth: str) -> Score:
    """Trace and compare."""
    from tensorpoint.shapes.tracing import quiet

    quiet.keep_quiet()
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    why = ""
    for fields in each.configurations():
        with tempfile.TemporaryDirectory() as folder:
            config = Path(folder, "config.json")
            config.write_text(json.dumps(fields, default=str))
            found = _scored(each, str(config), depth)
        if not found.skipped:
            return found
        why = why or found.skipped
    return Score(each.family, each.name, skipped=why)


def _scored(each: Architecture, config: str, depth: str) -> Score:
    from tensorpoint.shapes.tracing.guessing import likely_inputs
    from tensorpoint.shapes.tracing.inputs import Spec, spec_text
    from tensorpoint.shapes.tracing.main import table_of
    from tensorpoint.shapes.tracing.objects import load_object, make_object
    from tensorpoint.shapes.tracing.symbolic import agreeing, trace_symbolic
    from tensorpoint.shapes.tracing.targets import CannotMake
    from tensorpoint.wire.shapes import ShapeRequest
    from tests.bench.truth import compare

    result = Score(each.family, each.name)
    try:
        file, name = load_object(each.object)
        made = make_object(file, name, config)
    except CannotMake as error:
        result.skipped = _line(error)
        return result
    elements = sum(each.numel() for each in made.module.parameters())
    if elements > _LARGEST:
        result.skipped = f"too large: {elements / 1e6:.0f} M parameters"
        return result
    kept: list[Any] = []
    began = time.process_time()
    alarms = depth == "diagnostics"
    request = ShapeRequest("", "", object=each.object, config=config, symbolic=alarms)
    table = table_of(request, _ask if alarms else None, kept)
    result.seconds = time.process_time() - began
    result.alarms = tuple(
        f"{found.code} {found.span.line}: {found.message}"[:200]
        for found in table.diagnostics
        if found.severity in ("error", "warning")
    )
    if not kept:
        inputs = next(likely_inputs(made.module, Spec(), file.source.path), ())
        runs = real_runs(file, made.module, inputs, None)
        if isinstance(runs, str):
            result.skipped = f"no real run: {runs}"
        result.failed = "; ".join(table.untraced)[:300] or "a fault is said"
        return result
    file, probed = kept[0]
    result.inputs = ", ".join(f"{i.name}: {spec_text(i.value)}" for i in probed.target.inputs)
    runs = real_runs(file, probed.target.module, probed.target.inputs, probed.plan)
    if isinstance(runs, str):
        result.skipped = f"no real run: {runs}"
        return result
    agreed: set[int] = set()
    if depth != "probes":
        agreed = agreeing(probed, trace_symbolic(probed, file.source, _SYMBOLIC_SECONDS))
        result.symbolic = 0
    compared = compare(probed, runs, file.sites)
    if not compared.places:  # a function beside whose class is in another file
        result.skipped = "nothing of its file is reached"
    result.places, result.right = compared.places, len(compared.right)
    result.wrong, result.unfit = len(compared.wrong), len(compared.unfit)
    result.wrong_symbolic = len(agreed & compared.wrong.keys())
    if result.symbolic is not None:
        result.symbolic = len(agreed & (compared.right | compared.wrong.keys()))
    missing = [
        f"{file.sites[site].span.line} {file.sites[site].name}: no shape; "
        + ", ".join(str(o.snapshot) for run in runs for o in run.observations if o.site == site)
        for site in sorted(compared.unfit)
    ]
    result.examples = tuple(
        text[:200] for text in [*[*compared.wrong.values()][:_EXAMPLES], *missing[:_EXAMPLES]]
    )
    return result


def real_runs(file: Any, module: Any, inputs: Any, plan: Any) -> list[Any] | str:
    """Two real runs at sizes that no probe had, or why there are none."""
    from tests.bench.truth import filled, ids_and_masks, numbers, real_run

    real = filled(module)
    symbols = {name for each in inputs for name in each.symbols()}
    fixed = plan.fixed if plan is not None else {}
    sizes: list[list[dict[str, int]]] = []
    if symbols <= _ODD[0].keys():
        sizes.append([{name: fixed.get(name, odd[name]) for name in symbols} for odd in _ODD])
    if plan is not None:
        sizes.append([more for more in plan.more(()) if more not in plan.probes][:2])
    fill = ids_and_masks if any("id" in each.name for each in inputs) else numbers(0, 1)
    runs: list[Any] = []
    for pair in sizes:
        runs = [real_run(file, real, inputs, each, fill) for each in pair]
        if runs and not any(each.error for each in runs):
            return runs
    return next((each.error for each in runs if each.error), "no sizes to run it at")


def _ask(question: Any) -> Any:
    from tensorpoint.shapes.branches import sizes_for
    from tensorpoint.wire.codec import convert
    from tensorpoint.wire.shapes import Question

    return sizes_for(convert(question, Question))


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".split("\n")[0][:200]


# -- all of them, side by side


def scored(
    todo: Sequence[Architecture], jobs: int, depth: str
) -> Iterator[tuple[Architecture, Score]]:
    """Each in a fork of this process, which has imported what all of them need."""
    context = multiprocessing.get_context("fork")
    waiting = list(reversed(todo))
    running: dict[Connection, tuple[Any, Architecture, float]] = {}

    def work(each: Architecture, to: Connection) -> None:
        try:
            to.send(score(each, depth))
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            said = f"{_line(error)} ({Path(where.filename).name}:{where.lineno})"
            to.send(Score(each.family, each.name, failed=said))

    while waiting or running:
        while waiting and len(running) < jobs:
            each = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=work, args=(each, theirs))
            process.start()
            theirs.close()
            running[ours] = (process, each, time.monotonic() + _SECONDS)
        ready = wait(list(running), timeout=1.0)
        for pipe, (process, each, end) in [*running.items()]:
            if pipe not in ready and time.monotonic() < end:
                continue
            failed = f"not within {_SECONDS} s"
            found = None
            if pipe in ready:
                try:
                    found = pipe.recv()
                except EOFError:
                    process.join()
                    failed = f"its process ended with {process.exitcode}"
            process.kill()
            process.join()
            del running[pipe]
            yield each, found or Score(each.family, each.name, failed=failed)


def _prepare() -> None:
    """Import once what every fork needs."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with contextlib.suppress(ImportError):  # before transformers, which imports it as it comes
        with_torchvision()
    import torch
    import transformers

    for name in _SHARED:
        importlib.import_module(name)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    gc.freeze()  # a fork copies the pages that a collection touches


# -- what is printed


def _said(each: Score) -> str:
    text = f"{each.family:12}{each.name:28}"
    if each.skipped:
        return text + f"left out: {each.skipped}"
    if each.failed:
        return text + f"NOT TRACED: {each.failed}"
    text += f"{each.right}/{each.places} right, {each.wrong} wrong, {each.unfit} not shown, "
    symbolic = "" if each.symbolic is None else f"{each.symbolic} symbolic, "
    text += f"{symbolic}{len(each.alarms)} alarms, {each.seconds:.1f} s CPU"
    return "\n    ".join([text, *each.examples, *each.alarms])


def summary(scores: Sequence[Score]) -> str:
    """A table, a row for each family, and what does not work."""
    lines = [
        "| family | architectures | build and run | traced | places | right | wrong "
        "(of these symbolic) | not shown | symbolic | false alarms (in) | CPU s, median |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for family in dict.fromkeys(each.family for each in scores):
        all_of_it = [each for each in scores if each.family == family]
        ran = [each for each in all_of_it if not each.skipped]
        traced = [each for each in ran if not each.failed]
        places = sum(each.places for each in traced)
        if not traced:
            lines.append(f"| {family} | {len(all_of_it)} | {len(ran)} | 0 |")
            continue
        passed = [each for each in traced if each.symbolic is not None and each.places]
        symbolic = (
            f"{sum(e.symbolic or 0 for e in passed) / sum(e.places for e in passed):.0%}"
            if passed
            else "-"
        )
        wrong, certain = (sum(e.wrong for e in traced), sum(e.wrong_symbolic for e in traced))
        lines.append(
            f"| {family} | {len(all_of_it)} | {len(ran)} | {len(traced)} | {places} "
            f"| {sum(each.right for each in traced) / places:.2%} | {wrong} ({certain}) "
            f"| {sum(each.unfit for each in traced)} | {symbolic} "
            f"| {sum(len(each.alarms) for each in ran)} ({sum(bool(e.alarms) for e in ran)}) "
            f"| {statistics.median(each.seconds for each in traced):.1f} |"
        )
    skipped = Counter(each.skipped.split(":")[0] for each in scores if each.skipped)
    lines += ["", f"left out: {dict(skipped)}"]
    for each in scores:
        if not each.skipped and (each.failed or each.wrong or each.unfit or each.alarms):
            lines.append(_said(each))
    return "\n".join(lines)


def _read(path: Path | None) -> list[Score]:
    if path is None or not path.exists():
        return []
    return [Score(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="model types or files; all without")
    parser.add_argument("--family", nargs="*", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--every", type=int, default=1, help="only each Nth")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--depth", choices=("probes", "symbolic", "diagnostics"), default="diagnostics"
    )
    parser.add_argument("--json", type=Path, help="results, a line each; what is there is kept")
    arguments = parser.parse_args()
    _prepare()
    scores = _read(arguments.json)
    done = {(each.family, each.name) for each in scores}
    todo: list[Architecture] = []
    for family in arguments.family:
        try:
            found = known(family)
        except ImportError as error:
            print(f"{family} is left out: {error}", file=sys.stderr)
            continue
        names = [name for name in sorted(found) if name in (arguments.names or found)]
        random.Random(0).shuffle(names)
        todo += [found[n] for n in names[:: arguments.every] if (family, n) not in done]
    for count, (_, each) in enumerate(scored(todo, arguments.jobs, arguments.depth), 1):
        scores.append(each)
        print(f"{count}/{len(todo)} {_said(each)}", file=sys.stderr, flush=True)
        if arguments.json:
            with arguments.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(each)) + "\n")
    print(summary(scores))


if __name__ == "__main__":
    main()

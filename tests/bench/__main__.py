"""`python tests/bench`: what Tensorpoint costs, beside plain debugpy and what one has without us.

Everything is measured in one run, with the variants taking turns; see docs/benchmarks.md. Nothing
is asserted: targets are printed as met or not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.bench import (  # noqa: E402
    branched,
    entropy,
    forks,
    latency,
    layer_steps,
    located,
    machine,
    overhead,
    start,
    table,
    traced,
    values,
)
from tests.bench.fleet import Fleet  # noqa: E402


def main() -> None:
    # As an exception, so that hosts and adapters are ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    arguments = _parse()
    effort, least = (0.12, 3) if arguments.quick else (1.0, 5)
    began = time.monotonic()
    here = machine.describe()
    _say(began, "stepping through a program in two adapters")
    latencies = latency.measure(seconds=25 * effort, least=10, most=100)
    _say(began, "looking at tensors, models and storages in two adapters")
    viewed = values.measure(seconds=3 * effort, least=3, most=30)
    _say(began, "stepping by layers and by lines")
    steps = layer_steps.measure(seconds=15 * effort, least=10, most=100)
    _say(began, "starting programs with and without the resident process")
    starts = start.measure(rounds=1 if arguments.quick else 3)
    _say(began, "jobs, ranks, memory and checkpoints with and without the resident process")
    forked = forks.measure(*((1, 200) if arguments.quick else (3, 2000)))
    groups: dict[str, list[overhead.Overhead]] = {}
    _say(began, "starting four processes with torch")
    with Fleet() as fleet:
        for group in overhead.GROUPS:
            rows = groups.setdefault(group.name, [])
            for model in (*overhead.MODEL_NAMES, *group.also):
                _say(began, f"training {model}: {group.name}")
                rows += overhead.measure(fleet, group, model, effort, least)
    _say(began, "training small models for false stops of entropy_shift")
    detections = entropy.measure(seeds=(71,) if arguments.quick else (71, 72))
    _say(began, "planting faults for each of the finders")
    planted = located.measure(range(6 if arguments.quick else 50))
    _say(began, "turning branches on sizes")
    turned = [branched.measure(number) for number in branched.NUMBERS]
    _say(began, "tracing three files after edits, with and without the resident process")
    edited = traced.measure(rounds=2 if arguments.quick else 10)
    seconds = time.monotonic() - began
    parts = (
        f"{here}, {machine.load():.1f} at the end; took {seconds:.0f} s",
        table.latency_table(latencies),
        table.values_table(viewed),
        table.layer_steps_table(steps),
        table.start_table(starts),
        table.forks_table(forked),
        *(table.overhead_table(name, rows) for name, rows in groups.items()),
        table.detection_table(detections),
        table.located_table(planted, groups[overhead.WATCHES]),
        table.branched_table(turned),
        table.traced_table(edited),
    )
    Console(width=None if sys.stdout.isatty() else 140).print(table.page(*parts))
    if arguments.markdown is not None:
        arguments.markdown.write_text(table.as_markdown(*parts), encoding="utf-8")
    if arguments.json is not None:
        report: dict[str, Any] = {
            "machine": asdict(here),
            "seconds": seconds,
            "load_at_end": machine.load(),
            "targets": {
                "latency_p50_ms": latency.TARGET_P50_MS,
                "values_ms": values.TARGET_MS,
                "start_s": start.TARGET_S,
                "hooks_share": {name: target for name, _, target in overhead.ARMED},
            },
            "latency": [
                {
                    **asdict(row),
                    "ratio": row.ratio,
                    "ratio_no_delay": row.ratio_no_delay,
                    "met": row.met,
                }
                for row in latencies
            ],
            "values": [{**asdict(row), "ratio": row.ratio, "met": row.met} for row in viewed],
            "layer_steps": {**asdict(steps), "ratio": steps.ratio, "met": steps.met},
            "start": {**asdict(starts), "met": starts.met},
            "forks": [{**asdict(row), "ratio": row.ratio} for row in forked],
            "overhead": [
                {**asdict(row), "met": row.met} for rows in groups.values() for row in rows
            ],
            "entropy_shift": [asdict(row) for row in detections],
            "located": [{**asdict(row), "exact": row.exact} for row in planted],
            "branched": [{**asdict(row), "met": row.met} for row in turned],
            "traced": [{**asdict(row), "met": row.met, "met_cold": row.met_cold} for row in edited],
        }
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _say(began: float, text: str) -> None:
    """Progress as plain lines: a spinner's thread would be measured along."""
    passed = time.monotonic() - began
    print(f"bench: {passed:3.0f} s  {text}", file=sys.stderr, flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few rounds: a look, not a result")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the tables for a document")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Working scripts: nothing is said against them, and their shapes are those of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tensorpoint.shapes.branches import sizes_for
from tensorpoint.shapes.tracing import main, quiet
from tensorpoint.shapes.tracing.probing import Probed
from tensorpoint.shapes.tracing.source import FileModule
from tensorpoint.shapes.tracing.targets import Called
from tensorpoint.wire.codec import convert
from tensorpoint.wire.shapes import Question, ShapeRequest
from tests.bench.truth import RealRun, compare, filled, numbers, real_run

WORKING = Path(__file__).parents[2] / "programs" / "shapes" / "working"
RUNS = 2


def ask(question: Any) -> Any:
    return sizes_for(convert(question, Question))


@pytest.fixture(autouse=True)
def options(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command line, as in the tracer; and no long look for symbols, which find no faults."""
    monkeypatch.setattr(main, "_FLIP_SECONDS", 2.0)
    monkeypatch.setattr("argparse.ArgumentParser.parse_args", quiet._defaults)


@pytest.mark.parametrize("name", sorted(path.stem for path in WORKING.glob("*.py")))
def test_a_working_script_has_no_faults_and_the_shapes_of_a_real_run(name: str) -> None:
    path = WORKING / f"{name}.py"
    kept: list[tuple[FileModule, Probed]] = []
    table = main.table_of(ShapeRequest(str(path), path.read_text("utf-8")), ask, kept)
    assert not table.diagnostics
    assert not table.untraced
    places = 0
    for file, probed in kept:
        if isinstance(probed.target.module, Called):  # on the modules of the file, without data
            continue
        runs = real_runs(file, probed)
        compared = compare(probed, runs, file.sites)
        assert not compared.wrong
        assert len(compared.unfit) <= max(2, compared.places / 20), [
            file.sites[site] for site in compared.unfit
        ]
        places += compared.places
    assert places > 1, table


def real_runs(file: FileModule, probed: Probed) -> list[RealRun]:
    """At sizes that no probe had, where the plan has others."""
    target, plan = probed.target, probed.plan
    module = filled(target.module)
    others = plan.more(target.assumptions)
    sizes = [each for each in others if each not in plan.probes][:RUNS] or [plan.probes[0]]
    # Which integers a module takes is not known: classes, offsets that begin at 0, lengths.
    runs: list[RealRun] = []
    for fill in (numbers(0, 1), numbers(0, 0), numbers(1, 1)):
        runs = [real_run(file, module, target.inputs, each, fill) for each in sizes]
        if not any(run.error for run in runs):
            return runs
    raise AssertionError([run.error for run in runs])


def test_there_are_enough_of_them() -> None:
    assert len([*WORKING.glob("*.py")]) >= 40
    assert torch.get_default_device().type == "cpu"

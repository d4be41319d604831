"""The facts of last runs: kept, found by file and folder, bounded, safe against bad files."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tensorpoint.resident import runs
from tensorpoint.resident.client import Run, measured
from tensorpoint.wire import WIRE_VERSION, Facts
from tensorpoint.wire.facts import Layer, Output


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tensorpoint" / "runs"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text("self.fc(x)\n", encoding="utf-8")
    return str(path)


def _layer(path: str, file: str, line: int) -> Layer:
    output = Output("output", "float32", (4, 8), "cpu")
    return Layer(path, "Linear", 0, 2, 1, True, file, line, "forward", (output,), None, None)


def _facts(*layers: Layer) -> Facts:
    return Facts(WIRE_VERSION, 1, 0.0, "3.12", "2.13", True, 2, 2, (), layers)


def _keep(file: str, *layers: Layer, pid: int = 1, began: float | None = None) -> Run:
    facts, now = _facts(*layers), time.time()
    program, files = str(Path(file).with_name("train.py")), runs.calling_files(facts)
    began = now if began is None else began
    run = Run(program, str(Path(file).parent), pid, began, now, False, files)
    runs.keep(run, facts)
    return run


def test_lines_of_a_file_are_those_of_the_newest_run_that_called_a_layer_there(file: str) -> None:
    _keep(file, _layer("old", file, 1))
    _keep(file, _layer("a", file, 3), _layer("b", file, 3), _layer("c", "/x.py", 4), pid=2)
    _keep("/elsewhere/other.py", _layer("other", "/elsewhere/other.py", 1), pid=3)
    found = measured(file)
    assert found is not None and found.run.pid == 2
    assert {line: [each.module for each in layers] for line, layers in found.lines.items()} == {
        3: ["a", "b"]
    }
    assert found.lines[3][0].outputs[0].shape == (4, 8)
    assert measured("/nowhere.py") is None


def test_of_a_distributed_run_rank_0_is_taken_whichever_ended_last(file: str) -> None:
    """And none of an earlier run's, nor of another number of ranks."""

    def keep(rank: int, began: float, read: float, ranks: int = 2) -> None:
        facts = _facts(_layer(f"rank {rank} of {began}", file, 1))
        times = (began, read, True, (file,))
        runs.keep(Run("/train.py", "/", rank + 1, *times, rank, ranks), facts)

    def shown() -> str:
        found = measured(file)
        assert found is not None
        return found.lines[1][0].module

    keep(0, 100.0, 200.0)
    keep(1, 100.5, 201.0)
    assert shown() == "rank 0 of 100.0"
    keep(1, 300.0, 400.0)
    assert shown() == "rank 1 of 300.0"  # rank 0 of this one is not there yet
    keep(0, 300.5, 399.0, ranks=4)
    assert shown() == "rank 1 of 300.0"
    keep(0, 300.5, 399.0)
    assert shown() == "rank 0 of 300.5"
    _keep(file, _layer("alone", file, 1))
    assert shown() == "alone"


def test_a_file_that_was_edited_since_is_told(file: str) -> None:
    _keep(file, _layer("a", file, 1))
    found = measured(file)
    assert found is not None and not found.edited
    os.utime(file, (time.time() + 5, time.time() + 5))
    found = measured(file)
    assert found is not None and found.edited
    os.unlink(file)
    found = measured(file)
    assert found is not None and found.edited


def test_the_same_run_replaces_what_was_known_of_it(file: str) -> None:
    _keep(file, _layer("a", file, 1), began=5.0)
    _keep(file, _layer("b", file, 2), began=5.0)
    found = measured(file)
    assert found is not None and [*found.lines] == [2]
    assert len(runs.runs()) == 1


def test_the_last_run_of_a_folder(file: str) -> None:
    first = _keep(file, _layer("a", file, 1))
    _keep("/elsewhere/other.py", pid=2)
    newest = runs.last_run()
    assert newest is not None and newest[0].program == "/elsewhere/train.py"
    found = runs.last_run(str(Path(file).parent))
    assert found is not None and found[0] == first and found[1].layers[0].module == "a"
    assert runs.last_run("/else") is None  # a folder, not the beginning of a name


def test_only_the_newest_are_kept_and_nobody_else_reads_them(
    file: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "_MOST_RUNS", 3)
    for pid in range(5):
        path = cache / f"{pid * 1000}-{pid}.json"
        _keep(file, _layer("a", file, 1), pid=pid, began=float(pid))
        os.utime(path, (pid, pid))  # a file system may not tell them apart
    assert sorted(run.pid for run in runs.runs()) == [2, 3, 4]
    assert cache.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in cache.iterdir())
    assert len(runs.runs()) == 3


@pytest.mark.parametrize("text", ["", "{", "[1]\n[2]\n", '{"program": 1}\n{}\n'])
def test_a_file_that_is_none_of_ours_is_passed_over(file: str, cache: Path, text: str) -> None:
    _keep(file, _layer("a", file, 1))
    (cache / "9-9.json").write_text(text, encoding="utf-8")
    found = measured(file)
    assert found is not None and found.run.pid == 1

"""`pytest --tensorpoint`: a real pytest over a test file, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from tests.protocol.dap import adapter_environment
from tests.resident.hosts import Host
from tests.resident.shared import python_command

MODEL = """\
import torch
from torch import nn


class Log(nn.Module):
    def forward(self, x):
        return torch.log(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.log = Log()

    def forward(self, x):
        return self.log(x)  # call log
"""
TESTS = """\
import pytest
import torch
from model import Net


def test_good():
    Net()(torch.ones(2))


def test_bad():
    Net()(-torch.ones(2))
"""
MARKED = TESTS.replace("def test_bad", "@pytest.mark.tensorpoint({!r})\ndef test_bad")
Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path, resident_host: Host | None) -> Run:
    """Run pytest over a test file; returns its exit status and what it printed."""

    def run(tests: str, *arguments: str, cold: bool = False) -> tuple[int, str]:
        (tmp_path / "model.py").write_text(MODEL, encoding="utf-8")
        (tmp_path / "test_it.py").write_text(textwrap.dedent(tests), encoding="utf-8")
        python = [sys.executable] if cold else python_command(resident_host)
        command = [*python, "-m", "pytest", "-p", "tensorpoint.pytest_plugin", *arguments]
        done = subprocess.run(
            [*command, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "test_it.py"],
            check=False,
            cwd=tmp_path,
            # Without it the plugin may come twice, by its entry point as well.
            env={**adapter_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "120"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout

    return run


def test_without_a_condition_it_does_nothing_and_imports_nothing(run: Run) -> None:
    status, output = run(
        """\
        import sys

        def test_modules():
            ours = [name for name in sys.modules if "tensorpoint" in name]
            assert sorted(ours) == ["tensorpoint", "tensorpoint.pytest_plugin"]
            assert not {"rich", "z3", "debugpy", "torch"} & set(sys.modules)
        """,
        "-W",
        "error",
        cold=True,
    )
    assert status == 0, output


def test_a_hit_fails_the_test_with_the_report(run: Run) -> None:
    status, output = run(TESTS, "--tensorpoint", "nonfinite()")
    assert status == 1, output
    assert "1 failed, 1 passed" in output
    assert (
        "NaN in the output of log (Log), made by log, called at model.py:16 in forward." in output
    )
    assert "> 16 |     return self.log(x)  # call log" in output
    assert "test_it.py:11 called from your code" in output
    assert "module       log (Log)" in output
    assert 'tensorpoint  nonfinite("*")' in output
    assert "Traceback" not in output and "_call_impl" not in output
    assert "FAILED test_it.py::test_bad - NaN in the output of log (Log)" in output


@pytest.mark.parametrize("style", ["long", "native"])
def test_the_traceback_is_kept_on_request(run: Run, style: str) -> None:
    status, output = run(TESTS, "--tensorpoint", "nonfinite()", f"--tb={style}")
    assert status == 1, output
    assert "TensorpointHit: NaN in the output of log" in output
    assert "> 16 |     return self.log(x)  # call log" in output


def test_a_mark_watches_one_test(run: Run) -> None:
    status, output = run(MARKED.format("nonfinite()"))
    assert status == 1 and "1 failed, 1 passed" in output, output
    status, output = run(MARKED.format("nonfinite() and step > 3"))
    assert status == 0, output


def test_fixtures_are_watched(run: Run) -> None:
    status, output = run(
        """\
        import pytest, torch
        from model import Net

        @pytest.fixture
        def out():
            return Net()(-torch.ones(2))

        def test_it(out): ...
        """,
        "--tensorpoint=nonfinite()",
    )
    assert status == 1 and "ERROR at setup" in output and "> 16 | " in output, output


def test_a_hit_on_another_thread_fails_the_test(run: Run) -> None:
    status, output = run(
        """\
        import threading, torch
        from model import Net

        def test_it():
            thread = threading.Thread(target=Net(), args=(-torch.ones(2),))
            thread.start()
            thread.join()
        """,
        "--tensorpoint=nonfinite()",
    )
    assert status == 1 and "NaN in the output of log" in output, output


def test_a_test_may_expect_a_hit_of_its_own_watch(run: Run) -> None:
    status, output = run(
        """\
        import pytest, tensorpoint, torch
        from model import Net

        @pytest.mark.no_tensorpoint
        def test_it():
            with pytest.raises(tensorpoint.TensorpointHit), tensorpoint.watch("nonfinite()"):
                Net()(-torch.ones(2))
        """,
        "--tensorpoint=nonfinite()",
    )
    assert status == 0, output


SWALLOWED = """\
    import pytest, torch
    from model import Net

    def retry():
        for _ in range(3):
            try:
                return Net()(-torch.ones(2))  # the call
            except Exception:
                pass

    def test_it():
        retry()
        {}
    """


@pytest.mark.parametrize("end", ["", "pytest.skip('not here')"])
def test_a_hit_that_code_swallows_fails_the_test_at_its_end(run: Run, end: str) -> None:
    status, output = run(SWALLOWED.format(end), "--tensorpoint=nonfinite()")
    assert status == 1 and "1 failed" in output, output
    assert "FAILED test_it.py::test_it - NaN in the output of log (Log)" in output
    assert "> 16 |     return self.log(x)  # call log" in output
    assert "test_it.py:7 called from your code" in output
    assert "Traceback" not in output


def test_a_swallowed_hit_is_shown_beside_another_failure(run: Run) -> None:
    status, output = run(SWALLOWED.format("assert 1 + 1 == 3"), "--tensorpoint=nonfinite()")
    assert status == 1 and "assert (1 + 1) == 3" in output, output
    assert "> 16 |     return self.log(x)  # call log" in output


def test_a_swallowed_hit_is_that_of_its_test_alone(run: Run) -> None:
    tests = textwrap.dedent(SWALLOWED.format("")) + "\n\ndef test_other(): assert 1 + 1 == 3\n"
    status, output = run(tests, "--tensorpoint=nonfinite()")
    assert status == 1 and "2 failed" in output, output
    assert output.count("> 16 |") == 1


def test_other_failures_look_as_they_do(run: Run) -> None:
    status, output = run("def test_it(): assert 1 + 1 == 3", "--tensorpoint=nonfinite()")
    assert status == 1 and "assert (1 + 1) == 3" in output, output


@pytest.mark.parametrize("workers", [False, True], ids=["alone", "xdist"])
def test_a_wrong_condition_is_a_usage_error_at_the_start(run: Run, workers: bool) -> None:
    more = ("-p", "xdist", "-n", "1") if workers else ()
    status, output = run(TESTS, "--tensorpoint", "nonfinit()", *more)
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "did you mean nonfinite?" in output and "\nnonfinit()\n^" in output, output
    assert "passed" not in output


def test_a_wrong_mark_is_a_usage_error_at_the_start(run: Run) -> None:
    status, output = run(MARKED.format("nonfinit()"))
    assert status == pytest.ExitCode.USAGE_ERROR, output
    assert "test_it.py::test_bad" in output and "did you mean nonfinite?" in output
    assert "passed" not in output


def test_works_with_xdist(run: Run) -> None:
    xdist = ("-p", "xdist", "-n", "1")
    status, output = run(TESTS, "--tensorpoint", "nonfinite()", *xdist)
    assert status == 1 and "1 failed, 1 passed" in output, output
    assert "> 16 |     return self.log(x)  # call log" in output
    assert "FAILED test_it.py::test_bad - NaN in the output of log (Log)" in output
    status, output = run(MARKED.format("nonfinit()"), *xdist)
    assert status == 1 and "the tensorpoint mark is refused" in output, output


TWO = """\
    import pytest
    import torch
    from model import Net


    def test_one():
        Net()(torch.ones(2))


    {}
    def test_two():
        torch.nn.Sequential(Net())(torch.ones(2))
    """


@pytest.mark.parametrize("workers", [False, True])
def test_a_condition_that_names_nothing_in_any_test_is_said_at_the_end(
    run: Run, workers: bool
) -> None:
    xdist = ("-p", "xdist", "-n", "2") if workers else ()
    named, typo = 'nonfinite("0.log")', 'nonfinite("lgo")'
    status, output = run(TWO.format(""), "--tensorpoint", named, "--tensorpoint", typo, *xdist)
    assert status == 0, output
    (said,) = [line for line in output.splitlines() if line.startswith("--tensorpoint")]
    assert said.startswith(f"--tensorpoint {typo}: no module so far has a path that matches 'lgo'")
    assert "; near to it: " in said and said.endswith("log")


def test_a_mark_that_names_nothing_is_a_warning_of_its_test(run: Run) -> None:
    mark = "@pytest.mark.tensorpoint('layer:lgo', 'layer:0.log@backward')"
    status, output = run(TWO.format(mark), "-W", "error::ResourceWarning")
    assert status == 0, output
    assert "test_it.py::test_two" in output and "no layer so far is called lgo" in output
    assert output.count("no layer so far") == 1


def test_a_test_may_leave_out_the_option(run: Run) -> None:
    status, output = run(
        """\
        import pytest
        import torch
        from model import Net


        @pytest.mark.no_tensorpoint
        def test_a_nan_is_meant():
            assert Net()(-torch.ones(2)).isnan().all()


        @pytest.mark.no_tensorpoint
        @pytest.mark.tensorpoint("layer:log")
        def test_its_own_are_watched():
            Net()(-torch.ones(2))


        @pytest.mark.no_tensorpoint
        class TestThese:
            def test_too(self):
                Net()(-torch.ones(2))
        """,
        *("--tensorpoint", "nonfinite()", "--strict-markers"),
    )
    assert status == 1 and "1 failed, 2 passed" in output, output
    assert "FAILED test_it.py::test_its_own_are_watched - layer log (Log)" in output


def test_what_fixtures_do_at_their_end_is_watched(run: Run) -> None:
    status, output = run(
        """\
        import pytest
        import torch
        from model import Net


        @pytest.fixture
        def model():
            yield Net()
            Net()(-torch.ones(2))


        def test_it(model):
            model(torch.ones(2))
        """,
        *("--tensorpoint", "nonfinite()"),
    )
    assert status == 1 and "1 passed, 1 error" in output, output
    assert "ERROR test_it.py::test_it - NaN in the output of log (Log)" in output


def test_the_entry_point_names_the_plugin() -> None:
    text = Path(__file__).parents[2].joinpath("pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points.pytest11]\ntensorpoint = "tensorpoint.pytest_plugin"' in text
    assert import_module("tensorpoint.pytest_plugin").pytest_addoption

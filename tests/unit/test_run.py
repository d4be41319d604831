"""How `tensorpoint run` reads its command line: what is ours, what is the program's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tensorpoint.cli import main
from tensorpoint.run import Arming, Program, RunError, arm, find_python, prepare_facts
from tensorpoint.run.command import run_options, split_command


@pytest.mark.parametrize(
    ("argv", "ours", "program"),
    [
        (["train.py"], [], Program("program", "train.py")),
        (
            ["train.py", "--json", "--on", "x", "-m", "y", "--", "-h"],
            [],
            Program("program", "train.py", ("--json", "--on", "x", "-m", "y", "--", "-h")),
        ),
        (["--json", "train.py", ""], ["--json"], Program("program", "train.py", ("",))),
        (["-m", "pkg", "--json"], [], Program("module", "pkg", ("--json",))),
        (["-mpkg", "-m"], [], Program("module", "pkg", ("-m",))),
        (["-c", "pass", "-c"], [], Program("code", "pass", ("-c",))),
        (["--", "-odd.py", "--json"], [], Program("program", "-odd.py", ("--json",))),
        (
            ["--on", "-m", "--max-stops", "2", "a.py", "b"],
            ["--on", "-m", "--max-stops", "2"],
            Program("program", "a.py", ("b",)),
        ),
        (["--on=x y", "a.py"], ["--on=x y"], Program("program", "a.py")),
        (["--json"], ["--json"], None),
        (["-m"], ["-m"], None),
        ([], [], None),
    ],
)
def test_split_leaves_the_programs_arguments_alone(
    argv: list[str], ours: list[str], program: Program | None
) -> None:
    assert split_command(argv) == (ours, program)


def test_stops_once_by_default() -> None:
    options, as_json = run_options(["a.py"])
    assert (options.max_stops, options.on_stop, as_json) == (1, "quit", False)
    assert options.on == ()
    assert options.subprocess


def test_options_of_a_whole_command() -> None:
    options, as_json = run_options(
        [
            *("--on", "a", "--on", "b", "--json", "--max-stops", "3", "--on-stop", "continue"),
            *("--no-subprocess", "--log-dir", "/tmp/l", "--python", "py", "--facts", "f.json"),
            *("a.py", "x"),
        ]
    )
    assert options.on == ("a", "b")
    assert as_json
    assert options.stdout_is_ours
    assert (options.max_stops, options.on_stop) == (3, "continue")
    assert not options.subprocess
    assert options.log_dir == Path("/tmp/l")
    assert options.python == "py"
    assert options.facts == Path("f.json")
    assert options.program == Program("program", "a.py", ("x",))


def test_continue_alone_has_no_limit() -> None:
    options, _ = run_options(["--on-stop", "continue", "a.py"])
    assert options.max_stops is None


def test_max_stops_alone_ends_the_program_after_them() -> None:
    options, _ = run_options(["--max-stops", "4", "a.py"])
    assert (options.max_stops, options.on_stop) == (4, "quit")


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["--json"],
        ["--max-stops", "0", "a.py"],
        ["--max-stops", "x", "a.py"],
        ["--on-stop", "dance", "a.py"],
        ["--jso", "a.py"],
        ["--unknown", "a.py"],
        ["--on"],
    ],
)
def test_a_wrong_command_is_refused_with_status_2(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", *argv])
    assert caught.value.code == 2
    assert "usage: tensorpoint run" in capsys.readouterr().err


def test_log_dir_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORPOINT_LOG_DIR", "/tmp/logs")
    options, _ = run_options(["a.py"])
    assert options.log_dir == Path("/tmp/logs")


def test_without_on_it_is_nan_and_inf() -> None:
    assert arm([]) == Arming(nonfinite=True)


def test_with_on_it_is_only_those() -> None:
    assert arm(['nonfinite("a.*")']) == Arming(False, ('nonfinite("a.*")',))
    assert arm(["nonfinite", 'nonfinite("b")']) == Arming(True, ('nonfinite("b")',))


def test_layers_with_and_without_a_condition() -> None:
    assert arm(["layer:h.1", "layer:*.mlp if step > 10"]) == Arming(
        False, (), (("h.1", ""), ("*.mlp", "step > 10"))
    )


@pytest.mark.parametrize(
    ("condition", "offset"),
    [
        ('nonfinit("*")', 0),
        ('nonfinite("*") and', None),
        ("layer:h.1 if step >", None),
        ("step < 0 and nonfinite()", None),
    ],
)
def test_a_refused_condition_is_shown_with_a_caret(condition: str, offset: int | None) -> None:
    with pytest.raises(RunError) as caught:
        arm([condition])
    assert caught.value.status == 2
    first, *_, shown, caret = str(caught.value).splitlines()
    assert first.startswith("--on is refused: ")
    assert shown.strip() in condition
    assert caret.strip() == "^"
    if offset is not None:
        assert caret.index("^") - (len(shown) - len(shown.lstrip())) == offset


def test_a_layer_needs_a_name() -> None:
    with pytest.raises(RunError, match="name a layer"):
        arm(["layer: "])


def test_the_interpreter_is_looked_up() -> None:
    assert find_python(None) == sys.executable
    assert find_python(sys.executable) == sys.executable
    with pytest.raises(RunError, match="no interpreter 'no-such-python'") as caught:
        find_python("no-such-python")
    assert caught.value.status == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out.startswith("tensorpoint ")


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for command in ("dap", "run", "demo", "doctor"):
        assert f"    {command}" in text


@pytest.mark.parametrize("address", ["nonsense", "host:", "host:port", "host:99999"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["dap", "--listen", address])
    assert caught.value.code == 2


def test_facts_of_an_earlier_run_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("facts.json").write_text("old", encoding="utf-8")
    assert prepare_facts(Path("facts.json")) == tmp_path / "facts.json"
    assert list(tmp_path.iterdir()) == []


def test_facts_need_a_file_that_can_be_replaced(tmp_path: Path) -> None:
    for file in (tmp_path, tmp_path / "none" / "facts.json", Path("/dev/null")):
        with pytest.raises(RunError, match=r"^--facts: ") as caught:
            prepare_facts(file)
        assert caught.value.status == 2

"""The expectation parser, and that every program has an expectation that it can read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.programs.expectations import (
    PROGRAMS,
    Expectation,
    ExpectationError,
    ExpectedStop,
    load,
    programs,
)


def _program(folder: Path, *lines: str) -> Path:
    path = folder / "prog.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_stop_is_read_with_its_fields_and_its_marked_line(tmp_path: Path) -> None:
    path = _program(
        tmp_path,
        "# expect: stop event=nonfinite.forward module=net.1 type=Log step=3",
        '"""Doc with # <- stop inside."""',
        "y = model(x)  # <- stop",
    )
    stop = ExpectedStop(
        event="nonfinite.forward",
        module="net.1",
        type="Log",
        step=3,
        file="prog.py",
        line=3,
        code=None,
        user_line=3,
        argument=None,
        sample=None,
        op=None,
        op_file="prog.py",
        op_line=3,
        op_code=None,
        recorded=None,
    )
    assert load(path) == Expectation(path, (stop,))


def test_the_root_module_is_an_empty_path_and_left_out_fields_are_not_promised(
    tmp_path: Path,
) -> None:
    path = _program(
        tmp_path,
        "# expect: stop event=nonfinite.input module= argument=x sample=5",
        "model(x)  # <- stop",
    )
    (stop,) = load(path).stops
    assert (stop.module, stop.argument, stop.sample) == ("", "x", 5)
    assert (stop.type, stop.step, stop.code) == (None, None, None)


def test_a_stop_in_library_code_has_a_file_and_the_users_line(tmp_path: Path) -> None:
    path = _program(
        tmp_path,
        "# expect: stop event=nonfinite.forward module=h.1",
        "#         file=modeling.py code='y = self.act(x)'",
        "#         step=2",
        "# a note",
        "#         of two lines",
        "trainer.train()  # <- user line",
    )
    (stop,) = load(path).stops
    assert (stop.file, stop.line, stop.code) == ("modeling.py", None, "y = self.act(x)")
    assert (stop.step, stop.user_line) == (2, 6)


def test_several_stops_share_a_line_or_have_numbered_ones(tmp_path: Path) -> None:
    expect = [
        "# expect: stop event=nonfinite.forward module=a step=1",
        "# expect: stop event=nonfinite.forward module=b step=2",
    ]
    shared = load(_program(tmp_path, *expect, "model(x)  # <- stop"))
    assert [(stop.module, stop.line) for stop in shared.stops] == [("a", 3), ("b", 3)]
    numbered = load(_program(tmp_path, *expect, "b(x)  # <- stop 2", "a(x)  # see  <- stop 1"))
    assert [(stop.module, stop.line) for stop in numbered.stops] == [("a", 4), ("b", 3)]


def test_no_stop_is_an_empty_expectation(tmp_path: Path) -> None:
    assert load(_program(tmp_path, "# a note", "", "# expect: no-stop", "pass")).stops == ()


def test_a_program_says_what_it_needs_besides_torch(tmp_path: Path) -> None:
    path = _program(tmp_path, "# expect: no-stop", "# needs: transformers c++", "pass")
    assert load(path).needs == ("transformers", "c++")


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["pass"], "no expect: comment"),
        (["pass", "# expect: no-stop"], "line 2: expect: comments belong at the top"),
        (["# expect: maybe"], "expected `stop ...` or one `no-stop`, got `maybe`"),
        (["# expect: no-stop", "f()  # <- stop"], "no-stop, but line 2 is marked"),
        (["# expect: no-stop", "# expect: no-stop"], "got `no-stop`"),
        (["# expect: stop event=nonfinite.input"], "stop 1: module missing"),
        (["# expect: stop event=nan module="], "stop 1: unknown event nan"),
        (["# expect: stop event=nonfinite.input module= stap=1"], "cannot read `stap=1`"),
        (["# expect: stop event=nonfinite.input module= step"], "cannot read `step`"),
        (["# expect: stop event=nonfinite.input module="], "no line is marked `# <- stop`"),
        (
            ["# expect: stop event=nonfinite.input module= file=m.py", "f()  # <- stop"],
            "no line is marked `# <- user line`",
        ),
        (
            ["# expect: stop event=nonfinite.input module= code=f", "f()  # <- stop"],
            "code= without file=",
        ),
        (
            ["# expect: stop event=nonfinite.input module= step=-1", "f()  # <- stop"],
            "step=-1 is not a number",
        ),
        (
            ["# expect: stop event=nonfinite.input module=", "f()  # <- stop", "g()  # <- stop"],
            "lines 2 and 3 have the same mark",
        ),
        (
            ["# expect: stop event=nonfinite.input module=", "f()  # <- stop", "g()  # <- stop 2"],
            "line 3 is marked, but no stop is expected there",
        ),
    ],
)
def test_a_wrong_expectation_is_refused_with_its_reason(
    tmp_path: Path, lines: list[str], reason: str
) -> None:
    with pytest.raises(ExpectationError) as caught:
        load(_program(tmp_path, *lines))
    assert reason in str(caught.value)
    assert "prog.py" in str(caught.value)


@pytest.mark.parametrize("path", programs(), ids=lambda path: str(path.relative_to(PROGRAMS)))
def test_every_program_has_an_expectation_and_is_a_plain_short_script(path: Path) -> None:
    expectation = load(path)
    source = path.read_text(encoding="utf-8")
    assert ("transformers" in expectation.needs) == ("from transformers" in source)
    assert "tensorpoint" not in source.lower(), "a user's script does not know of us"
    assert "torch.set_num_threads(1)" in source
    assert len(source.splitlines()) < 60


def test_every_program_is_in_the_table_of_the_readme() -> None:
    readme = (PROGRAMS / "README.md").read_text(encoding="utf-8")
    missing = [
        name
        for path in programs()
        if f"`{(name := path.relative_to(PROGRAMS).as_posix())}`" not in readme
    ]
    assert not missing

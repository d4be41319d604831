"""Texts that are conditions, texts that are not, and where the message points."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorpoint.conditions import Condition, ConditionError, MetricUse, parse
from tensorpoint.conditions.metrics import METRICS
from tensorpoint.conditions.parse import MAX_LENGTH
from tests.unit.conditions.strategies import texts


def refusal(text: str, shorthand: str | None = None) -> ConditionError:
    with pytest.raises(ConditionError) as caught:
        parse(text, shorthand=shorthand)
    return caught.value


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("nonfinite()", 'nonfinite("*")'),
        ("nonfinite('model.layers.*')", 'nonfinite("model.layers.*")'),
        ('nonfinite(glob="a", phase="input")', 'nonfinite("a", phase="input")'),
        ('nonfinite("a\'b")', 'nonfinite("a\'b")'),
        ("nonfinite('a\"b')", "nonfinite('a\"b')"),
        ('nonfinite("")', 'nonfinite("")'),
        ("grad_norm() > 10", "grad_norm() > 10"),
        ('grad_norm("*.mlp.*")>5 and step>100', 'grad_norm("*.mlp.*") > 5 and step > 100'),
        ('entropy("*.attn") < .2', 'entropy("*.attn") < 0.2'),
        ("absmax() > 6e4", 'absmax("*") > 60000'),
        ("memory_growth() > 2e8", "memory_growth() > 2e8"),
        ("loss > 1_000", "loss > 1000"),
        ("loss < 1e400", "loss < 1e999"),
        ('score("my.module:fn") > 0.85', 'score("my.module:fn") > 0.85'),
        ("last(loss) > 3", "last(loss) > 3"),
        ('last( nonfinite("h") )', 'last(nonfinite("h"))'),
        ("((loss)) > (3)", "loss > 3"),
        ("1 < loss <= 5 != step", "1 < loss <= 5 != step"),
        ("not loss > 3", "not (loss > 3)"),
        ("\tnonfinite()\n and\r\nTrue ", 'nonfinite("*") and True'),
        ("loss > 1 or loss > 2 and loss > 3", "loss > 1 or loss > 2 and loss > 3"),
        ("(loss > 1 or loss > 2) and loss > 3", "(loss > 1 or loss > 2) and loss > 3"),
        ("loss > 1 and (loss > 2 and loss > 3)", "loss > 1 and loss > 2 and loss > 3"),
        ("loss - (2 - 3) * -(4 / (5 / 6)) > 0", "loss - (2 - 3) * -(4 / (5 / 6)) > 0"),
        ("loss - 2 - 3 > --1", "loss - 2 - 3 > --1"),
    ],
)
def test_accepted_text_and_its_canonical_form(text: str, canonical: str) -> None:
    condition = parse(text)
    assert condition.text == canonical
    assert parse(canonical) == condition
    assert parse(canonical).tree == condition.tree


def test_condition_says_what_it_reads() -> None:
    condition = parse('nonfinite("h.*", phase="input") and last(grad_norm()) > 1 and step > loss')
    assert condition.uses == (
        MetricUse("nonfinite", "h.*", (("phase", "input"),)),
        MetricUse("grad_norm", None, (), last=True),
    )
    assert condition.names == {"step", "loss"}
    assert condition.inputs == (*condition.uses, "step", "loss")
    assert condition.glob == "h.*"
    assert condition.matches("h.0")
    assert not condition.matches("H.0")


def test_glob_of_everything_matches_the_root_module() -> None:
    assert parse("nonfinite()").matches("")
    assert parse("grad_norm() > 1").matches("any.module")


@pytest.mark.parametrize(
    ("shorthand", "text", "canonical"),
    [
        ("nonfinite", "", 'nonfinite("*")'),
        ("nonfinite", "model.layers.*", 'nonfinite("model.layers.*")'),
        ("nonfinite", "  h.[0-3].mlp ", 'nonfinite("h.[0-3].mlp")'),
        ("nonfinite", "encoder", 'nonfinite("encoder")'),
        ("nonfinite", "*", 'nonfinite("*")'),
        ("nonfinite", '"model.layers.*"', 'nonfinite("model.layers.*")'),
        ("nonfinite", "'loss'", 'nonfinite("loss")'),
        ("nonfinite", 'not "h.*" and step > 1', 'not nonfinite("h.*") and step > 1'),
        ("nonfinite", "step > 100", 'nonfinite("*") and step > 100'),
        ("nonfinite", "step < 1 or step > 9", 'nonfinite("*") and (step < 1 or step > 9)'),
        ("nonfinite", 'nonfinite("a") and step > 1', 'nonfinite("a") and step > 1'),
        ("grad_norm", "> 10", "grad_norm() > 10"),
        ("grad_norm", " >=10 and step > 1", "grad_norm() >= 10 and step > 1"),
        ("grad_norm", '"*.mlp.*" > 5', 'grad_norm("*.mlp.*") > 5'),
        ("entropy", '0.1 < "*.attn" < 0.2', '0.1 < entropy("*.attn") < 0.2'),
    ],
)
def test_metric_may_be_left_out_where_a_filter_says_it(
    shorthand: str, text: str, canonical: str
) -> None:
    assert parse(text, shorthand=shorthand).text == canonical


@pytest.mark.parametrize(
    ("text", "pointed", "message"),
    [
        ("nonfinit()", "nonfinit", 'unknown metric "nonfinit": did you mean nonfinite?'),
        ("isnan()", "isnan", 'unknown name "isnan": did you mean nonfinite()?'),
        ("loss > 3 and true", "true", 'unknown name "true": did you mean True?'),
        ("lost > 3", "lost", 'unknown metric "lost": did you mean loss?'),
        ("grad_norm()", "grad_norm", "grad_norm() is a number, compare it: grad_norm() > 10"),
        ("not loss", "loss", "loss is a number, compare it: loss > 10"),
        ("True and loss + 1", "loss", "loss + 1 is a number where a condition is needed"),
        ("nonfinite() > 3", "nonfinite", 'nonfinite("*") is true or false and is not compared'),
        ("1 + nonfinite() > 3", "nonfinite", 'nonfinite("*") is true or false'),
        ("(loss > 1) > 2", "loss", "loss > 1 is true or false where a number is needed"),
        ("loss = 10", "=", 'to compare, write "=="'),
        ("(loss = 10)", "=", 'to compare, write "=="'),
        ("a && b", "&&", '"&&" is not part of the condition language: write "and"'),
        ("a & b", "&", 'write "and"'),
        ("a || b", "||", 'write "or"'),
        ("!nonfinite()", "!", 'write "not"'),
        ("loss => 3", "=>", 'write ">="'),
        ("loss ≥ 3", "≥", 'write ">="'),
        ("loss === 3", "===", 'write "=="'),
        ("“h” > 3", "“", "straight quotes"),
        ("loss > 3 AND step > 2", "AND", 'write "and" in small letters'),
        ("NOT nonfinite()", "NOT", 'write "not" in small letters'),
        ("loss ** 2 > 1", "**", "not part of the condition language"),
        ("loss is None", "is", '"is" is not part of the condition language'),
        ("loss > 1 if loss else True", "if", '"if" is not part of the condition language'),
        ("loss[0] > 1", "[", "not part of the condition language"),
        ("loss > 1 # why", "#", "conditions have no comments"),
        ("loss\0 > 1", "\0", '"U+0000" is not part of the condition language'),
        ('nonfinite("\0")', '"\0', "U+0000 cannot be part of a string"),
        ('nonfinite("\udc80")', '"\udc80', "U+DC80 cannot be part of a string"),
        (r'nonfinite("a\"")', '"a', "conditions have no escapes"),
        ('nonfinite(f"a")', "f", "strings have no prefix"),
        ('nonfinite("a" "b")', '"b"', "an operator is missing between two strings"),
        ('nonfinite("a)', '"a)', "this string is not closed"),
        ("layer:h.3", ":", "layer:PATH is a breakpoint of its own"),
        ("h.0.*", "h.0.*", 'a module path goes into quotes: "h.0.*"'),
        ('"h.*"', '"h.*"', 'a module glob needs a metric, for example nonfinite("h.*")'),
        ("nonfinite(h)", "h)", "a module glob is a string"),
        ("nonfinite(3)", "3", "a module glob is a string"),
        ('nonfinite("a", "input")', '"input"', 'phase goes by name: phase="forward"'),
        ('nonfinite(phas="input")', "phas", "nonfinite has no option phas: did you mean phase?"),
        ('absmax(phase="input")', "phase", "absmax has no option phase"),
        ('nonfinite(phase="fwd")', '"fwd"', 'phase is one of "input", "forward", "backward"'),
        ("nonfinite(phase=3)", "3", 'phase is one of "input", "forward", "backward"'),
        ('nonfinite(phase="input", phase="input")', 'phase="input")', "phase is given twice"),
        ('scale("a") > 1', '"a"', "scale takes no module glob: write scale()"),
        ('score("module") > 1', '"module"', 'score takes "module:function"'),
        ('score("my module:f") > 1', '"my module:f"', 'score takes "module:function"'),
        ("score() > 1", "score", 'score takes "module:function"'),
        ("step() > 1", "step", "step is not called: write step"),
        ("nonfinite and True", "nonfinite", "nonfinite needs parentheses: nonfinite()"),
        ("last(step) > 1", "step", "step is always known"),
        ("last(last(loss)) > 1", "last(loss)", "last(...) inside last(...)"),
        ("last(loss + 1) > 1", "loss", "last takes one metric, not an expression"),
        ("last() > 1", "last", "last takes one metric"),
        ("last > 1", "last", "last is called with a metric"),
        ("loss()() > 1", "()", 'an operator such as "and" or ">" is missing before ('),
        ("loss >", ">", 'a value is missing after ">"'),
        ("loss > and step > 1", "and", 'a value is missing before "and"'),
        ("> 10", ">", 'a value is missing before ">"'),
        ("+loss > 1", "+", 'a value is missing before "+"'),
        ("nonfinite() and (loss > 1", "(loss", 'this "(" is not closed'),
        ("loss > 1)", ")", 'this ")" closes nothing'),
        ("() and loss > 1", ")", 'a value is missing before ")"'),
        ("loss 3", "3", 'an operator such as "and" or ">" is missing before 3'),
        ("loss > 1, loss > 2", ",", 'no "," belongs here'),
        ("loss > not True", "not", 'put parentheses around the part with "not"'),
        ("loss > 0x10", "0x10", "numbers are written like 10, 0.5 or 1e-3"),
        ("loss > 007", "007", "numbers are written like 10, 0.5 or 1e-3"),
        ("loss > 1.2.3", "1.2.3", "numbers are written like 10, 0.5 or 1e-3"),
        ("loss > 1j", "1j", "numbers are written like 10, 0.5 or 1e-3"),
        (
            'nonfinite("a") and absmax("b") > 1',
            "absmax",
            'all globs of one condition bind the same module: "b" here, "a" before',
        ),
        ('nonfinite() and absmax("b") > 1', "absmax", '"b" here, "*" before'),
    ],
)
def test_refusal_points_at_the_character(text: str, pointed: str, message: str) -> None:
    # The same behind blanks and non-ASCII text, which take more bytes than characters.
    for prefix in ("", "  ", 'score("größe:層") > 1 or \u00a0'):
        error = refusal(prefix + text)
        assert message in error.message
        assert error.text == prefix + text
        assert error.text[error.offset :].startswith(pointed), error.caret()
        assert str(error) == error.message


def test_condition_without_a_metric_is_refused_where_one_is_needed() -> None:
    error = refusal("  step > 100")
    assert error.offset == 2
    assert 'add a metric, for example nonfinite("*") and step > 100' in error.message
    assert "this condition measures nothing" in refusal("True").message
    assert parse("step > 100", need_metric=False).text == "step > 100"


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_empty_condition_is_refused(text: str) -> None:
    error = refusal(text)
    assert (error.message, error.offset) == ("the condition is empty", 0)


def test_refusal_within_shorthand_points_into_the_users_text() -> None:
    assert refusal(" > 10 and nonfinit()", "grad_norm").offset == 10
    assert refusal("> 10", "nonfinite").offset == 0
    assert "is a number, compare it" in refusal("h.*", "grad_norm").message
    assert "unknown name" in refusal("nan", "nonfinite").message


@pytest.mark.parametrize("word", ["step", "loss", "nonfinite", "last", "and", "3", "0.5", "1e5"])
def test_word_of_the_language_is_not_taken_for_a_module(word: str) -> None:
    refusal(word, "nonfinite")
    assert parse(f'"{word}"', shorthand="nonfinite").glob == word


def test_caret_stands_below_the_character() -> None:
    error = refusal('nonfinite("é")\tand nonfinit()')
    first, second = error.caret().split("\n")
    assert first == 'nonfinite("é") and nonfinit()'
    assert second == " " * 19 + "^"


def test_caret_of_a_long_text_shows_the_part_around_it() -> None:
    error = refusal(" or ".join(["nonfinite()"] * 40) + " or nonfinit()" + " or True" * 40)
    first, second = error.caret().split("\n")
    assert first[second.index("^") :].startswith("nonfinit()")
    assert len(first) < 200


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000,
        "(" * 500 + "loss > 1" + ")" * 500,
        "-" * 9000 + "1 < loss",
        "not " * 2400 + "nonfinite()",
        "loss + " * 1400 + "1 > 2",
        "last(" * 200 + "loss" + ")" * 200 + " > 1",
        "loss < " * 1400 + "1",
        "nonfinite() and " * 600 + "True",
        "9" * 9000 + " < loss",
        "nonfinite() or " * 100_000,
    ],
)
def test_deep_or_huge_text_is_refused_not_fatal(text: str) -> None:
    error = refusal(text)
    assert 0 <= error.offset < len(text)


def test_limit_of_length_is_named() -> None:
    assert "10,000 characters" in refusal(" " * MAX_LENGTH + "nonfinite()").message


@pytest.mark.parametrize(
    ("text", "needs_false"),
    [
        ("nonfinite()", False),
        ("nonfinite() and step > 3", False),
        ("nonfinite() and not step > 3", False),
        ('nonfinite("a", phase="input") or nonfinite("a", phase="forward")', False),
        ("nonfinite() and True or False", False),
        ("not not nonfinite()", False),
        ("not nonfinite()", True),
        ("nonfinite() or step > 3", True),
        ("nonfinite() or True", True),
        ("last(nonfinite())", True),
        ("grad_norm() > 10", True),
    ],
)
def test_needs_false_tells_whether_it_can_hold_without_a_nonfinite(
    text: str, needs_false: bool
) -> None:
    assert parse(text).needs_false is needs_false


@given(st.text(max_size=200))
def test_any_text_is_a_condition_or_a_condition_error(text: str) -> None:
    check_any(text)


_WORDS = [
    *METRICS,
    *("and", "or", "not", "True", "last", "glob", "phase", "if", "lambda", "é", "nonfinite("),
    *('"*"', "'h.*'", '"', "'", "\\", '"""', 'f"', "(", ")", "()", ",", "=", "==", "!=", "<", ">="),
    *("+", "-", "*", "/", "**", "&&", "!", ".", ":", "[", "]", "#", "1", "0.5", "1e9", "07", "1_"),
    *(" ", "  ", "\n", "\t", "\0", "\ud800", "\u2028", "½"),
]


@given(st.lists(st.sampled_from(_WORDS), max_size=25), st.sampled_from(["", " "]))
def test_any_words_are_a_condition_or_a_condition_error(words: list[str], between: str) -> None:
    check_any(between.join(words))


def check_any(text: str) -> None:
    for shorthand in (None, "nonfinite", "grad_norm"):
        try:
            result = parse(text, shorthand=shorthand, need_metric=False)
        except ConditionError as error:
            result = error
        if isinstance(result, Condition):
            check_canonical(result)
        else:
            assert result.text == text
            assert 0 <= result.offset <= max(0, len(text) - 1)
            assert len(result.caret().split("\n")) == 2


@given(texts())
def test_canonical_text_reads_back_to_an_equal_condition(text: str) -> None:
    check_canonical(parse(text, need_metric=False))


def check_canonical(condition: Condition) -> None:
    again = parse(condition.text, need_metric=False)
    assert again == condition
    assert hash(again) == hash(condition)
    assert again.tree == condition.tree
    assert (again.inputs, again.needs_false) == (condition.inputs, condition.needs_false)


def test_condition_room_loads_by_file_location_with_the_standard_library_alone() -> None:
    room = importlib.util.find_spec("tensorpoint.conditions")
    assert room is not None
    assert room.origin is not None
    program = f"""
import importlib.util, sys
spec = importlib.util.spec_from_file_location(
    "_tensorpoint", {str(Path(room.origin).parents[1] / "__init__.py")!r},
    submodule_search_locations=[{str(Path(room.origin).parents[1])!r}],
)
sys.modules["_tensorpoint"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["_tensorpoint"])
from _tensorpoint.conditions import Sample, evaluate, parse
assert evaluate(parse("nonfinite() and step > 1"), lambda source: Sample(2, 2)) is True
print(sorted(name for name in sys.modules if name.startswith(("z3", "tensorpoint", "difflib"))))
"""
    command = [sys.executable, "-I", "-S", "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert output.strip() == "[]"

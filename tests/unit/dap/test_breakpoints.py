"""The lists of breakpoints that carry ours and debugpy's, and the plan that they make."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpoint.dap.breakpoints import Refusal, Tensorpoints, is_our_filter
from tensorpoint.dap.shares import split_filters, split_functions
from tensorpoint.wire import Tensorpoint

Message = dict[str, Any]

CONDITIONS = st.sampled_from(
    ["", "nonfinite()", 'nonfinite("a.*") and step > 3', "nonfinit()", "step >", "a.*", "layer:x"]
)
FILTERS = st.sampled_from(
    ["raised", "uncaught", "userUnhandled", "nonfinite", "tensorpoint", "tensorpoint.0", "other"]
)
OPTIONS = st.fixed_dictionaries({"filterId": FILTERS}, optional={"condition": CONDITIONS})
FUNCTIONS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(
            ["main", "layer:a", "layer:", "f", "tensorpoint:", "tensorpoint:step > 3"]
        )
    },
    optional={"condition": st.sampled_from(["", "step > 1", "step >", "x == 1"])},
)


def theirs_of(count: int) -> list[Message]:
    """Answers of debugpy, told apart by their line."""
    return [{"verified": True, "line": number} for number in range(count)]


@settings(deadline=None, max_examples=60)
@given(st.lists(FILTERS, max_size=4), st.lists(OPTIONS, max_size=4))
def test_each_filter_has_its_answer_and_debugpys_share_is_plain_filters(
    filters: list[str], options: list[Message]
) -> None:
    tensorpoints = Tensorpoints()
    tensorpoints.set_launch(["nonfinite()"])
    arguments = {"filters": filters, "filterOptions": options, "exceptionOptions": ["kept"]}
    names = [*filters, *(option["filterId"] for option in options)]
    theirs, split, refused = split_filters(arguments, tensorpoints.set_filters)
    assert theirs["filters"] == [name for name in names if not is_our_filter(name)]
    assert "filterOptions" not in theirs and theirs["exceptionOptions"] == ["kept"]
    answers = split.merge(theirs_of(len(theirs["filters"])))
    assert len(answers) == len(names)
    lines = [answer.get("line") for answer in answers]
    assert [line for line in lines if line is not None] == list(range(len(theirs["filters"])))
    for name, answer in zip(names, answers, strict=True):
        assert is_our_filter(name) == ("line" not in answer)
        assert answer["verified"] or answer["message"]
    assert len(refused) == sum(not answer["verified"] for answer in answers)


@settings(deadline=None, max_examples=60)
@given(st.lists(FUNCTIONS, max_size=6))
def test_each_function_breakpoint_has_its_answer(functions: list[Message]) -> None:
    theirs, split, _ = split_functions({"breakpoints": functions}, Tensorpoints().set_functions)
    plain = [item for item in functions if item["name"] in ("main", "f")]
    assert theirs["breakpoints"] == plain
    answers = split.merge(theirs_of(len(plain)))
    assert [answer.get("line") is not None for answer in answers] == [
        item in plain for item in functions
    ]


def test_a_function_breakpoint_may_name_a_condition() -> None:
    tensorpoints = Tensorpoints()
    *accepted, empty, counted, impossible = tensorpoints.set_functions(
        [
            ("tensorpoint: grad_norm() > 10", "", ""),
            ("tensorpoint:grad_norm() > 10 or loss > 3", "step > 5", ""),
            ("tensorpoint:", "step > 5 and loss > 3", ""),
            ("tensorpoint:", "", ""),
            ("tensorpoint:loss > 3", "", "> 2"),
            ("tensorpoint:loss > 3", "step < 0", ""),
        ]
    )
    assert [(item.kind, item.condition) for item in accepted if isinstance(item, Tensorpoint)] == [
        ("condition", "grad_norm() > 10"),
        ("condition", "(grad_norm() > 10 or loss > 3) and step > 5"),
        ("condition", "step > 5 and loss > 3"),
    ]
    assert isinstance(empty, Refusal) and isinstance(impossible, Refusal)
    assert "can never hold" in impossible.reason
    assert isinstance(counted, Refusal) and "no hit count" in counted.reason
    assert [text.condition for text in tensorpoints.plan().tensorpoints[1:]] == [
        item.condition for item in accepted if isinstance(item, Tensorpoint)
    ]


def test_debugpy_may_answer_less_than_it_was_asked() -> None:
    _, split, _ = split_filters(
        {"filters": ["raised", "nonfinite", "uncaught"]}, Tensorpoints().set_filters
    )
    first, ours, last = split.merge([])
    assert first == last == {"verified": True}
    assert ours["verified"] and "id" in ours


def test_the_same_text_keeps_its_id_whoever_else_comes_and_goes() -> None:
    tensorpoints = Tensorpoints()
    (first,) = tensorpoints.set_filters([("nonfinite", "")])
    assert not isinstance(first, Refusal)
    tensorpoints.set_filters([("tensorpoint", 'nonfinite("x")'), ("nonfinite", "")])
    tensorpoints.set_filters([])
    assert tensorpoints.plan().tensorpoints == ()
    assert tensorpoints.set_filters([("nonfinite", "")]) == [first]
    # NaN/Inf is what is on before the client says anything: the same one.
    assert Tensorpoints().plan().tensorpoints == (first,)


def test_a_condition_that_is_set_in_several_ways_is_watched_once() -> None:
    tensorpoints = Tensorpoints()
    tensorpoints.set_launch(["nonfinite()", "layer:a"])
    tensorpoints.set_functions([("layer:a", "", "")])
    tensorpoints.add("layer:a")
    plan = tensorpoints.plan().tensorpoints
    assert [item.text for item in plan] == ['nonfinite("*")', "layer:a"]
    assert len(tensorpoints.listing()) == 5


def test_a_client_that_lists_launch_filters_switches_them_off_by_leaving_them_out() -> None:
    tensorpoints = Tensorpoints()
    tensorpoints.set_launch(["layer:a", "layer:b"])
    tensorpoints.set_filters([("nonfinite", "")])  # a client that does not know of them
    assert len(tensorpoints.plan().tensorpoints) == 3
    tensorpoints.set_filters([("tensorpoint.1", "")])
    assert [item.text for item in tensorpoints.plan().tensorpoints] == ["layer:b"]
    tensorpoints.set_filters([])
    assert tensorpoints.plan().tensorpoints == ()


@pytest.mark.parametrize(
    "arguments",
    [
        {"filters": 5},
        {"filters": [5]},
        {"filters": "nonfinite"},
        {"filterOptions": ["nonfinite"]},
        {"filterOptions": {"filterId": "nonfinite"}},
    ],
)
def test_filters_of_a_wrong_type_are_refused_as_a_whole(arguments: Message) -> None:
    tensorpoints = Tensorpoints()
    before = tensorpoints.plan()
    with pytest.raises(ValueError, match="filter"):
        split_filters(arguments, tensorpoints.set_filters)
    assert tensorpoints.plan() == before


@pytest.mark.parametrize("item", [5, None, {}, {"name": None}, {"name": 5}])
def test_a_function_breakpoint_needs_a_name(item: object) -> None:
    with pytest.raises(ValueError, match="breakpoints"):
        split_functions({"breakpoints": [item]}, Tensorpoints().set_functions)

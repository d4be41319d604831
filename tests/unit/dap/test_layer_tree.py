"""The requests of views: their arguments, and what is said of tensorpoints without a program."""

from __future__ import annotations

import asyncio

import pytest

from tensorpoint.dap import layer_tree
from tensorpoint.dap.breakpoints import FILTERS, Tensorpoints
from tensorpoint.dap.status import check, status


def test_the_arguments_of_tensorpoint_layers() -> None:
    assert layer_tree.request({}).modules
    assert not layer_tree.request({"modules": False}).modules
    with pytest.raises(ValueError, match="modules"):
        layer_tree.request({"modules": "no"})


@pytest.mark.parametrize(
    ("condition", "filter_id", "canonical"),
    [
        ("> 10", "grad_norm", "grad_norm() > 10"),
        ('"*.mlp" > 5', "grad_norm", 'grad_norm("*.mlp") > 5'),
        ("model.layers.*", "nonfinite", 'nonfinite("model.layers.*")'),
        ("", "nonfinite", 'nonfinite("*")'),
        ("", "entropy_shift", 'entropy_shift("*") > 6'),
        ("loss>10", "tensorpoint", "loss > 10"),
        ("loss>10", "", "loss > 10"),
        ("layer:a.b if step > 3", "", "layer:a.b if step > 3"),
        ("layer:a.b", "nonfinite", "layer:a.b"),
    ],
)
def test_a_good_condition_is_answered_in_canonical_form(
    condition: str, filter_id: str, canonical: str
) -> None:
    answer = check({"condition": condition, "filter": filter_id})
    assert answer == {"verified": True, "condition": canonical}


@pytest.mark.parametrize(
    ("condition", "filter_id", "reason"),
    [
        ("> 10 and steps > 3", "grad_norm", "did you mean step?"),
        ("", "grad_norm", "write a threshold"),
        ("< 0", "grad_norm", "can never hold"),
        ("step > 3", "", "measures nothing"),
        ("layer:", "", "needs the path of a module"),
        ("", "", ""),
    ],
)
def test_a_bad_condition_is_answered_with_the_reason(
    condition: str, filter_id: str, reason: str
) -> None:
    answer = check({"condition": condition, "filter": filter_id})
    assert answer["verified"] is False and reason in answer["message"]


@pytest.mark.parametrize("wrong", [{}, {"condition": 3}, {"condition": "x", "filter": 1}])
def test_wrong_arguments_of_tensorpoint_check_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"condition|filter"):
        check(wrong)


def test_the_status_lists_what_is_set_wherever_it_was() -> None:
    tensorpoints = Tensorpoints()
    tensorpoints.set_launch(["loss > 10"])
    tensorpoints.set_functions([("layer:a", "", "")])
    body = asyncio.run(status(tensorpoints, None))
    assert [(item["text"], item["source"]) for item in body["tensorpoints"]] == [
        (FILTERS["nonfinite"].bare.replace("()", '("*")'), "filter"),
        ("layer:a", "function"),
        ("loss > 10", "launch"),
    ]
    numbers = [item["number"] for item in body["tensorpoints"]]
    assert tensorpoints.remove(numbers[2]) is not None
    assert (body["step"], body["recording"]) == (None, False)

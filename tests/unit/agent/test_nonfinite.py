"""NaN and Inf in the forward pass: which module is blamed, when, and what the program notices."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import nn

from tests.unit.agent.armed import armed, rule
from tests.unit.agent.making import INF, NAN, Makes, X, chain, ran
from tests.unit.agent.spoiling import Does

# Who made it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_the_producer_is_named_not_those_that_pass_it_on(value: float) -> None:
    def overflows(self: Any, x: Any) -> Any:
        return x * value

    model: Any = nn.Sequential(
        nn.Linear(2, 2),
        nn.Sequential(nn.ReLU6(), Does(overflows), nn.Linear(2, 2)),
        nn.Linear(2, 2),
    )
    agent = ran(model)
    assert agent.stops == [("nonfinite.forward", "1.1", 0)]
    assert agent.event.tensor is not None and agent.event.value == 8
    assert agent.event.module is agent.event.entered is model[1][1]


def test_an_op_between_two_children_is_blamed_on_the_forward_around() -> None:
    def around(self: Any, x: Any) -> Any:
        return self.second(self.first(x) * NAN)

    inner = Does(around, first=nn.ReLU(), second=nn.Linear(2, 2))
    agent = ran(nn.Sequential(inner))
    assert agent.stops == [("nonfinite.forward", "0", 0)]
    assert agent.event.entered is inner.second


def test_an_op_after_the_last_child_is_blamed_on_the_forward_around() -> None:
    inner = Does(lambda self, x: self.child(x) * NAN, child=nn.ReLU())
    agent = ran(nn.Sequential(inner))
    assert agent.stops == [("nonfinite.forward", "0", 0)]
    assert agent.event.entered is inner


def test_a_value_that_does_not_survive_does_not_stop() -> None:
    def dies(self: Any, x: Any) -> Any:
        return torch.nan_to_num(x * NAN)

    assert ran(nn.Sequential(Does(dies))).stops == []


def test_two_producers_in_one_step_are_two_stops() -> None:
    def both(self: Any, x: Any) -> Any:
        return self.first(x).nan_to_num() + self.second(x)

    agent = ran(Does(both, first=Makes(), second=Makes()))
    assert agent.places == ["first", "second"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (x, None),
        lambda x: [{"hidden": (x,)}],
        lambda x: {"loss": torch.ones(()), "x": x},
        lambda x: x.to(torch.complex64),
        lambda x: x.to_sparse(),
        lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
        lambda x: x.half(),
        lambda x: x.to(torch.float8_e4m3fn),
    ],
)
def test_it_is_found_in_any_kind_of_output(wrap: Any) -> None:
    model = nn.Sequential(Does(lambda self, x: wrap(Makes().forward(x))))
    assert ran(model).places == ["0"]


@pytest.mark.parametrize(
    "output", [None, "text", 3, (), torch.ones(2, dtype=torch.long), torch.ones(2, device="meta")]
)
def test_outputs_without_numbers_pass(output: Any) -> None:
    assert ran(Does(lambda self, x: output)).stops == []


def test_an_output_changed_after_it_was_looked_at_is_looked_at_again() -> None:
    def spoils(self: Any, x: Any) -> Any:
        y = self.child(x)
        y[0] = NAN
        return y

    agent = ran(nn.Sequential(Does(spoils, child=Does(lambda self, x: x * 2))))
    assert agent.places == ["0"]


def test_an_argument_changed_in_place_is_blamed_on_the_module_that_changed_it() -> None:
    def spoils(self: Any, x: Any) -> Any:
        return x.mul_(NAN)

    agent = ran(nn.Sequential(Does(lambda self, x: x * 1), Does(spoils), nn.ReLU()))
    assert agent.places == ["1"]


def test_an_inplace_activation_passes_on_what_it_received() -> None:
    model = nn.Sequential(Makes(), nn.ReLU(inplace=True), nn.ReLU6(inplace=True))
    assert ran(model).places == ["0"]


def test_a_module_called_by_forward_is_hidden_behind_the_one_around() -> None:
    inner = Does(lambda self, x: self.child.forward(x), child=Makes())
    agent = ran(nn.Sequential(inner))
    assert agent.places == ["0"]


def test_keyword_arguments_are_arguments() -> None:
    def makes(self: Any, x: Any) -> Any:
        return self.child(x=x * NAN)

    inner = Does(makes, child=Does(lambda self, x: x + 1))
    agent = ran(nn.Sequential(inner))
    assert agent.places == ["0"] and agent.event.entered is inner.child


# The batch ---------------------------------------------------------------------------------------


def test_a_bad_batch_stops_once_at_the_root_and_names_the_argument() -> None:
    x = X.clone()
    x[2, 1] = NAN
    agent = ran(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), x=x)
    assert agent.stops == [("nonfinite.input", "", 0)]
    assert agent.event.tensor is not None
    assert (agent.event.tensor.name, agent.event.tensor.first_index) == ("input", (2, 1))


def test_a_bad_keyword_of_the_batch_is_named() -> None:
    model = Does(lambda self, *, pixels: pixels + 1)
    with armed() as agent:
        model(pixels=X * INF)
    assert agent.event.name == "nonfinite.input"
    assert agent.event.tensor is not None and agent.event.tensor.name == "pixels"


def test_each_bad_batch_after_a_good_one_stops() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with armed() as agent:
        for batch in (X, X * NAN, X * NAN, X, X * NAN):
            model(batch)
    assert [step for _, _, step in agent.stops] == [1, 4]


def test_a_loss_module_after_a_bad_model_is_not_a_bad_batch() -> None:
    with armed() as agent:
        nn.MSELoss()(nn.Sequential(Makes())(X), X)
    assert agent.stops == [("nonfinite.forward", "0", 0)]


# Parameters --------------------------------------------------------------------------------------


def test_a_spoilt_parameter_is_blamed_on_its_owner_once() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with torch.no_grad():
        model[1][0].weight[0, 1] = NAN
    agent = ran(model, steps=3)
    assert agent.stops == [("nonfinite.input", "1.0", 0)]
    assert agent.event.tensor is not None and agent.event.tensor.name == "weight"
    assert "parameter weight" in agent.event.headline


def test_a_spoilt_buffer_is_called_a_buffer() -> None:
    model: Any = nn.Sequential(nn.BatchNorm1d(2)).eval()
    model[0].running_mean[0] = NAN
    agent = ran(model)
    assert agent.places == ["0"] and "buffer running_mean" in agent.event.headline


def test_a_parameter_spoilt_again_after_a_repair_stops_again() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    with armed() as agent, torch.no_grad():
        for spoilt in (True, True, False, True):
            model[0].weight.fill_(NAN if spoilt else 1.0)
            model(X)
    assert [step for _, _, step in agent.stops] == [0, 3]


def test_a_spoilt_parameter_that_reaches_no_output_does_not_stop() -> None:
    unused = Does(lambda self, x: x + 1, child=nn.Linear(2, 2))
    with torch.no_grad():
        nn.init.constant_(cast("nn.Linear", unused.get_submodule("child")).weight, NAN)
    assert ran(nn.Sequential(unused)).stops == []


def test_a_mask_kept_as_a_buffer_is_no_spoilt_state() -> None:
    model = nn.Sequential(Makes())
    model[0].register_buffer("mask", torch.full((4, 4), -INF).triu(1))
    assert ran(model).stops == [("nonfinite.forward", "0", 0)]


# Masks -------------------------------------------------------------------------------------------

GRADS = pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])


@GRADS
def test_a_nan_behind_a_mask_is_still_found(grad: bool) -> None:
    def around(self: Any, x: Any) -> Any:
        scores = (x @ x.t()).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -INF)
        return self.child(self.softmax(scores) @ x)

    model = nn.Sequential(
        nn.Linear(2, 2), Does(around, child=Makes(), softmax=nn.Softmax(-1)), nn.Linear(2, 2)
    )
    with torch.set_grad_enabled(grad):
        assert ran(model).places == ["1.child"]


@GRADS
def test_masked_logits_returned_by_the_root_pass(grad: bool) -> None:
    def masks(self: Any, x: Any) -> Any:
        return self.child(x).masked_fill(torch.tensor([True, False]), -INF)

    with torch.set_grad_enabled(grad):
        assert ran(Does(masks, child=nn.Linear(2, 2))).stops == []


# Conditions --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "places"),
    [
        ('nonfinite("*")', ["1.1"]),
        ('nonfinite("1.*")', ["1.1"]),
        ('nonfinite("1")', ["1"]),
        ('nonfinite("")', [""]),
        ('nonfinite("1.2")', []),
        ('nonfinite("0")', []),
        ('nonfinite("2")', []),
        ('nonfinite("*", phase="forward")', ["1.1"]),
        ('nonfinite("*", phase="input")', []),
        ('nonfinite("*") and step >= 1', []),
        ('nonfinite("*") and step == 0', ["1.1"]),
        ('nonfinite("*") and optimizer_step == 0', ["1.1"]),
    ],
)
def test_a_condition_narrows_where_and_when(condition: str, places: list[str]) -> None:
    assert ran(chain(), condition).places == places


def test_a_phase_keeps_a_bad_batch_apart() -> None:
    x = X * NAN
    assert ran(chain(), 'nonfinite("*", phase="input")', x=x).stops == [("nonfinite.input", "", 0)]
    assert ran(chain(), 'nonfinite("*", phase="forward")', x=x).stops == []


def test_a_step_condition_stops_at_that_step() -> None:
    agent = ran(chain(at={2, 4}), 'nonfinite("*") and step > 2', steps=6)
    assert agent.stops == [("nonfinite.forward", "1.1", 4)]


def test_it_fires_when_it_turns_true_and_again_only_after_being_false() -> None:
    agent = ran(chain(at={1, 2, 3, 5, 6}), steps=8)
    assert [step for _, _, step in agent.stops] == [1, 5]


def test_what_nobody_was_there_to_see_fires_again() -> None:
    model = chain()
    with armed() as agent:
        for agent.attached in (False, False, True, True):
            model(X)
    assert [step for _, _, step in agent.stops] == [0, 1, 2]


def test_not_is_true_where_the_output_is_finite() -> None:
    agent = ran(chain(at={1}), 'not nonfinite("1.1")', steps=3)
    assert agent.stops == [("nonfinite.forward", "1.1", 0), ("nonfinite.forward", "1.1", 2)]


def test_or_needs_no_nan_for_its_other_side() -> None:
    agent = ran(chain(at={1}), 'nonfinite("1.1") or step == 3', steps=5)
    assert agent.stops == [("nonfinite.forward", "1.1", 1), ("nonfinite.forward", "1.1", 3)]


def test_two_rules_at_one_event_are_one_stop_with_both() -> None:
    agent = ran(chain(), 'nonfinite("*")', 'nonfinite("2")', 'nonfinite("1.1")')
    assert agent.places == ["1.1"] and agent.calls[0][0] == [0, 2]


def test_rules_at_different_places_stop_at_each() -> None:
    agent = ran(chain(), 'nonfinite("")', 'nonfinite("1.1")')
    assert agent.places == ["1.1", ""]
    assert [ids for ids, _ in agent.calls] == [[1], [0]]


def test_a_rule_kept_by_a_new_plan_remembers_where_it_is_true() -> None:
    kept, model = rule("nonfinite()"), chain()
    with armed(kept) as agent:
        model(X)
        agent.arm(kept, rule('nonfinite("0")', 1))
        model(X)
    assert len(agent.stops) == 1

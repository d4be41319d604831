"""grad_norm: the right number, at the right place, once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.armed import Armed, armed


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def norm(parameters: Any) -> float:
    return math.sqrt(sum(float(p.grad.pow(2).sum()) for p in parameters if p.grad is not None))


def train(model: nn.Module, steps: int = 1, factor: float = 1.0, **options: Any) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, **options)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(2, 4)).sum() * factor).backward()
        optimizer.step()


def values(agent: Armed) -> list[float]:
    return [float(event.value or 0) for _, event in agent.calls]


def test_the_whole_models_norm_is_looked_at_before_the_optimizer_steps() -> None:
    model = network()
    with armed("grad_norm() > 0") as agent:
        (model(torch.ones(2, 4)).sum()).backward()
        assert not agent.calls
        torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert values(agent) == pytest.approx([norm(model.parameters())])
    assert agent.event.module is None and "grad_norm() = " in agent.event.sentences[-1]


def test_a_modules_norm_is_known_inside_backward_at_the_layer_that_crosses_first() -> None:
    model = network()
    with armed('grad_norm("*") > 0') as agent:
        train(model)
    assert agent.places == ["2", "0", ""]
    expected = [norm(model[2].parameters()), norm(model[0].parameters()), norm(model.parameters())]
    assert values(agent) == pytest.approx(expected)


def test_a_glob_that_matches_no_module_names_parameters() -> None:
    model = network()
    with armed('grad_norm("0.weight") > 0', 'grad_norm("*.bias") > 0') as agent:
        train(model)
    assert agent.places == ["2", "0", "0"]
    weight, bias = model[0].weight, model[0].bias
    assert sorted(values(agent)[1:]) == pytest.approx(sorted([norm([weight]), norm([bias])]))


def test_it_fires_when_it_turns_true_and_again_after_it_was_false() -> None:
    model = network()
    with armed("grad_norm() > 100") as agent:
        for factor in (1.0, 1000.0, 1000.0, 1.0, 1000.0):
            train(model, factor=factor)
    assert [step for _, _, step in agent.stops] == [1, 4]


def test_clipping_shows_the_norm_before_it_and_no_other() -> None:
    model = network()
    with armed("grad_norm() > 0", "grad_norm() < 0.02") as agent:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        model(torch.ones(2, 4)).sum().backward()
        total = norm(model.parameters())
        for watch in agent.watches:
            watch.on_clipped(list(model.parameters()), total)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    assert values(agent) == pytest.approx([total])


def test_accumulated_gradients_are_measured_as_accumulated() -> None:
    model = network()
    with armed("grad_norm() > 0") as agent:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.0).step()
    assert values(agent) == pytest.approx([norm(model.parameters())])


@pytest.mark.parametrize("condition", ["grad_norm() > 0", 'grad_norm("0") > 0'])
def test_a_scaled_gradient_is_measured_unscaled(condition: str) -> None:
    model = network()
    with armed(condition) as agent:
        agent.scale = 1024.0
        train(model, factor=1024.0)
        agent.scale = None
    parameters = model.parameters() if "()" in condition else model[0].parameters()
    assert values(agent) == pytest.approx([norm(parameters) / 1024])


@pytest.mark.parametrize("condition", ["grad_norm()", 'grad_norm("0")'])
def test_an_overflow_at_which_the_scaler_skips_is_not_measured(condition: str) -> None:
    model = network()
    with armed(f"not ({condition} <= 1e30)") as agent:
        agent.scale = 65536.0
        train(model, factor=math.inf)
        assert not agent.calls
        agent.scale = 1.0
        train(model, factor=math.inf)
    assert len(agent.calls) == 1 and not math.isfinite(values(agent)[0])


def test_parameters_that_get_no_gradient_do_not_delay_their_module() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    model = nn.Sequential(nn.Linear(4, 4), Half())
    with armed('grad_norm("1") > 0 and step > 0') as agent:
        heard: list[str] = []
        first = next(model[0].parameters())
        train(model)  # learns which gradients come
        first.register_post_accumulate_grad_hook(lambda _: heard.append("first layer"))
        stop = agent.judge._stop

        def stopping(rules: Any, event: Any) -> bool:
            heard.append("stop")
            return stop(rules, event)

        agent.judge._stop = stopping
        train(model)
    assert heard == ["stop", "first layer"]


def test_a_norm_can_be_combined_with_what_the_forward_measured() -> None:
    model = network()
    with armed(
        'grad_norm("2") > 0 and absmax("2") > 1e9', 'grad_norm() > 0 and absmax("2") > 0'
    ) as a:
        train(model, 2)
    assert [ids for ids, _ in a.calls] == [[1]] and a.stops[0][2] == 0


def test_a_vanishing_gradient_needs_the_complete_norm() -> None:
    model = network()
    with armed('grad_norm("0") < 1e-9') as agent:
        train(model)
        assert not agent.calls
        train(model, factor=0.0)
    assert agent.places == ["0"]


def test_nothing_is_left_on_the_parameters() -> None:
    model = network()
    with armed('grad_norm("*") > 0'):
        train(model)
        assert model[0].weight._post_accumulate_grad_hooks
    assert not model[0].weight._post_accumulate_grad_hooks


def test_for_the_whole_model_alone_nothing_runs_after_a_layer() -> None:
    from torch.nn.modules import module as registry

    hooks: Any = registry
    with armed("grad_norm() > 0"):
        assert len(hooks._global_forward_pre_hooks) == 1 and not hooks._global_forward_hooks
    with armed('grad_norm("*") > 0'):  # roots are heard of: they may have new parameters
        assert hooks._global_forward_hooks

"""NaN and Inf in gradients: when that is told, to which rules, and from several passes at once."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.armed import armed
from tests.unit.agent.spoiling import INF, NAN, Does, Spoils, batch, blamed, lin, trained

# When --------------------------------------------------------------------------------------------


def test_it_is_told_once_as_long_as_it_stays_bad() -> None:
    agent = trained(nn.Sequential(lin(), Spoils(at={1, 2, 4}), lin()), steps=6)
    assert agent.stops == [("nonfinite.backward", "1", 1), ("nonfinite.backward", "1", 4)]


def test_gradient_accumulation() -> None:
    model = nn.Sequential(lin(), Spoils(at={1}), lin())
    with armed() as agent:
        for _ in range(4):
            model(batch()).sum().backward()  # its sum stays NaN
        model.zero_grad()
        model(batch()).sum().backward()
    assert agent.stops == [("nonfinite.backward", "1", 1)]


def test_what_the_optimizer_and_later_steps_make_of_it_is_no_news() -> None:
    agent = trained(nn.Sequential(lin(), Spoils(at={1}), lin()), steps=5, lr=0.1)
    assert agent.stops == [("nonfinite.backward", "1", 1)]


def test_the_backward_of_a_bad_loss_is_no_news() -> None:
    agent = trained(nn.Sequential(lin(), lin()), loss=lambda y: y.sum() * NAN, steps=3, lr=0.1)
    assert agent.stops == [("nonfinite.forward", "", 0)]
    quiet = trained(
        nn.Sequential(lin()), 'nonfinite(phase="backward")', loss=lambda y: y.sum() * NAN
    )
    assert quiet.stops == []


def test_two_faults_in_different_passes_are_two_stops() -> None:
    model = nn.Sequential(lin(), Spoils(at={0}), lin(), Spoils(at={1}), lin())
    agent = trained(model, steps=2)
    assert agent.places == ["1", "3"]


def test_a_graph_that_is_retained_runs_again() -> None:
    model = nn.Sequential(lin(), Spoils(), lin())
    with armed() as agent:
        loss = model(batch()).sum()
        loss.backward(retain_graph=True)
        model.zero_grad()
        loss.backward(retain_graph=True, create_graph=True)
    assert agent.places == ["1"]


def test_a_part_of_the_inputs() -> None:
    model: Any = nn.Sequential(lin(), Spoils(), lin())
    with armed() as agent:
        model(batch()).sum().backward(inputs=[model[2].weight])
        assert agent.stops == []
        model(batch()).sum().backward(inputs=[model[0].weight])
    assert agent.places == ["1"]


def test_a_gradient_scaler_that_probes() -> None:
    model = nn.Sequential(lin(), Spoils(INF), lin())
    with armed() as agent:
        agent.scale = 65536.0
        model(batch()).sum().backward()
        assert agent.stops == []
        agent.scale = 1.0
        model(batch()).sum().backward()
    assert agent.places == ["1"]


def test_a_condition_that_is_not_fulfilled_yet_stops_when_it_is() -> None:
    agent = trained(nn.Sequential(lin(), Spoils(), lin()), "nonfinite() and step >= 2", steps=4)
    assert agent.stops == [("nonfinite.backward", "1", 2)]


def test_a_stop_that_nobody_sees_comes_again() -> None:
    model = nn.Sequential(lin(), Spoils(), lin())
    with armed() as agent:
        agent.attached = False
        model(batch()).sum().backward()
        agent.attached = True
        model(batch()).sum().backward()
        model(batch()).sum().backward()
    assert agent.places[-1] == "1" and agent.stops[-1][2] == 1


# Which rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "stops"),
    [
        ("nonfinite()", 1),
        ('nonfinite(phase="backward")', 1),
        ('nonfinite(phase="forward")', 0),
        ('nonfinite(phase="input")', 0),
        ('nonfinite("1")', 1),
        ('nonfinite("1", phase="backward")', 1),
        ('nonfinite("0")', 1),  # whose gradient it is
        ('nonfinite("2")', 0),
        ('nonfinite("*")', 1),
        ("nonfinite() and optimizer_step > 3", 0),
    ],
)
def test_globs_and_phases(condition: str, stops: int) -> None:
    assert len(blamed(nn.Sequential(lin(), Spoils(), lin()), condition, steps=3)) == stops


def test_a_loss_outside_any_module_is_no_module_of_a_glob() -> None:
    loss = lambda y: y.sum() * NAN  # noqa: E731
    assert trained(nn.Sequential(lin()), 'nonfinite("0")', loss=loss).stops == []


def test_each_of_two_rules_is_told() -> None:
    agent = trained(nn.Sequential(lin(), Spoils(), lin()), "nonfinite()", 'nonfinite("0")')
    assert [ids for ids, _ in agent.calls] == [[0, 1]]


# Several of them ---------------------------------------------------------------------------------


def test_two_models_and_losses() -> None:
    one, two = nn.Sequential(lin(), Spoils(at={1}), lin()), nn.Sequential(lin(), Spoils(at={2}))
    with armed() as agent:
        for _ in range(4):
            for model in (one, two):
                model.zero_grad()
                model(batch()).sum().backward()
    assert agent.stops == [("nonfinite.backward", "1", 1), ("nonfinite.backward", "1", 2)]


def test_threads_at_the_same_time() -> None:
    barrier = threading.Barrier(2)

    class Meets(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            barrier.wait(20)
            return gradient

    meet = Does(lambda self, x: Meets.apply(x))
    models = [
        nn.Sequential(lin(), meet, lin(), Spoils(at=at), lin(), meet, lin())
        for at in (set[int](), {3})
    ]
    failed: list[BaseException] = []

    def train(model: nn.Module) -> None:
        try:
            for _ in range(6):
                model.zero_grad()
                model(batch()).sum().backward()
        except BaseException as error:
            failed.append(error)

    with armed() as agent:
        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not failed
    assert agent.stops == [("nonfinite.backward", "3", 3)]
    assert agent.event.module is models[1][3]


def test_a_backward_inside_a_backward_is_part_of_it() -> None:
    class Inner(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                (inner,) = torch.autograd.grad(x.pow(2).sum(), x)
            return gradient * inner

    model = nn.Sequential(lin(), Spoils(), lin(), Does(lambda self, x: Inner.apply(x)), lin())
    assert blamed(model) == ["1"]


def test_a_backward_that_raises() -> None:
    class Raises(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            raise ValueError("of the program's")

    model = nn.Sequential(lin(), Does(lambda self, x: Raises.apply(x)), lin())
    with armed() as agent:
        with pytest.raises(ValueError, match="of the program's"):
            model(batch()).sum().backward()
        watch: Any = next(w for w in agent.watches if type(w).__name__ == "NonfiniteBackward")
        assert watch._passes.current() is None
        model = nn.Sequential(lin(), Spoils())
        model(batch()).sum().backward()
    assert agent.places == ["1"]

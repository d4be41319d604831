"""NaN and Inf that an optimizer step, clipping, or a module's own update writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.armed import armed
from tests.unit.agent.spoiling import INF, NAN, Does, Spoils, batch, lin, spoil

UPDATE = 'nonfinite(phase="update")'


def step(model: nn.Module, optimizer: Any, x: Any = None) -> None:
    optimizer.zero_grad()
    model(batch() if x is None else x).pow(2).mean().backward()
    optimizer.step()


def half() -> nn.Module:
    return nn.Sequential(lin(), nn.Tanh(), lin()).half()


def no_feature() -> torch.Tensor:
    x = batch().half()
    x[:, 0] = 0.0
    return x


# Parameters --------------------------------------------------------------------------------------


def test_adams_eps_in_half_precision() -> None:
    model = half()
    optimizer = torch.optim.Adam(model.parameters())
    with armed() as agent:
        for _ in range(4):
            step(model, optimizer, no_feature())
    assert agent.stops == [("nonfinite.update", "0", 0)]
    event = agent.event
    assert event.headline == "NaN written by Adam.step into parameter weight of"
    assert "eps = 1e-08 is 0 in float16" in event.sentences[1]
    assert event.tensor is not None and event.tensor.first_index == (0, 0)
    assert set(event.values) == {"parameter", "gradient", "state", "options"}


@pytest.mark.parametrize("lr", [INF, NAN], ids=str)
@pytest.mark.parametrize(
    "options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str
)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_a_learning_rate_that_is_not_finite(kind: Any, options: Any, lr: float) -> None:
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    optimizer = kind(model.parameters(), lr=0.01, **options)
    with armed() as agent:
        step(model, optimizer)
        optimizer.param_groups[0]["lr"] = lr
        for _ in range(3):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "0", 1)]
    assert agent.event.sentences[1] == f"The learning rate is {lr}."


def test_a_step_that_is_compiled() -> None:
    torch._dynamo.reset()
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    compiled = torch.compile(optimizer.step, backend="eager")
    with armed() as agent:
        for lr in (0.01, 0.01, INF):
            optimizer.zero_grad()
            optimizer.param_groups[0]["lr"] = lr
            model(batch()).pow(2).mean().backward()
            compiled()
    assert agent.stops == [("nonfinite.update", "0", 2)]
    assert agent.event.sentences[1] == "The learning rate is inf."


def test_a_step_that_overflows() -> None:
    model = half()
    optimizer = torch.optim.SGD(model.parameters(), lr=6e4)
    with armed() as agent:
        for _ in range(3):
            optimizer.zero_grad()
            (model(batch().half()).sum() * 100).backward()
            optimizer.step()
    assert [event for event, _, _ in agent.stops] == ["nonfinite.update"]
    assert "overflowed or divided by zero (lr = 60000, float16)" in agent.event.sentences[1]


def test_with_update_alone_a_bad_gradient_is_the_reason() -> None:
    model = nn.Sequential(lin(), Spoils(at={1}), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with armed(UPDATE) as agent:
        for _ in range(4):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "0", 1)]
    assert agent.event.sentences[1] == "The gradient that SGD applied was itself not finite."


def test_with_update_alone_a_bad_loss_is_the_reason() -> None:
    model = nn.Sequential(lin(), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with armed(UPDATE) as agent:
        for number in range(4):
            optimizer.zero_grad()
            (model(batch()).sum() * (NAN if number == 1 else 1.0)).backward()
            optimizer.step()
    assert agent.stops == [("nonfinite.update", "0", 1)]


@pytest.mark.parametrize("at_once", [True, False])
def test_everywhere_a_bad_gradient_was_told_in_the_backward(at_once: bool) -> None:
    model = nn.Sequential(lin(), Spoils(at={1}), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rules = ["nonfinite() or loss > 1e9"] if at_once else ["nonfinite()"]
    with armed(*rules) as agent:
        for _ in range(4):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.backward", "1", 1)]


def test_several_optimizers_of_one_fault_are_one_stop() -> None:
    model: Any = nn.Sequential(lin(), lin(), Spoils(at={1}), lin())
    with armed(UPDATE) as agent:
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[1])]
        for _ in range(3):
            model.zero_grad()
            model(batch()).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert agent.stops == [("nonfinite.update", "0", 1)]


def test_optimizers_that_step_inside_backward() -> None:
    def model_that_steps() -> Any:
        model: Any = nn.Sequential(lin(), lin(), Spoils(at={1}), lin())
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def act(parameter: Any, optimizer: Any = optimizer) -> None:
                optimizer.step()
                optimizer.zero_grad()

            parameter.register_post_accumulate_grad_hook(act)
        return model

    for condition in ("nonfinite()", UPDATE):
        model = model_that_steps()
        with armed(condition) as agent:
            for _ in range(4):
                model(batch()).sum().backward()
        assert agent.stops == [("nonfinite.update", "1", 1)], condition


def test_a_parameter_that_is_finite_again_can_go_bad_again() -> None:
    model: Any = nn.Sequential(lin(), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with armed() as agent:
        for number in range(7):
            optimizer.param_groups[0]["lr"] = INF if number in (1, 4) else 0.1
            step(model, optimizer)
            if number == 2:  # back to a checkpoint
                model.load_state_dict(nn.Sequential(lin(), lin()).state_dict())
    assert agent.stops == [("nonfinite.update", "0", 1), ("nonfinite.update", "0", 4)]


def test_parameters_of_no_module() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with armed() as agent:
        for number in range(5):
            optimizer.zero_grad()
            (weight.sqrt() * (NAN if number == 2 else 1.0)).sum().backward()
            optimizer.step()
    assert agent.stops == [("nonfinite.forward", "", None)]
    with armed() as agent:
        other = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([other], lr=0.1)
        for number in range(5):
            optimizer.zero_grad()
            other.sum().backward()
            optimizer.param_groups[0]["lr"] = INF if number == 2 else 0.1
            optimizer.step()
    assert agent.stops == [("nonfinite.update", "", None)]
    assert agent.event.headline.endswith("into parameter other of no module")


def test_a_parameter_is_called_by_the_model_or_the_variable_that_has_it() -> None:
    """A model of which only methods are called, as `agent.act(...)`, runs no hook of its own."""
    model, tensors = nn.Linear(2, 2), {"w": torch.zeros(2, requires_grad=True)}
    for weight, name in ((model.bias, "bias"), (tensors["w"], "tensors['w']")):
        optimizer = torch.optim.SGD([weight], lr=0.1)
        with armed() as agent:
            for number in range(2):
                optimizer.zero_grad()
                (spoil(weight) if number else weight).sum().backward()
                if number == 0:
                    optimizer.step()
        assert agent.stops == [("nonfinite.backward", "", None)]
        assert agent.event.tensor is not None
        assert agent.event.tensor.name == f"{name}.grad"


def test_a_bad_gradient_of_a_parameter_of_no_module() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with armed() as agent:
        for number in range(5):
            optimizer.zero_grad()
            (spoil(weight) if number == 2 else weight).sum().backward()
            optimizer.step()
    assert agent.stops[0] == ("nonfinite.backward", "", None)
    assert len(agent.stops) <= 2  # the loss of NaN parameters, which no forward shows


# State -------------------------------------------------------------------------------------------


def huge(at: set[int], scale: float = 1e25) -> nn.Module:
    class Huge(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient * scale

    def forward(self: Any, x: Any) -> Any:
        self.calls = getattr(self, "calls", -1) + 1
        return Huge.apply(x) if self.calls in at else x * 1

    return Does(forward)


@pytest.mark.parametrize(
    "options", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str
)
def test_state_that_overflows_silently(options: Any) -> None:
    model = nn.Sequential(lin(), huge({2}), lin())
    optimizer = torch.optim.Adam(model.parameters(), **options)
    with armed() as agent:
        for _ in range(5):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "0", 2)]
    assert agent.event.headline == "Inf in the state (exp_avg_sq) of Adam for a parameter of"
    assert all(bool(p.isfinite().all()) for p in model.parameters())


def test_state_that_overflows_in_half_precision() -> None:
    model = half()
    optimizer = torch.optim.Adam(model.parameters(), eps=1e-3)
    with armed() as agent:
        for number in range(4):
            optimizer.zero_grad()
            factor = 1e4 if number == 1 else 1.0
            (model(batch().half()).sum() * factor).backward()
            optimizer.step()
    assert [event for event, _, _ in agent.stops] == ["nonfinite.update"]
    assert "in the state (exp_avg_sq)" in agent.event.headline


def test_state_that_is_loaded_bad() -> None:
    model = nn.Sequential(lin(), lin())
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(INF)
    with armed() as agent:
        for _ in range(3):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "0", 0)]


def test_huge_finite_values_are_finite() -> None:
    model = nn.Sequential(lin(), huge({1}, 1e19), lin())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e10).add_(1e19)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-30)
    with armed(UPDATE) as agent:
        for _ in range(3):
            optimizer.zero_grad()
            (model(batch() * 1e-10).sum() * 1e-30).backward()
            optimizer.step()
    assert agent.stops == []


# Buffers -----------------------------------------------------------------------------------------


def norm_net() -> Any:
    return nn.Sequential(lin(), nn.BatchNorm1d(2), lin())


def test_running_statistics_that_overflow() -> None:
    model = norm_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    with armed() as agent:
        for number in range(5):
            x = batch() * torch.arange(3.0)[:, None]
            with torch.no_grad():
                model[0].weight.fill_(1e19 if number == 3 else 0.5)
            step(model, optimizer, x)
    assert agent.places[0] == "1"
    assert agent.stops[0][0] in ("nonfinite.update", "nonfinite.forward")


def test_a_buffer_that_its_module_spoils() -> None:
    def forward(self: Any, x: Any) -> Any:
        self.mean.mul_(0.9).add_(x.mean() / (self.count[0] - 2))
        self.count += 1
        return self.a(x)

    keeps: Any = Does(forward, a=lin())
    keeps.register_buffer("mean", torch.zeros(2))
    keeps.register_buffer("count", torch.zeros(1))
    keeps.register_buffer("mask", torch.full((2, 2), -INF))
    keeps.register_buffer("cache", torch.full((2, 2), NAN))
    model = nn.Sequential(lin(), keeps, lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with armed() as agent:
        for _ in range(5):
            step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "1", 2)]
    assert agent.event.headline == "Inf written into buffer mean of"
    assert "Does wrote it in a forward" in agent.event.sentences[1]


def test_large_buffers_are_looked_at_when_they_were_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tensorpoint.agent.watches.nonfinite_update._SMALL", 0)
    model = nn.Sequential(lin(), nn.Module(), lin())
    model[1].forward = lambda x: x  # type: ignore[method-assign]
    model[1].register_buffer("big", torch.zeros(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with armed() as agent:
        for number in range(4):
            step(model, optimizer)
            if number == 1:
                model[1].big.fill_(NAN)  # type: ignore[operator]
    assert agent.stops == [("nonfinite.update", "1", 2)]


# Clipping ----------------------------------------------------------------------------------------


def test_clipping_with_an_infinite_gradient() -> None:
    for condition, expected in (
        (UPDATE, [("nonfinite.update", "0", 1)]),
        ("nonfinite()", [("nonfinite.backward", "1", 1)]),
    ):
        model = nn.Sequential(lin(), Spoils(INF, at={1}), lin())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with armed(condition) as agent:
            for _ in range(4):
                optimizer.zero_grad()
                model(batch()).sum().backward()
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                for watch in agent.watches:  # as the adapter for torch tells it
                    watch.on_clipped(tuple(model.parameters()), float(norm))
                optimizer.step()
        assert agent.stops == expected, condition
    assert agent.faults == []


def test_clipping_says_which_gradient_it_was() -> None:
    model = nn.Sequential(lin(), Spoils(INF, at={0}), lin())
    with armed(UPDATE) as agent:
        model(batch()).sum().backward()
        for watch in agent.watches:
            watch.on_clipped(tuple(model.parameters()), INF)
    assert agent.event.headline.endswith("in a gradient, after clipping, of")
    assert "The total norm was inf because of the gradient of weight" in agent.event.sentences[1]


def test_clipping_on_a_probing_step_is_normal() -> None:
    model = nn.Sequential(lin(), Spoils(INF), lin())
    with armed() as agent:
        agent.scale = 65536.0
        model(batch()).sum().backward()
        for watch in agent.watches:
            watch.on_clipped(tuple(model.parameters()), INF)
    assert agent.stops == []


def test_a_step_that_a_scaler_would_have_skipped_says_so() -> None:
    model = nn.Sequential(lin(), Spoils(INF, at={1}), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with armed() as agent:
        agent.scale = 65536.0
        step(model, optimizer)
        step(model, optimizer)
    assert agent.stops == [("nonfinite.update", "0", 1)]
    assert agent.event.sentences[1].startswith(
        "The gradient that SGD applied was itself not finite. A gradient scaler is on: "
        "scaler.step(optimizer) skips a step whose gradients were bad"
    )


# Which rules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "places"),
    [
        ("nonfinite()", ["0"]),
        (UPDATE, ["0"]),
        ('nonfinite(phase="backward")', []),
        ('nonfinite(phase="forward")', []),
        ('nonfinite("2", phase="update")', ["2"]),
        ('nonfinite("1")', []),
        ("nonfinite() and optimizer_step >= 3", ["0"]),
    ],
)
def test_globs_and_phases(condition: str, places: list[str]) -> None:
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    optimizer = torch.optim.SGD(model.parameters(), lr=INF)
    with armed(condition) as agent:
        for _ in range(4):
            step(model, optimizer)
    assert agent.places == places


def test_unused_and_frozen_parameters() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.b(self.a(x))

    model: Any = Does(forward, a=lin().requires_grad_(False), b=lin(), unused=lin())
    optimizer = torch.optim.AdamW(model.parameters())
    with armed() as agent:
        for _ in range(3):
            step(model, optimizer)
        with torch.no_grad():
            model.unused.weight.fill_(NAN)  # nobody computes with it
        for _ in range(3):
            step(model, optimizer)
    assert agent.stops == []


def test_a_closure_that_runs_backward_inside_the_step() -> None:
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    calls: list[int] = []

    def closure() -> Any:
        optimizer.zero_grad()
        calls.append(0)
        loss = model(batch()).pow(2).mean()
        if len(calls) == 5:
            loss = loss * NAN
        loss.backward()
        return loss

    with armed() as agent:
        for _ in range(4):
            optimizer.step(closure)
    assert agent.stops == [("nonfinite.forward", "", 4)]


def test_sparse_and_complex_parameters() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 2, sparse=True)
            self.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (self.embed(x) * self.phase).abs()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with armed() as agent:
        for number in range(4):
            optimizer.param_groups[0]["lr"] = INF if number == 2 else 0.1
            step(model, optimizer, torch.tensor([0, 1, 1]))
    assert [event for event, _, _ in agent.stops] == ["nonfinite.update"]

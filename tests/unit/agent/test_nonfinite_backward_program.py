"""NaN and Inf in gradients: what the program notices of the watch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.agent.armed import armed
from tests.unit.agent.spoiling import Does, Spoils, batch, lin, spoil, trained


def blamed(model: nn.Module, *rules: Any, **options: Any) -> list[str]:
    agent = trained(model, *rules, **options)
    assert all(event == "nonfinite.backward" for event, _, _ in agent.stops), agent.stops
    return agent.places


# What the program notices ------------------------------------------------------------------------


def test_gradients_are_the_same_bit_by_bit() -> None:
    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(4 * 36, 8),
            Does(lambda self, x: x + self.a(x), a=nn.Linear(8, 8)),
        )
        for _ in range(3):
            model(torch.randn(4, 3, 8, 8)).pow(2).mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None] + [torch.randn(3)]

    plain = gradients()
    with armed():
        watched = gradients()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_nothing_of_a_pass_is_kept() -> None:
    model = nn.Sequential(lin(), nn.Tanh(), Spoils(at={1}), lin(), nn.ReLU(inplace=True), lin())
    seen: list[weakref.ref[torch.Tensor]] = []
    with armed() as agent:
        for step in range(3):
            output = model(batch())
            hidden = output.grad_fn
            seen.append(weakref.ref(output))
            output.register_hook(lambda g: seen.append(weakref.ref(g)) or None)
            output.sum().backward()
            model.zero_grad()
            del output, hidden
            agent.calls.clear()
            assert step >= 0
    assert all(reference() is None for reference in seen)


def _tensors() -> int:
    gc.collect()
    return sum(type(item) is torch.Tensor for item in gc.get_objects())


def test_nothing_grows_over_a_hundred_steps() -> None:
    model = nn.Sequential(lin(), nn.Tanh(), Does(lambda self, x: self.a(x) + x, a=lin()), lin())
    flow = "Flow"

    def flows() -> int:
        gc.collect()
        return sum(type(item).__name__ == flow for item in gc.get_objects())

    with armed() as agent:
        counts: list[tuple[int, int]] = []
        for step in range(101):
            model.zero_grad()
            model(batch()).sum().backward()
            if step in (5, 100):
                counts.append((_tensors(), flows()))
        assert counts[0] == counts[1]
        assert not agent.faults


def test_a_graph_dies_with_its_loss() -> None:
    class Marks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            ctx.mark = mark = set[int]()
            marks.append(weakref.ref(mark))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # type: ignore[override]
            return gradient

    marks: list[weakref.ref[set[int]]] = []
    model = nn.Sequential(lin(), Does(lambda self, x: Marks.apply(x)), lin())
    gc.disable()
    try:
        with armed():
            model(batch()).sum().backward()
            loss = model(batch())  # never run backward
            del loss
            assert [mark() for mark in marks] == [None, None]
    finally:
        gc.enable()


def test_modes_of_the_program_see_only_what_is_its_own() -> None:
    model = nn.Sequential(lin(), nn.ReLU(inplace=True), lin())

    class Records(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.ops: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    def run() -> tuple[list[str], int]:
        model.zero_grad()
        with Records() as records, FlopCounterMode(display=False) as flops:
            model(batch()).sum().backward()
        return records.ops, flops.get_total_flops()

    plain = run()
    with armed():
        run()
        assert run() == plain


def test_functional_transforms() -> None:
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    parameters = dict(model.named_parameters())

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    def run() -> Any:
        gradient = torch.func.grad(loss)(parameters, batch())
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, batch())
        return [*gradient.values(), *each.values()]

    plain = run()
    with armed() as agent:
        watched = run()
        model(batch()).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert agent.stops == []


def test_subclasses_of_tensor() -> None:
    class Mine(torch.Tensor):
        pass

    model = nn.Sequential(lin(), nn.Tanh(), Spoils(), lin())
    with armed() as agent:
        model(batch().as_subclass(Mine)).sum().backward()
    assert [event for event, _, _ in agent.stops] == ["nonfinite.backward"]


def test_a_hook_of_the_users_that_cleans_the_gradient() -> None:
    def forward(self: Any, x: Any) -> Any:
        h = self.a(x)
        h.register_hook(lambda gradient: gradient.nan_to_num(0.0))
        return self.b(spoil(h))

    assert blamed(nn.Sequential(Does(forward, a=lin(), b=lin()), lin())) == []


def test_hooks_of_the_users_stay_theirs() -> None:
    heard: list[str] = []

    class Hooked(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * 2
            y.register_hook(lambda gradient: heard.append("inside") or gradient * 3)
            y.retain_grad()
            return y

    model: Any = nn.Sequential(lin(), Hooked(), lin())
    with armed() as agent:
        hidden = model[1](model[0](batch()))
        handle = hidden.register_hook(lambda _: heard.append("removed"))
        hidden.register_hook(lambda _: heard.append("after"))
        handle.remove()
        other = model[0](batch())
        assert other._backward_hooks is None  # ours hang on its node
        other.register_hook(lambda _: heard.append("other"))
        model[2](hidden + other).sum().backward()
    assert sorted(heard) == ["after", "inside", "other"]
    assert torch.equal(hidden.grad, model[2].weight.sum(0).expand_as(hidden) * 3)
    assert agent.stops == [] and agent.faults == []


def test_switched_on_inside_a_step() -> None:
    model = nn.Sequential(lin(), Spoils(), lin())
    loss = model(batch()).sum()
    with armed() as agent:
        loss.backward()
        assert agent.stops == []  # no parameter is known before a root is called
        model(batch()).sum().backward()
    model(batch()).sum().backward()
    assert agent.places == ["1"]

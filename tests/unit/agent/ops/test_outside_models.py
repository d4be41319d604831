"""Bad losses of which a part was computed where no model's call had just ended."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent import explain
from tensorpoint.agent.ops import after_model
from tests.unit.agent.ops.test_after_model import BY_ROOT, line_of
from tests.unit.agent.ops.test_locate import Locating, locating


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    assert torch._C._len_torch_dispatch_stack() == 0


def models() -> tuple[nn.Linear, nn.Linear, torch.Tensor]:
    return nn.Linear(3, 3), nn.Linear(3, 3), torch.randn(4, 3)


def a_teachers_call_after_it() -> None:
    student, teacher, x = models()
    entropy = student(x).log()  # bad
    with torch.no_grad():
        target = teacher(x)
    (entropy * target).sum().backward()


def a_teachers_call_before_it() -> None:
    student, teacher, x = models()
    output = student(x)
    with torch.no_grad():
        target = teacher(x)
    (output - target).log().sum().backward()  # bad


def a_metric_of_a_module() -> None:
    model, metric, x = models()
    output = model(x)
    metric(output.detach())
    output.log().sum().backward()  # bad


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"mask": x > 0, "logits": self.inner(x)}


def an_output_that_needs_no_gradient_comes_first() -> None:
    Masked()(torch.randn(4, 3))["logits"].log().sum().backward()  # bad


def a_second_loss_of_a_graph_that_is_kept() -> None:
    model, _, x = models()
    output = model(x)
    output.sum().backward(retain_graph=True)
    output.log().sum().backward()  # bad


def a_second_loss_of_another_model() -> None:
    actor, critic, x = models()
    action, value = actor(x), critic(x)
    action.sum().backward()
    value.log().sum().backward()  # bad


def a_second_loss_that_was_computed_before_the_first_backward() -> None:
    actor, critic, x = models()
    action, value = actor(x), critic(x)
    loss = value.log().sum()  # bad
    action.sum().backward()
    loss.backward()


def a_second_loss_after_the_step_of_the_first() -> None:
    actor, critic, x = models()
    action, value = actor(x), critic(x)
    action.sum().backward()
    torch.optim.Adam(actor.parameters()).step()
    value.log().sum().backward()  # bad


@pytest.mark.parametrize("precision", ["module", "op"])
@pytest.mark.parametrize(
    "program",
    [
        a_teachers_call_after_it,
        a_teachers_call_before_it,
        a_metric_of_a_module,
        an_output_that_needs_no_gradient_comes_first,
        a_second_loss_of_a_graph_that_is_kept,
        a_second_loss_of_another_model,
        a_second_loss_that_was_computed_before_the_first_backward,
        a_second_loss_after_the_step_of_the_first,
    ],
)
def test_a_bad_loss_is_named_by_the_first_stop(program: Callable[[], None], precision: str) -> None:
    with locating(precision) as agent:
        program()
    assert named(agent) == ("aten.log.default", line_of(program, "# bad"))


def named(agent: Locating) -> tuple[str, int | None]:
    assert len(agent.located) == 1, agent.stops
    located = agent.located[0]
    assert located is not None
    assert located.report is not None, located.sentences
    return located.report.name, located.report.line


def test_a_bad_gradient_of_a_loss_around_a_teachers_call() -> None:
    student, teacher, x = models()

    def distance() -> torch.Tensor:
        output = student(x)
        with torch.no_grad():
            teacher(x)
            target = output.clone()
        return (output - target).square().sum().sqrt()

    with locating() as agent:
        distance().backward()
    assert agent.report == BY_ROOT
    assert named(agent)[1] == line_of(distance, ".sqrt()")


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_that_calls_its_layers_again_leaves_nothing_to_wait_for(
    reentrant: bool,
) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.block = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    model = Model()
    with locating() as agent:
        model(torch.randn(4, 3)).square().sum().backward()
        assert not torch._C._len_torch_dispatch_stack()
    assert not agent.located


# What was bad before the model was called ---------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_was_bad_before_the_model_was_called_is_named(bad: float) -> None:
    model, _, x = models()
    weights = torch.tensor([1.0, bad, 2.0])

    def loss(output: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (output.square() * scale).mean()

    with locating() as agent:
        loss(model(x), weights).backward()
    here = test_what_was_bad_before_the_model_was_called_is_named
    file, line = "test_outside_models.py", line_of(loss, "* scale")
    assert agent.reason == (
        f"It came with scale at {file}:{line} in loss, which was not finite before: your program "
        f"computed it earlier, and that was not recorded. weights is assigned at "
        f"{file}:{line_of(here, 'weights = ')} in {here.__name__}."
    )
    located = agent.located[0]
    assert located is not None and torch.equal(located.values["scale"], weights) == (bad == bad)
    assert located.sentences[1] == "scale: float32 [3] on cpu, 1 not finite, 1 to 2"


def test_of_a_list_the_bad_one_is_meant() -> None:
    model, _, x = models()
    terms = [torch.ones(()), torch.full((), math.nan)]
    with locating() as agent:
        (model(x).sum() + torch.stack(terms).sum()).backward()
    assert agent.reason.startswith("It came with an operand of stack at test_outside_models.py:")
    located = agent.located[0]
    assert located is not None and located.values["an operand of stack"].isnan()


def test_the_file_of_a_script_of_a_relative_path_is_told_as_clients_know_it() -> None:
    model, _, x = models()
    program: dict[str, Any] = {}
    source = "def loss(output):\n    return output.sub(100.0).log().sum()\n"
    exec(compile(source, "train.py", "exec"), program)
    with locating() as agent:
        program["loss"](model(x)).backward()
    located = agent.located[0]
    assert located is not None and located.report is not None
    files = {located.report.file, *(passed.file for passed in located.report.way)}
    assert files == {os.path.abspath("train.py")}


# What no model has made --------------------------------------------------------------------------


class Functional:
    """A model of tensors alone."""

    def __init__(self) -> None:
        self.weight = torch.randn(3, 3, requires_grad=True)
        self.optimizer: Any = torch.optim.SGD([self.weight], lr=0.01)

    def loss(self, x: torch.Tensor, bad: bool) -> torch.Tensor:
        output = (x @ self.weight).square()
        return (output - 100.0 * bad + 1e-3).log().mean()

    def step(self, bad: bool) -> float:
        loss = self.loss(torch.randn(4, 3), bad)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_a_program_without_modules_is_recorded_from_its_first_backward_on() -> None:
    program = Functional()
    with locating() as agent:
        for step in range(3):
            program.step(bad=step == 2)
    assert named(agent) == ("aten.log.default", line_of(Functional.loss, ".log()"))


def test_a_bad_gradient_in_a_program_without_modules() -> None:
    weight = torch.zeros(3, 3, requires_grad=True)

    def norm(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).square().sum().sqrt()

    with locating() as agent:
        (weight + 1.0).sum().backward()
        torch.autograd.grad(norm(torch.randn(4, 3)), [weight])
    assert agent.report == BY_ROOT
    assert named(agent)[1] == line_of(norm, ".sqrt()")


def lineless(agent: Locating) -> str:
    """The operation of the first stop, of which no line is known."""
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert located.report.file is located.report.forward_file is None
    assert located.sentences[0] == explain.NO_LINE
    return located.report.name


def test_at_the_first_backward_the_graph_tells_the_operation() -> None:
    with locating() as agent:
        Functional().step(bad=True)
    assert lineless(agent) == "aten.log.default"
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert "log of" in (located.report.cause or "")


def test_of_the_first_gradient_the_node_is_told() -> None:
    weight = torch.zeros(3, 3, requires_grad=True)
    with locating() as agent:
        norm = (torch.randn(4, 3) @ weight).square().sum().sqrt()
        torch.autograd.grad(norm, [weight])
    assert lineless(agent) == "aten.div.Tensor"
    assert agent.report[1] == "SqrtBackward0"


@pytest.mark.parametrize(
    "loss",
    [
        # What is masked afterwards made nothing; what has not saved its argument is not known.
        lambda x: torch.where(x > 0, x.log(), x.sum() * torch.inf).sum(),
        lambda x: ((x * 0).log().exp() + torch.inf).sum(),
        lambda x: (x - 1e9).sqrt().sum(),
    ],
)
def test_what_the_graph_does_not_tell_is_not_guessed(loss: Any) -> None:
    x = torch.tensor([1.0, -1.0], requires_grad=True)
    with locating() as agent:
        loss(x).backward()
    assert "outside of modules" in agent.reason


def test_of_several_the_first_that_went_into_the_loss() -> None:
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    with locating() as agent:
        (2 * x.log() + (x / (x * 0)).square()).mean().backward()
    assert lineless(agent) == "aten.log.default"


def test_what_is_computed_before_the_model_is_called() -> None:
    model, _, x = models()

    def loss(offset: float) -> torch.Tensor:
        prior = (model.weight.square() + offset).log().sum()
        return model(x).sum() + prior

    with locating() as agent:
        loss(1.0).backward()
        loss(-100.0).backward()
    assert named(agent) == ("aten.log.default", line_of(loss, ".log()"))


def test_a_model_that_runs_is_not_recorded_for_a_gradient_inside_it() -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
            assert not torch._C._len_torch_dispatch_stack()
            return force

    model = Forces()
    with locating() as agent:
        for _ in range(2):
            assert not torch._C._len_torch_dispatch_stack()
            model(torch.randn(4, 3, requires_grad=True)).square().sum().backward()
    assert not agent.located


def test_an_evaluation_after_a_forward_without_a_backward_is_soon_let_be() -> None:
    model, _, x = models()
    with locating() as agent:
        model(x)
        with torch.no_grad():
            seen = []
            for _ in range(12):
                model(x)
                seen.append(bool(torch._C._len_torch_dispatch_stack()))
    assert seen == [True] * 8 + [False] * 4
    assert not agent.located


def test_nothing_is_held_of_forwards_that_never_have_a_backward() -> None:
    """Of masked scores a -inf is recorded in each of them."""
    model, _, x = models()
    with locating() as agent:
        kept = []
        for _ in range(after_model._MAX_AGE + 2):
            model(x).masked_fill(x > 0, float("-inf")).softmax(-1)
            after = agent.locator._precise._thread.after
            assert after is not None
            kept.append(len(after.recorder._made))
    assert kept[-1] < kept[-3]


def test_training_without_modules_is_the_same_bit_for_bit() -> None:
    def run() -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(0)
        program = Functional()
        return [program.step(bad=False) for _ in range(6)], program.weight.detach()

    losses, weight = run()
    with locating() as agent:
        watched, other = run()
    assert not agent.located
    assert losses == watched
    assert torch.equal(weight, other)


def test_a_step_in_the_middle_of_which_it_was_armed_makes_no_loss_of_no_model() -> None:
    model, _, x = models()
    begun = model(x).sum()
    with locating() as agent:
        thread = agent.locator._precise._thread
        begun.backward()
        assert thread.without is not None  # for all that is known
        model(x).sum().backward()
        assert thread.without is None
        x.requires_grad_().sum().backward()
        model(x).sum().backward()
        assert thread.without is not None

"""Operations of backward passes, optimizers and what can't be run again, by a whole agent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.ops.locate import Located, Locator, operands_told
from tensorpoint.agent.ops.operation import Operation
from tensorpoint.agent.watches.base import Event
from tests.unit.agent.armed import Armed, rule


class Locating(Armed):
    """Looks for the operation at each stop."""

    def __init__(self) -> None:
        super().__init__()
        self.located: list[Located | None] = []
        hooks: Hooks = self.hooks
        self.locator = Locator(
            self.names,
            hooks.aside,
            lambda optimizer: any(watch.is_risky(optimizer) for watch in self.watches),
            self.scale_of,
            self.fault,
        )

    def stop(self, rules: Any, event: Event) -> bool:
        self.located.append(self.locator.locate(event.suspect))
        return super().stop(rules, event)

    def arm(self, *rules: Any) -> None:
        super().arm(*rules)
        listeners = [watch for watch in self.watches if watch.metric == "nonfinite"]
        locating = self.locator.listeners()
        self.gradients.listen([*listeners, *locating])
        self.hooks.listen([self.gradients, *listeners, *locating])
        self.updates.listen([self.gradients, *listeners, *locating])

    @property
    def report(self) -> tuple[str, str | None, str | None]:
        """Operation, autograd node and forward operation of the first stop."""
        located = self.located[0]
        assert located is not None
        assert located.report is not None, located.sentences
        report = located.report
        return report.name, report.node, report.forward_op

    @property
    def reason(self) -> str:
        """Why the operation of the first stop is not known."""
        located = self.located[0]
        assert located is not None
        assert located.report is None
        return located.sentences[0]


@contextmanager
def locating(precision: Any = "module") -> Iterator[Locating]:
    agent = Locating()
    agent.locator.arm(precision)
    agent.arm(rule("nonfinite()"))
    try:
        yield agent
    finally:
        agent.locator.arm("module")
        agent.remove()
    assert not agent.faults, agent.faults
    assert torch._C._len_torch_dispatch_stack() == 0


class Root(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt(x)


class Net(nn.Module):
    """The gradient of a root of exactly 0 is infinite, and 0 times that is NaN."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.body, self.root, self.head = nn.Linear(3, 3), Root(), nn.Linear(3, 1)
        self.reentrant = reentrant
        with torch.no_grad():
            self.body.weight.zero_()
            self.body.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.reentrant is None:
            h = self.root(self.body(x))
        else:
            h = checkpoint(self._block, x, use_reentrant=self.reentrant)
        return self.head(h)

    def _block(self, x: torch.Tensor) -> torch.Tensor:
        return self.root(self.body(x))


BY_ROOT = ("aten.div.Tensor", "SqrtBackward0", "aten.sqrt.default")


def test_a_gradient_is_traced_to_its_node_and_forward_operation() -> None:
    model = Net()
    with locating() as agent:
        model(torch.randn(4, 3)).sum().backward()
    assert agent.report == BY_ROOT
    located = agent.located[0]
    assert located is not None
    assert located.report is not None
    assert located.report.forward_line == Root.forward.__code__.co_firstlineno + 1
    assert "The slope of sqrt at 0 is infinite" in (located.report.cause or "")


def test_gradients_are_as_without_us() -> None:
    torch.manual_seed(0)
    model, twin, x = Net(), Net(), torch.randn(4, 3)
    twin.load_state_dict(model.state_dict())
    twin(x).sum().backward()
    with locating() as agent:
        model(x).sum().backward()
    assert agent.report == BY_ROOT
    for mine, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert mine.grad is not None
        assert other.grad is not None
        assert torch.equal(mine.grad.nan_to_num(7.0), other.grad.nan_to_num(7.0))


def test_both_kinds_of_checkpoint() -> None:
    for reentrant in (True, False):
        model = Net(reentrant)
        with locating() as agent:
            model(torch.randn(4, 3, requires_grad=True)).sum().backward()
        assert agent.report == BY_ROOT, reentrant


def test_a_user_who_asks_for_gradients_himself() -> None:
    model, x = Net(), torch.randn(4, 3, requires_grad=True)
    with locating() as agent:
        torch.autograd.grad(model(x).sum(), [x])
    assert agent.report == BY_ROOT


def test_of_two_models_the_one_whose_output_gradient_was_finite() -> None:
    first, second = nn.Linear(3, 3), Net()
    with torch.no_grad():
        first.weight.zero_()
    with locating() as agent:
        second(first(torch.randn(4, 3))).sum().backward()
    assert agent.report == BY_ROOT


def test_a_criterion_that_is_gone_by_then_is_no_matter() -> None:
    model = Net()
    with locating() as agent:
        nn.MSELoss()(model(torch.randn(4, 3)), torch.ones(4, 1)).backward()
    assert agent.report == BY_ROOT


def test_a_model_that_is_gone_by_then() -> None:
    with locating() as agent:
        Net()(torch.randn(4, 3)).sum().backward()
    assert agent.report == BY_ROOT
    located = agent.located[0]
    assert located is not None and located.report is not None
    assert located.report.forward_line == Root.forward.__code__.co_firstlineno + 1


def test_a_gradient_that_two_models_that_are_gone_have_brought() -> None:
    def features(x: torch.Tensor) -> torch.Tensor:
        return nn.Linear(3, 3)(x)

    with locating() as agent:
        Net()(features(torch.randn(4, 3))).sum().backward()
    assert agent.report == BY_ROOT


def test_of_several_calls_the_one_that_made_it() -> None:
    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, h: torch.Tensor, floor: float) -> torch.Tensor:
            return torch.sqrt(self.linear(h) * 0 + floor)

    cell, h = Cell(), torch.zeros(4, 3)
    with locating() as agent:
        for floor in (1.0, 0.0, 1.0):
            h = cell(h, floor)
        h.sum().backward()
    assert agent.report == BY_ROOT


def test_the_gradient_of_an_output_that_is_too_large_to_keep_is_the_reason(
    monkeypatch: Any,
) -> None:
    from tensorpoint.agent.ops import state

    monkeypatch.setattr(state, "_MAX_KEPT_BYTES", 8)
    with locating() as agent:
        model = Net()
        model(torch.randn(4, 3)).sum().backward()
    assert "the gradient of the model's output was too large to keep" in agent.reason


def test_the_gradient_of_a_gradient_with_precision_op() -> None:
    model, x = nn.Linear(3, 1, bias=False), torch.zeros(4, 3, requires_grad=True)

    def penalty() -> torch.Tensor:
        (slope,) = torch.autograd.grad(model(x).pow(2).sum(), [x], create_graph=True)
        return slope.pow(2).sum(-1).sqrt().sum()

    with locating("op") as agent:
        penalty().backward()
    assert agent.report == BY_ROOT


def test_a_loss_outside_of_modules_with_precision_op() -> None:
    model = nn.Linear(3, 3)
    with locating("op") as agent:
        (model(torch.randn(4, 3)) * 0).log().sum().backward()
    name, node, _ = agent.report
    assert (name, node) == ("aten.log.default", None)


def test_a_loss_outside_of_modules_is_recorded_without_being_asked() -> None:
    model = nn.Linear(3, 3)
    with locating() as agent:
        for scale in (1.0, 0.0):
            (model(torch.randn(4, 3)) * scale).abs().log().sum().backward()
            assert not torch._C._len_torch_dispatch_stack()
    name, node, _ = agent.report
    assert (name, node) == ("aten.log.default", None)


def test_nothing_is_recorded_where_no_loss_can_follow() -> None:
    model = nn.Linear(3, 3)
    frozen = nn.Linear(3, 3).requires_grad_(False)
    with locating():
        with torch.no_grad():
            model(torch.randn(4, 3))
            assert not torch._C._len_torch_dispatch_stack()
        frozen(torch.randn(4, 3))
        assert not torch._C._len_torch_dispatch_stack()
        model(torch.randn(4, 3))
        assert torch._C._len_torch_dispatch_stack() == 1
    assert not torch._C._len_torch_dispatch_stack()


def test_switched_off_on_another_thread_it_is_left_where_a_module_is_called() -> None:
    """As plans come: on a thread of the debugger's."""
    model, hooks = nn.Linear(3, 3), torch.nn.modules.module._global_forward_pre_hooks
    with locating() as agent:
        model(torch.randn(4, 3))

        def disarm() -> None:
            agent.hooks.remove()
            agent.locator.arm("module")

        other = threading.Thread(target=disarm)
        other.start()
        other.join()
        assert torch._C._len_torch_dispatch_stack() == len(hooks) == 1
        model(torch.randn(4, 3))
        assert torch._C._len_torch_dispatch_stack() == len(hooks) == 0


def test_a_forked_child_does_not_wait_for_the_threads_of_its_parent() -> None:
    model, hooks = nn.Linear(3, 3), torch.nn.modules.module._global_forward_pre_hooks
    has_called, may_end = threading.Event(), threading.Event()

    def call() -> None:
        model(torch.randn(4, 3))
        has_called.set()
        may_end.wait()

    with locating() as agent:
        other = threading.Thread(target=call)
        other.start()
        has_called.wait()
        before = len(hooks)
        agent.locator.after_fork()
        assert len(hooks) == before
        may_end.set()
        other.join()


def test_a_loss_that_is_first_called_while_it_is_recorded_is_compiled() -> None:
    torch._dynamo.reset()
    compiled: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph.forward

    loss = torch.compile(lambda y: y.square().sum(), backend=backend)
    model = nn.Linear(3, 3)
    with locating():
        for _ in range(2):
            loss(model(torch.randn(4, 3))).backward()
    assert compiled == [1]


def test_an_optimizer_step_that_overflows_is_recorded_without_being_asked() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    with locating() as agent:
        for scale in (1.0, 1e25):
            optimizer.zero_grad()
            (model(torch.ones(4, 3)).sum() * scale).backward()
            optimizer.step()
    name, node, _ = agent.report
    assert node is None
    assert name in ("aten.addcmul_.default", "aten._foreach_addcmul_.Scalar")


def test_statistics_of_batch_normalisation_with_precision_op() -> None:
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with locating("op") as agent:
        for scale in (1.0, 1.0, 1e20):
            optimizer.zero_grad()
            model(torch.randn(8, 3) * scale).sum().backward()
            optimizer.step()
    assert agent.report[0] == "aten.native_batch_norm.default"


def test_a_mode_of_the_programs_own_is_left_in_order() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = nn.Linear(3, 3)
    with locating("op") as agent:
        with FlopCounterMode(display=False) as counter:
            model(torch.randn(4, 3))
        assert counter.get_total_flops() == 2 * 4 * 3 * 3
        model(torch.randn(4, 3)).log().sum().backward()
        model(torch.randn(4, 3) * float("inf"))
    assert agent.located
    assert torch._C._len_torch_dispatch_stack() == 0


def test_a_fault_of_a_rule_is_reported_and_the_program_goes_on(monkeypatch: Any) -> None:
    from tensorpoint.agent import causes

    def fail(*_: object) -> None:
        raise ZeroDivisionError("in a rule")

    monkeypatch.setattr(causes, "explain", fail)
    model = Net()
    agent = Locating()
    agent.arm(rule("nonfinite()"))
    try:
        model(torch.randn(4, 3)).sum().backward()
    finally:
        agent.remove()
    assert agent.report == BY_ROOT
    assert [str(error) for _, error in agent.faults] == ["in a rule"] * len(agent.faults)
    assert agent.faults


def test_of_a_long_list_a_few_are_told_the_bad_ones_first() -> None:
    tensors = [torch.ones(2) for _ in range(20)]
    tensors[17] = torch.tensor([1.0, torch.inf])
    operation = Operation("cat", "aten.cat.default", {"tensors": tensors}, (torch.cat(tensors),))
    assert [operand.nonfinite for operand in operands_told(operation)] == [*[0] * 7, 1]


# Buffers ------------------------------------------------------------------------------------------


class Keeping(nn.Module):
    """Keeps a running mean of its own."""

    mean: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.ones(4))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        power = x.detach().exp().mean(0)
        self.mean = self.mean * 0.9 + power * 0.1
        return x / self.mean.clamp(max=1e30)


class Copying(Keeping):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9).add_(x.detach().square().mean(0), alpha=0.1)
        return x / self.mean.clamp(max=1e30)


def norm() -> nn.Module:
    return nn.BatchNorm1d(4)


def train(layer: nn.Module, factors: list[float], every: int = 1) -> Locating:
    torch.manual_seed(0)
    model = nn.Sequential(layer, nn.Dropout(0.1), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with locating() as agent:
        for step, factor in enumerate(factors):
            model(torch.randn(8, 4).abs() * factor).sum().backward()
            if (step + 1) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
    return agent


@pytest.mark.parametrize(
    ("layer", "op"), [(norm, "native_batch_norm"), (Keeping, "exp"), (Copying, "pow")]
)
def test_what_wrote_a_buffer_is_found_in_its_forward(layer: Any, op: str) -> None:
    one = layer()
    before = [buffer.clone() for buffer in one.buffers()]
    agent = train(one, [1.0, 1e20, 1.0])
    assert [(name, path) for name, path, _ in agent.stops] == [("nonfinite.update", "0")]
    assert agent.report[0].split(".")[1] == op
    located = agent.located[0]
    assert located is not None and located.live is not None
    assert located.report is not None and located.report.line is not None
    if layer is Keeping:
        assert one.calls == 3
    assert not all(map(torch.equal, before, one.buffers()))
    assert not all(bool(buffer.isfinite().all()) for buffer in one.buffers())


def test_a_buffer_that_an_earlier_forward_wrote_is_not_told_of_the_newest() -> None:
    agent = train(norm(), [1.0, 1.0, 1e20, 1.0], every=2)
    assert agent.reason.startswith("The operation is not known: the value did not come again")

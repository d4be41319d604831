"""A forward is run again, the operation is found and stopped at, and nothing has changed."""

from __future__ import annotations

import builtins
import gc
import random
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tensorpoint.agent.causes import explain
from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Call, Names
from tensorpoint.agent.ops.replay import Replayer
from tensorpoint.agent.ops.state import Entries
from tensorpoint.agent.ops.suspect import ForwardSuspect
from tests.unit.agent.ops.replaying import looking, rows, run


class Dropping(nn.Module):
    """0/0 where a random mask leaves nothing of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = (torch.rand(x.shape) > 0.6).float().sum(1, keepdim=True)
        return self.norm(self.linear(x)) * (kept / kept)


def test_random_numbers_are_drawn_again() -> None:
    torch.manual_seed(0)
    watch = run(Dropping(), 100, rows)
    assert watch.operation == ("div", 2)


class PythonRandom(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / float(random.random() > 0.1)


def test_pythons_generator_is_set_back_once_it_was_seen_to_be_used() -> None:
    random.seed(3)
    watch = run(PythonRandom(), 100, rows)
    assert watch.operation == ("div", 1)


class OwnGenerator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (torch.rand(1, generator=self.generator) > 0.1)


def test_a_generator_of_the_modules_own_is_set_back() -> None:
    watch = run(OwnGenerator(), 100, rows)
    assert watch.operation == ("div", 1)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x / (0.0 if self.calls == 6 else 1.0)


def test_a_counter_counts_each_call_once() -> None:
    model = Counting()
    watch = run(model, 6, rows)
    assert watch.operation == ("div", 2)
    assert model.calls == 6


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(x)
        together = torch.cat(self.seen)
        return together.sum(0) / float(len(self.seen) != 5)


def test_a_list_of_the_module_has_grown_once() -> None:
    model = Caching()
    watch = run(model, 5, rows)
    assert watch.operation == ("div", 3)
    assert len(model.seen) == 5


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x * 1.0)


def test_a_module_with_a_state_is_run_again_by_the_root() -> None:
    model = Outer(Counting())
    watch = run(model, 6, rows)
    assert watch.operation == ("div", 2)
    assert [step.name for step in watch.found[0].way] == ["div"]


class InPlace(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.sub_(2)
        return torch.log(x)


def test_an_input_that_was_overwritten_is_told_as_the_reason() -> None:
    watch = run(InPlace(), 1, lambda: torch.rand(4, 4) + 1.5)
    assert watch.refused == ["the model has overwritten its own input"]


def test_a_block_that_overwrites_its_input_is_found_from_the_root() -> None:
    watch = run(Outer(InPlace()), 1, lambda: torch.rand(4, 4) + 1.5)
    assert watch.operation == ("log", 2)


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.full((4, 4), float("-inf")).triu(1)
        weights = (x @ x.T + mask).softmax(-1)
        return torch.sqrt(weights - 0.5)


def test_a_mask_on_the_way_is_not_the_producer() -> None:
    assert run(Masked(), 1, rows).operation == ("sqrt", 3)


@pytest.mark.parametrize("values", [torch.float32, torch.float16])
def test_an_infinity_beside_a_masks_is_none_of_the_masks(values: torch.dtype) -> None:
    class Overflowing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            mask = torch.full((4, 4), float("-inf")).triu(1)
            scores = (x * 0 + 2 + mask).to(values)
            scaled = scores * torch.finfo(values).max
            return scaled.exp() + scaled

    watch = run(Overflowing(), 1, rows)
    assert watch.operation == ("mul", 3)
    made = watch.found[0].made
    assert made.lines and made.operation is not None
    assert {"self", "other"} == made.operation.arguments.keys()
    assert not made.is_meant


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_rounded_to_a_zero_is_known_of_a_view_of_it(dtype: torch.dtype) -> None:
    class Rounding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            small = (x.to(dtype) * 0 - 200).exp()
            kept = torch.relu(x.to(dtype) * 0)
            return torch.log(small.t()[:, 2:]) + kept[2:].t()

    watch = run(Rounding(), 1, rows)
    assert watch.operation == ("log", 3)
    operation = watch.found[0].made.operation
    assert operation is not None
    cause = explain(operation, operation.names)
    assert cause is not None
    name = str(dtype).removeprefix("torch.")
    assert cause.cause.endswith(
        f"at [0, 0] is 0, to which {name} has rounded exp(-200) = 1.384e-87."
    )


class FullyMasked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = (x @ x.T).masked_fill(torch.eye(4).cumsum(0).bool(), float("-inf"))
        scores = scores.masked_fill(torch.ones(4, 4, dtype=torch.bool), float("-inf"))
        return scores.softmax(-1)


def test_the_softmax_of_a_masked_row_is_the_producer() -> None:
    assert run(FullyMasked(), 1, rows).operation == ("_softmax", 3)


class Overflowing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        large = torch.exp(x * 100 + 100)
        return (large - large) * 2


def test_the_overflow_is_the_producer_not_the_nan_that_is_made_of_it() -> None:
    watch = run(Overflowing(), 1, lambda: torch.ones(4, 4))
    assert watch.operation == ("exp", 1)
    assert [step.name for step in watch.found[0].way] == ["exp", "sub", "mul"]


class Compiled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.compile(torch.sqrt, backend="eager")(x - 9)


def test_a_compiled_function_is_run_eagerly() -> None:
    assert run(Compiled(), 1, rows).operation == ("sqrt", 1)


def test_in_inference_mode() -> None:
    with torch.inference_mode():
        assert run(Masked(), 1, rows).operation == ("sqrt", 3)


def test_a_model_is_let_go_with_what_was_noted_of_it() -> None:
    with looking():
        model = Outer(Counting())
        for _ in range(4):
            model(torch.randn(4, 4, requires_grad=True))
        gone = weakref.ref(model)
        del model
        gc.collect()
        assert gone() is None


class Remembering(nn.Module):
    """Holds its own output: a cycle through autograd's graph, which is never collected."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.last = nn.Linear(4, 4), torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.linear(x)
        return self.last


def other_calls(model: nn.Module) -> None:
    other = nn.Linear(4, 4)
    for _ in range(4):
        other(rows())


def its_backward(model: nn.Module) -> None:
    model.last.sum().backward()  # type: ignore[operator]


def forgetting(model: nn.Module) -> None:
    """As an optimizer's step does, or a plan without conditions."""


@pytest.mark.parametrize("ends", [other_calls, its_backward, forgetting])
def test_a_model_is_kept_for_its_graph_no_longer_than_a_step(
    ends: Callable[[nn.Module], None],
) -> None:
    with looking() as watch:
        model = Remembering()
        model(rows())
        gone = weakref.ref(model)
        ends(model)
        if ends is its_backward:
            watch.entries.on_backward_end(None)
        elif ends is forgetting:
            watch.entries.on_after_update(None)
        del model
        gc.collect()
        assert gone() is None


def test_a_model_is_kept_as_long_as_its_graph() -> None:
    with looking():
        model = nn.Linear(4, 4)
        loss, gone = model(rows()).sum(), weakref.ref(model)
        del model
        assert gone() is not None
        del loss
        assert gone() is None


def test_without_a_graph_the_batch_is_let_go_when_the_call_ends() -> None:
    with looking(), torch.no_grad():
        model, batch = Outer(Masked()), rows() * 0
        model(batch)
        gone = weakref.ref(batch)
        del batch
        assert gone() is None


class Printing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("forward")
        return torch.log(x * 0 - 1)


def test_what_it_does_besides_is_told_and_printed_once_more_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = Printing()
    model.register_forward_hook(lambda *_: None)
    watch = run(model, 1, rows)
    assert watch.found[0].side_effects == ("print", "1 module hook")
    assert capsys.readouterr().out == "forward\n" * 2, "the program's own and the one that stops"


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.fails:
            raise RuntimeError("not twice")
        self.fails = True
        return torch.log(x * 0 - 1)


def test_an_exception_in_the_second_run_is_told_and_kept_from_the_program() -> None:
    assert run(Failing(), 1, rows).refused == [
        "running it again raised RuntimeError: not twice",
    ]


class Communicating(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.distributed.all_reduce(x.clone())
        return torch.log(x * 0 - 1)


def test_a_collective_is_never_run_again(tmp_path: Any) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    try:
        (reason,) = run(Communicating(), 1, rows).refused
    finally:
        torch.distributed.destroy_process_group()
    assert reason.startswith("the model communicates with other processes")


def test_replays_of_several_threads_leave_everything_as_it_was() -> None:
    class Finding:
        found: ClassVar[list[str]] = []

        def on_exit(self, call: Call, outer: list[Call], output: Any) -> None:
            suspect = ForwardSuspect(output, call=call, outer=tuple(outer))
            self.found.append(replayer.find(suspect).made.name)

    def fail(culprit: Any, error: Exception) -> None:
        raise error

    def state() -> list[Any]:
        return [threading.Condition.wait, threading.Barrier.wait, builtins.open, sys.stdout]

    entries, hooks, before = Entries(), Hooks(Names(), fail), state()
    replayer = Replayer(entries, hooks.aside)
    hooks.listen([entries, Finding()])
    hooks.install()
    try:
        threads = [threading.Thread(target=Printing(), args=[rows()]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        hooks.remove()
    assert Finding.found == ["log"] * 8
    assert state() == before


class Meeting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.together = threading.Barrier(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.together.wait()
        return torch.log(x * 0 - 1)


def test_no_other_thread_is_waited_for() -> None:
    assert run(Meeting(), 1, rows).refused == ["it waits for another thread"]
    threading.Barrier(1).wait()


class WithStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.register = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x.sum(0)
        self.total = self.total * 1.0
        return torch.log(self.register(self.norm(x)) * 0 - 1)


def test_buffers_and_versions_are_as_the_programs_own_run_left_them() -> None:
    torch.manual_seed(0)
    batch = rows()
    model, twin = WithStatistics(), WithStatistics()
    twin.load_state_dict(model.state_dict())
    model.load_state_dict(twin.state_dict())  # which counts up the versions
    twin(batch.clone())
    watch = run(model, 1, lambda: batch)
    assert watch.operation[0] == "log"
    for (name, buffer), (_, other) in zip(model.named_buffers(), twin.named_buffers(), strict=True):
        assert buffer.equal(other), name
        assert buffer._version == other._version, name


def test_backward_of_the_programs_own_graph_works_after_a_second_run() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = torch.relu_(self.linear(x))
            return torch.sqrt(h - 0.1)

    torch.manual_seed(0)
    model, batch = Block(), rows()
    expected = torch.autograd.grad(model(batch).nansum(), list(model.parameters()))
    with looking() as watch:
        output = model(batch)
    assert watch.operation == ("sqrt", 2)
    output.nansum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.equal(gradient) or gradient.isnan().any()


def test_at_the_stop_autograd_works_and_no_mode_is_on() -> None:
    seen: list[Any] = []

    def evaluate(frame: FrameType) -> None:
        x = frame.f_locals["x"]
        weight = frame.f_locals["self"].weight
        (gradient,) = torch.autograd.grad((x @ weight).sum(), [weight])
        seen.append((gradient.shape, torch._C._len_torch_dispatch_stack()))

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.log(x @ self.weight * 0 - 1)

    with looking() as watch:
        watch.at_stop = evaluate
        Weighted()(rows())
    assert seen == [(torch.Size([4, 4]), 0)]


def test_operands_have_the_names_of_the_source() -> None:
    watch = run(Masked(), 1, rows)
    operation = watch.found[0].made.operation
    assert operation is not None
    assert operation.names == {"self": "weights - 0.5"}
    watch = run(Outer(nn.Sequential(nn.Linear(4, 4), Named())), 1, rows)
    operation = watch.found[0].made.operation
    assert operation is not None
    assert operation.names == {"self": "scores", "other": "self.zero"}


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("zero", torch.zeros(1))

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return scores / self.zero  # type: ignore[operator]

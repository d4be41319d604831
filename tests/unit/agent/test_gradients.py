"""The hooks on parameters and on the engine: what is told, on which parameters, and what stays."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import sys
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent import debugger
from tensorpoint.agent.watches.base import Watch
from tests.unit.agent.armed import Armed, rule
from tests.unit.agent.spoiling import Does, batch, lin

ENGINE: Any = torch.autograd


class Listens(Watch):
    """Notes what it is told."""

    metric = "listens"

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.fails = False

    def on_backward(self, roots: Sequence[torch.Tensor]) -> None:
        self.told.append("begin")

    def on_parameter_gradient(
        self, owner: nn.Module | None, name: str, parameter: torch.Tensor, norm: float | None
    ) -> None:
        if self.fails:
            raise ValueError("of ours")
        self.told.append((type(owner).__name__, name, None if norm is None else round(norm, 3)))

    def on_backward_end(self, results: Sequence[torch.Tensor | None]) -> None:
        self.told.append(("end", len(results)))

    def on_backward_failed(self) -> None:
        self.told.append("failed")


class Ears(Armed):
    """Armed with a listener alone."""

    def __init__(self) -> None:
        super().__init__()
        self.listener = Listens()

    def __enter__(self) -> Listens:
        self.gradients.listen([self.listener])
        self.hooks.listen([self.gradients])
        self.updates.listen([self.gradients])
        self.hooks.install()
        self.updates.install()
        return self.listener

    def __exit__(self, *exc: object) -> None:
        self.remove()


def names(listener: Listens) -> list[str]:
    return sorted(item[1] for item in listener.told if type(item) is tuple and len(item) == 3)


# What is told ------------------------------------------------------------------------------------


def test_a_pass_is_told_from_begin_to_end() -> None:
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    with Ears() as ears:
        model(batch()).sum().backward()
        loss = model(batch()).sum()
        torch.autograd.grad(loss, list(model.parameters()))
    norm = round(torch.full((2,), 3.0).norm().item(), 3)
    assert ears.told == ["begin", ("Linear", "weight", norm), ("end", 0), "begin", ("end", 1)]


def test_a_gradient_is_told_once_with_the_sum_over_all_uses_and_passes() -> None:
    layer = nn.Linear(2, 2, bias=False)
    model = Does(lambda self, x: self.a(x) + self.a(x), a=layer)
    with Ears() as ears:
        model(batch()).sum().backward()
        model(batch()).sum().backward()
    gradients = [item for item in ears.told if type(item) is tuple and len(item) == 3]
    assert [round(norm / gradients[0][2], 3) for _, _, norm in gradients] == [1.0, 2.0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_is_part_of_the_pass(reentrant: bool) -> None:
    model = Does(
        lambda self, x: checkpoint(self.a, self.b(x), use_reentrant=reentrant), a=lin(), b=lin()
    )
    with Ears() as ears:
        model(batch()).sum().backward()
    assert ears.told.count("begin") == 1 and ears.told.count(("end", 0)) == 1
    assert names(ears) == ["bias", "bias", "weight", "weight"]


def test_a_pass_that_raises_is_told_to_have_failed() -> None:
    model = lin()

    def fails(gradient: torch.Tensor) -> None:
        raise ValueError("of the program's")

    with Ears() as ears:
        output = model(batch())
        output.register_hook(fails)
        with pytest.raises(ValueError, match="of the program's"):
            output.sum().backward()
        model(batch()).sum().backward()
    assert ears.told[:2] == ["begin", "failed"] and ears.told[-1] == ("end", 0)


def test_what_the_user_evaluates_while_suspended_is_not_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = lin()

    class State:
        is_in_wait_loop = False

    state = State()
    monkeypatch.setattr(debugger, "thread_state", lambda: state)
    monkeypatch.setattr(debugger, "evaluating", lambda: state.is_in_wait_loop)
    ears = Ears()

    def at_stop(*_: Any) -> None:
        state.is_in_wait_loop = True
        model(batch()).sum().backward()
        state.is_in_wait_loop = False

    with ears as listener:
        model(batch())
        listener.on_backward = at_stop  # type: ignore[method-assign]
        model(batch()).sum().backward()
    assert names(listener) == ["bias", "weight"]
    assert listener.told.count(("end", 0)) == 1


def test_kinds_of_gradients() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sparse = nn.Embedding(4, 2, sparse=True)
            self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
            self.short = nn.Parameter(torch.ones(2, dtype=torch.float16))
            self.long_one = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.empty = nn.Parameter(torch.ones(0, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = (self.sparse(x) * self.complex).abs()
            return y * self.short.float() * self.long_one + self.empty.sum()

    with Ears() as ears:
        Net()(torch.tensor([0, 1, 1])).sum().backward()
    assert names(ears) == ["complex", "empty", "long_one", "short", "weight"]
    assert all(item[2] is not None for item in ears.told if type(item) is tuple and len(item) == 3)


# On which parameters -----------------------------------------------------------------------------


def test_frozen_parameters_are_hooked_once_they_are_trained() -> None:
    model: Any = nn.Sequential(lin(), nn.Linear(2, 3), nn.Linear(3, 1))
    model[0].requires_grad_(False)
    model[1].requires_grad_(False)
    with Ears() as ears:
        model(batch()).sum().backward()
        assert names(ears) == ["bias", "weight"]
        model[1].requires_grad_(True)  # of different shapes: they must not be compared
        ears.told.clear()
        model(batch()).sum().backward()
        assert names(ears) == ["bias"] * 2 + ["weight"] * 2
        model[2].requires_grad_(False)
        ears.told.clear()
        model(batch()).sum().backward()
        assert names(ears) == ["bias", "weight"]


def test_parameters_and_modules_that_are_added_later_are_hooked() -> None:
    model: Any = nn.Sequential(lin())
    with Ears() as ears:
        model(batch()).sum().backward()
        model.append(nn.Linear(2, 2, bias=False))
        model[0].weight = nn.Parameter(torch.ones(2, 2))
        ears.told.clear()
        model(batch()).sum().backward()
        assert names(ears) == ["bias", "weight", "weight"]
    assert not torch.nn.modules.module._global_parameter_registration_hooks
    assert not torch.nn.modules.module._global_module_registration_hooks


def test_lazy_modules() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.LazyLinear(2), nn.LazyBatchNorm1d())
    with Ears() as ears:
        model(batch() * torch.arange(3.0)[:, None]).sum().backward()
        assert names(ears) == ["bias", "bias", "weight", "weight"]


def test_parameters_of_no_module_are_hooked_when_the_optimizer_steps() -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Ears() as ears:
        for _ in range(2):
            weight.sum().backward()
            optimizer.step()
    assert ears.told[2:] == [
        "begin",
        ("NoneType", "(no module's)", round(2 * 2**0.5, 3)),
        ("end", 0),
    ]


def test_a_shared_parameter_is_hooked_once() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    with Ears() as ears:
        model(batch()).sum().backward()
        model[0](batch()).sum().backward()
    assert names(ears) == ["weight", "weight"]


def test_an_optimizer_that_takes_the_gradient_inside_backward() -> None:
    model = nn.Linear(2, 1, bias=False)

    def take(parameter: torch.Tensor) -> None:
        parameter.grad = None

    model.weight.register_post_accumulate_grad_hook(take)
    with Ears() as ears:
        model(batch()).sum().backward()
    assert ears.told == ["begin", ("Linear", "weight", None), ("end", 0)]


# What stays --------------------------------------------------------------------------------------


def test_nothing_is_left_after_removal() -> None:
    model: Any = nn.Sequential(lin(), lin())
    original = ENGINE._engine_run_backward
    theirs = model[0].weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with Ears():
        assert ENGINE._engine_run_backward is not original
        model(batch()).sum().backward()
        assert all(p._post_accumulate_grad_hooks for p in model.parameters())  # type: ignore[attr-defined]
    assert ENGINE._engine_run_backward is original
    tables = [p._post_accumulate_grad_hooks for p in model.parameters()]  # type: ignore[attr-defined]
    assert [len(table or ()) for table in tables] == [1, 0, 0, 0] and tables[1:] == [None] * 3
    theirs.remove()
    optimizer: Any = sys.modules["torch.optim.optimizer"]
    assert not optimizer._global_optimizer_pre_hooks and not optimizer._global_optimizer_post_hooks


def test_a_replacement_of_the_programs_stays() -> None:
    original = ENGINE._engine_run_backward
    with Ears() as ears:
        ours = ENGINE._engine_run_backward

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        ENGINE._engine_run_backward = theirs
        lin()(batch()).sum().backward()
        assert ears.told[0] == "begin"
        ears.told.clear()
    try:
        assert ENGINE._engine_run_backward is theirs
        lin()(batch()).sum().backward()
        assert ears.told == []
    finally:
        ENGINE._engine_run_backward = original


def test_removal_inside_a_backward() -> None:
    model = nn.Sequential(lin(), lin())
    ears = Ears()
    with ears as listener:
        model(batch())

        def leave(*_: Any) -> None:
            ears.remove()

        listener.on_parameter_gradient = leave  # type: ignore[method-assign]
        model(batch()).sum().backward()
    model(batch()).sum().backward()
    assert listener.told == ["begin"]


def test_a_model_can_be_copied_pickled_and_saved() -> None:
    model = nn.Sequential(lin(), nn.BatchNorm1d(2), lin())
    optimizer = torch.optim.AdamW(model.parameters())
    x = batch() * torch.arange(3.0)[:, None]
    with Ears() as ears:
        model(x).sum().backward()
        optimizer.step()
        copied = copy.deepcopy(model)
        pickled = pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        torch.save({"model": model, "state": optimizer.state_dict()}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)["model"]
        ears.told.clear()
        for other in (copied, pickled, loaded):
            assert all(p._post_accumulate_grad_hooks is None for p in other.parameters())
            assert not any(
                "hook" in key and value for m in other.modules() for key, value in vars(m).items()
            )
        loss = copied(x).sum()
        loss.backward()
        assert names(ears) == ["bias"] * 3 + ["weight"] * 3


def test_parameters_die_with_their_model() -> None:
    gc.disable()
    try:
        with Ears() as ears:
            model = nn.Sequential(lin(), lin())
            references = [weakref.ref(p) for p in model.parameters()]
            model(batch()).sum().backward()
            ears.told.clear()
            del model
            assert [reference() for reference in references] == [None] * 4
    finally:
        gc.enable()


def test_a_fault_of_ours_does_not_reach_the_program() -> None:
    model = lin()
    ears = Ears()
    with ears as listener:
        listener.fails = True
        model(batch()).sum().backward()
    assert [type(error) for _, error in ears.faults] == [ValueError] * 2
    assert all(culprit is listener for culprit, _ in ears.faults)
    assert model.weight.grad is not None


def test_a_fault_in_a_hook_on_a_node_does_not_reach_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Recent(list[Any]):
        def append(self, item: Any) -> None:
            raise ValueError("of ours")

    monkeypatch.setattr("tensorpoint.agent.flows.deque", Recent)
    agent = Armed()
    agent.arm(rule("nonfinite()"))
    try:
        model = nn.Sequential(lin(), lin())
        model(batch()).sum().backward()
    finally:
        agent.remove()
    assert [str(error) for _, error in agent.faults] == ["of ours"]
    assert model[0].weight.grad is not None


# With what the program does ----------------------------------------------------------------------


def test_hooks_of_the_programs_on_the_same_parameters() -> None:
    model = nn.Linear(2, 1, bias=False)
    seen: list[str] = []
    model.weight.register_hook(lambda gradient: seen.append("tensor"))
    with Ears() as ears:
        model(batch())
        model.weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
        model.register_full_backward_hook(lambda *_: seen.append("module"))
        model(batch().requires_grad_()).sum().backward()
    assert sorted(seen) == ["after", "module", "tensor"]
    assert len(ears.told) == 3


def test_detecting_anomalies() -> None:
    model = lin()
    with (
        Ears() as ears,
        torch.autograd.detect_anomaly(check_nan=True),
        pytest.warns(UserWarning, match="SqrtBackward"),
        pytest.raises(RuntimeError, match="returned nan values"),
    ):
        (model(batch()) * 0.0).sqrt().mul(0.0).sum().backward()
    assert ears.told[-1] == "failed"


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_and_step(backend: str) -> None:
    torch._dynamo.reset()
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend=backend)
    with Ears() as ears:
        for _ in range(3):
            optimizer.zero_grad()
            compiled(batch()).sum().backward()
            step()
    assert names(ears) == ["bias"] * 6 + ["weight"] * 6

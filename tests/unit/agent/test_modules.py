"""Names of modules, step numbers, and the running calls read from the stack."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.modules import Call, Names, frame_of_call, keywords_of, running_calls
from tests.unit.agent.armed import armed


class Wrapper(nn.Module):
    """Puts `inner` below an attribute of the given name."""

    def __init__(self, attribute: str, inner: nn.Module) -> None:
        super().__init__()
        self.attribute = attribute
        self.add_module(attribute, inner)

    def forward(self, x: Any) -> Any:
        return getattr(self, self.attribute)(x)


class DistributedDataParallel(Wrapper):
    """Named like torch's, by which it is known."""


def model() -> Any:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU()))


def learnt(root: nn.Module) -> Names:
    names = Names()
    names.learn(root)
    return names


def test_a_path_is_the_dotted_name_below_the_root() -> None:
    root = model()
    names = learnt(root)
    assert names.path(root, root) == ""
    assert names.path(root[1][0], root) == "1.0"
    assert names.root_and_path(root[1][0]) == (root, "1.0")


@pytest.mark.parametrize(
    "attribute", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"]
)
def test_wrappers_leave_no_trace_in_a_path(attribute: str) -> None:
    inner = model()
    root = nn.Sequential(Wrapper(attribute, inner))
    names = learnt(root)
    assert names.path(inner[1][0], root) == "0.1.0"
    outermost = Wrapper(attribute, inner)
    assert learnt(outermost).path(inner[1][0], outermost) == "1.0"


def test_a_distributed_root_is_not_part_of_the_path() -> None:
    inner = model()
    root = DistributedDataParallel("module", inner)
    assert learnt(root).path(inner[1][0], root) == "1.0"
    nested = DistributedDataParallel("module", Wrapper("_orig_mod", inner))
    assert learnt(nested).path(inner[1][0], nested) == "1.0"


def test_a_module_that_the_author_called_module_keeps_its_name() -> None:
    root = Wrapper("module", model())
    assert learnt(root).path(root.get_submodule("module"), root) == "module"


def test_a_compiled_model_has_the_paths_of_the_model() -> None:
    inner = model()
    root = torch.compile(inner, backend="eager")
    assert isinstance(root, nn.Module)
    assert learnt(root).path(inner[1][0], root) == "1.0"


def test_a_shared_module_has_its_first_name() -> None:
    shared = nn.Linear(2, 2)
    root = nn.Sequential(shared, nn.ReLU(), shared)
    assert learnt(root).path(shared, root) == "0"


def test_a_module_added_later_is_found_when_it_is_asked_for() -> None:
    root = model()
    names = learnt(root)
    root.add_module("late", late := nn.Linear(2, 2))
    assert names.path(late, root[1][0]) == "late"


def test_a_module_that_is_no_ones_child_is_called_by_its_class() -> None:
    root = model()
    assert learnt(root).path(nn.Linear(2, 2), root) == "<Linear>"


def test_the_larger_root_gives_the_names() -> None:
    root = model()
    names = learnt(root[1])
    assert names.path(root[1][0], root[1]) == "0"
    names.learn(root)
    assert names.path(root[1][0], root[1]) == "1.0"
    names.learn(root[1])  # called by itself again
    assert names.path(root[1][0], root[1]) == "1.0"


def test_a_module_outlives_the_names_that_a_wrapper_gave_it() -> None:
    inner = model()
    wrapper = nn.Sequential(inner)
    names = learnt(wrapper)
    del wrapper
    gc.collect()
    names.learn(inner)
    assert names.path(inner[1][0], inner) == "1.0"


def test_names_keep_no_module_alive() -> None:
    root = model()
    names = learnt(root)
    names.count_call(root)
    del root
    gc.collect()
    assert not names._known and not names._calls


def test_steps_count_the_calls_of_the_root_from_zero() -> None:
    root, x = model(), torch.ones(1, 2)
    with armed() as agent:
        assert agent.names.step(root) is None
        seen: list[Any] = []
        for _ in range(3):
            root(x)
            seen.append((agent.names.step(root), agent.names.step(root[1][0])))
    assert seen == [(0, 0), (1, 1), (2, 2)]


def test_a_submodule_called_by_itself_counts_only_until_its_root_is_known() -> None:
    root, x = model(), torch.ones(1, 2)
    part = root[1]
    with armed() as agent:
        part(x)
        part(x)
        assert agent.names.step(part) == 1
        root(x)
        assert agent.names.step(root) == agent.names.step(part) == 0
        part(x)
        assert agent.names.step(root) == 0
        root(x)
        assert agent.names.step(part) == 1


def test_two_models_count_apart() -> None:
    first, second, x = model(), model(), torch.ones(1, 2)
    with armed() as agent:
        first(x)
        first(x)
        second(x)
        assert (agent.names.step(first), agent.names.step(second)) == (1, 0)


def test_a_model_counts_as_one_with_its_compiled_self() -> None:
    inner, x = model(), torch.ones(1, 2)
    compiled = Wrapper("_orig_mod", inner)
    with armed() as agent:
        compiled(x)
        inner(x)
        assert agent.names.step(inner) == 1


def test_optimizer_steps_are_those_of_the_busiest_optimizer() -> None:
    first = torch.optim.SGD(model().parameters())
    second = torch.optim.SGD(model().parameters())
    with armed() as agent:
        assert agent.names.optimizer_step() == 0
        for optimizer in (first, second, first, first):
            optimizer.step()
        assert agent.names.optimizer_step() == 3
        steps = agent.names.counter("optimizer_step", nn.ReLU())
        assert steps is not None and steps.value == 3
        assert agent.names.counter("step", nn.ReLU()) is None


# The stack ---------------------------------------------------------------------------------------


class Looks(nn.Module):
    """Keeps what the stack says while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Call]] = []

    def forward(self, x: Any, scale: float = 1.0) -> Any:
        frame = sys._getframe()
        self.seen.append(running_calls(frame))
        self.without = running_calls(frame, but=self)
        self.frame = frame_of_call(self, frame)
        self.absent = frame_of_call(nn.ReLU(), frame)
        return x * scale


class Passes(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any, **keywords: Any) -> Any:
        return self.inner(x, **keywords)


@pytest.mark.parametrize("hooks", [True, False])
def test_running_calls_are_read_from_the_stack_outermost_first(hooks: bool) -> None:
    inner = Looks()
    root = Passes(inner)
    if hooks:  # torch then runs another way, with another frame
        inner.register_forward_hook(lambda *_: None)
    x = torch.ones(1)
    root(x, scale=2.0)
    (calls,) = inner.seen
    assert [call.module for call in calls] == [root, inner]
    assert [call.kwargs for call in calls] == [{"scale": 2.0}] * 2
    assert all(call.args[0] is x and not call.seen_entry for call in calls)
    assert [call.module for call in inner.without] == [root]
    assert inner.frame is not None and inner.absent is None


def test_no_running_calls_outside_of_modules() -> None:
    assert running_calls(sys._getframe()) == []


def test_keywords_of_a_running_call_come_from_its_frame() -> None:
    class Asks(nn.Module):
        def forward(self, x: Any, scale: float = 1.0) -> Any:
            self.found = keywords_of(Call(self, (x,)))
            return x

    module = Asks()
    module(torch.ones(1), scale=3.0)
    assert module.found == {"scale": 3.0}
    assert keywords_of(Call(module, ())) == {}  # not running


# Calls -------------------------------------------------------------------------------------------


def test_a_call_knows_whether_its_first_argument_was_written() -> None:
    x = torch.ones(2)
    call = Call(nn.Identity(), (x,))
    assert not call.was_first_argument_changed()
    x.add_(1)
    assert call.was_first_argument_changed()
    other = Call(nn.ReLU(inplace=True), (x,))
    x.relu_()
    assert not other.was_first_argument_changed()


@pytest.mark.parametrize("arguments", [(), (None,), ("text",), ([torch.ones(1)],)])
def test_calls_without_a_tensor_first_have_nothing_to_compare(arguments: Any) -> None:
    assert not Call(nn.Identity(), arguments).was_first_argument_changed()


def test_inference_tensors_have_no_version_to_compare() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
        call = Call(nn.Identity(), (x,))
        x.add_(1)
        assert not call.was_first_argument_changed()


def test_function_modes_do_not_see_calls_being_kept() -> None:
    class Every(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    x = torch.ones(2)
    with Every():
        call = Call(nn.Identity(), (x,))
        said = call.was_first_argument_changed()
    assert said is False and seen == []


def test_a_parameter_is_found_where_it_is_now() -> None:
    names = Names()
    inner, outer = nn.Linear(1, 1), nn.Linear(1, 1)
    block = nn.Sequential(inner)
    model = nn.Sequential(block, outer)
    names.learn(model)
    names.count_call(model)
    assert names.owner(inner.weight) == (inner, "weight")
    assert names.ancestors(inner) == [model, block, inner]
    outer.weight = inner.weight  # tied, and another one in place of the bias, since it was named
    outer.bias = nn.Parameter(torch.ones(1))
    assert names.owner(outer.bias) == (outer, "bias")
    whole = nn.Sequential(model)
    names.learn(whole)
    assert names.names_below(whole, inner, "weight") == [
        (inner, "weight"),
        (outer, "weight"),
    ]
    assert names.owner(nn.Parameter(torch.ones(1)))[0] is None

"""The hooks in torch: what they leave behind, what they survive, and what they hand on."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
import warnings
import weakref
from typing import Any

import pytest
import torch
import torch.optim.optimizer as torch_optimizer
from torch import nn
from torch.nn.modules import module as torch_module

from tensorpoint.agent.modules import Call
from tests.unit.agent.armed import Armed, armed, layer, rule


class Does(nn.Module):
    """Runs a function as its forward, around a child."""

    def __init__(self, act: Any, child: nn.Module | None = None) -> None:
        super().__init__()
        self.act = act
        self.child = child

    def forward(self, x: Any) -> Any:
        return self.act(self, x)


def passing(self: Any, x: Any) -> Any:
    return self.child(x)


def nan(self: Any, x: Any) -> Any:
    return x * float("nan")


def torch_state() -> list[Any]:
    hooks = [
        list(getattr(torch_module, name).items())
        for name in sorted(vars(torch_module))
        if name.startswith("_global_") and isinstance(getattr(torch_module, name), dict)
    ]
    return [
        hooks,
        list(torch_optimizer._global_optimizer_post_hooks.items()),
        list(torch_optimizer._global_optimizer_pre_hooks.items()),
        nn.Module.compile,
        torch_module._has_any_global_hook,
        nn.Module.__call__,
        dict(vars(nn.Module)),
    ]


class Listens:
    """Notes every exit."""

    metric = "listens"

    def __init__(self) -> None:
        self.roots: list[nn.Module] = []
        self.exits: list[tuple[nn.Module, list[nn.Module]]] = []

    def on_root(self, call: Call) -> None:
        self.roots.append(call.module)

    def on_exit(self, call: Call, outer: list[Call], output: object) -> None:
        self.exits.append((call.module, [other.module for other in outer]))


def listening(agent: Armed) -> Listens:
    listener = Listens()
    agent.hooks.listen([listener])
    return listener


# In and out --------------------------------------------------------------------------------------


def test_removing_leaves_torch_as_it_was() -> None:
    before = torch_state()
    for _ in range(3):
        with armed(rule("nonfinite()"), layer("*", number=1)):
            assert torch_state() != before
            nn.Linear(2, 2)(torch.ones(1, 2))
        assert torch_state() == before


def test_installing_twice_is_installing_once() -> None:
    before = torch_state()
    with armed() as agent:
        installed = torch_state()
        agent.hooks.install()
        assert torch_state() == installed
    assert torch_state() == before
    agent.remove()
    assert torch_state() == before


def test_a_replacement_by_the_program_stays() -> None:
    original = nn.Module.compile
    try:
        with armed():

            def compile(self: Any, *args: Any, **kwargs: Any) -> None: ...

            nn.Module.compile = compile
        assert nn.Module.compile is compile
    finally:
        nn.Module.compile = original


def test_modules_carry_nothing_of_ours() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    fresh = {name: set(vars(part)) for name, part in module.named_modules()}
    with armed():
        module(torch.ones(1, 2))
        assert {name: set(vars(part)) for name, part in module.named_modules()} == fresh
        again = pickle.loads(pickle.dumps(copy.deepcopy(module)))
        again(torch.ones(1, 2))
    assert not module._forward_hooks and not module._forward_pre_hooks


def test_our_hooks_do_not_count_as_global_hooks_of_the_program() -> None:
    with armed():
        assert not torch_module._has_any_global_hook()
        handle = torch_module.register_module_forward_hook(lambda *_: None)
        assert torch_module._has_any_global_hook()
        handle.remove()
        assert not torch_module._has_any_global_hook()


def test_a_module_compiled_while_armed_is_watched_only_while_armed() -> None:
    torch.compiler.reset()  # else it may have compiled `forward` too often to do so again
    module = Does(nan)
    agent = Armed()
    agent.arm(rule("nonfinite()"))
    module.compile(backend="eager")
    x = torch.ones(2)
    module(x)
    assert agent.stops == [("nonfinite.forward", "", 0)]
    agent.remove()
    listener = listening(agent)
    module(x)
    assert listener.exits == [] and len(agent.stops) == 1
    agent.hooks.install()
    try:
        module(x)
        assert listener.exits == [(module, [])]
    finally:
        agent.remove()
    torch.compiler.reset()
    assert not agent.faults


def test_a_compiled_modules_exception_passes_and_leaves_no_call() -> None:
    def fails(self: Any, x: Any) -> Any:
        raise ValueError("mine")

    module = Does(fails)
    with armed() as agent:
        module.compile(backend="eager")
        with pytest.raises(ValueError, match="mine"):
            module(torch.ones(2))
        assert agent.hooks._threads.calls == []
    torch.compiler.reset()


# What is handed on -------------------------------------------------------------------------------


def test_a_listener_hears_of_exits_with_the_calls_around() -> None:
    inner = Does(lambda self, x: x)
    middle = Does(passing, inner)
    root = Does(passing, middle)
    with armed() as agent:
        listener = listening(agent)
        root(torch.ones(1))
    assert listener.roots == [root]
    assert listener.exits == [(inner, [root, middle]), (middle, [root]), (root, [])]


def test_a_module_that_calls_itself_is_one_root() -> None:
    def recursive(self: Any, x: Any) -> Any:
        return self(x - 1) if x.sum() > 0 else x

    root = Does(recursive)
    with armed() as agent:
        listener = listening(agent)
        root(torch.ones(2))
        root(torch.ones(2))
        assert agent.names.step(root) == 1
    assert listener.roots == [root, root]
    assert [len(outer) for _, outer in listener.exits] == [1, 0] * 2


def test_a_module_made_in_a_forward_belongs_to_that_forward() -> None:
    root = Does(lambda self, x: nn.ReLU()(nn.Tanh()(x)))
    with armed() as agent:
        listener = listening(agent)
        for _ in range(3):
            root(torch.ones(1))
        assert agent.names.step(root) == 2
    assert listener.roots == [root] * 3
    assert [len(outer) for _, outer in listener.exits] == [1, 1, 0] * 3


def test_a_part_shared_by_two_roots_belongs_to_the_one_that_runs() -> None:
    part = nn.ReLU()
    first, second = Does(passing, part), Does(passing, part)
    with armed() as agent:
        listener = listening(agent)
        for root in (first, second, first, second, part):
            root(torch.ones(1))
    assert listener.roots == [first, second, first, second, part]
    assert [outer for module, outer in listener.exits if module is part] == [
        [first], [second], [first], [second], [],
    ]  # fmt: skip


def test_each_thread_has_calls_of_its_own() -> None:
    meet = threading.Barrier(2, timeout=20)

    def waits(self: Any, x: Any) -> Any:
        meet.wait()
        return self.child(x)

    roots = [Does(waits, nn.ReLU()) for _ in range(2)]
    with armed() as agent:
        listener = listening(agent)
        threads = [threading.Thread(target=root, args=(torch.ones(1),)) for root in roots]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    for root in roots:
        assert (root.child, [root]) in listener.exits and (root, []) in listener.exits
    assert len(listener.exits) == 4


# Exceptions of the program -----------------------------------------------------------------------


def test_an_exception_in_a_forward_passes_unchanged() -> None:
    def fails(self: Any, x: Any) -> Any:
        raise ValueError("mine")

    with armed() as agent, warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="mine"):
            Does(passing, Does(fails))(torch.ones(1))
        assert agent.hooks._threads.calls == []


def test_after_a_caught_exception_the_calls_around_are_known() -> None:
    def fails(self: Any, x: Any) -> Any:
        raise ValueError("mine")

    def catches(self: Any, x: Any) -> Any:
        try:
            return self.child(x)
        except ValueError:
            return self.other(x)

    root = Does(catches, Does(passing, Does(fails)))
    root.other = Does(nan)
    with armed() as agent:
        root(torch.ones(2))
        assert agent.stops == [("nonfinite.forward", "other", 0)]
        root(torch.ones(2))
        assert agent.names.step(root) == 1


def test_a_pre_hook_that_raises_before_ours_hides_no_call_around() -> None:
    def refuses(module: Any, args: Any) -> None:
        if module is child:
            raise ValueError("not this one")

    def catches(self: Any, x: Any) -> Any:
        try:
            return self.child(x)
        except ValueError:
            return self.other(x)

    child = nn.ReLU()
    root = Does(catches, child)
    root.other = Does(nan)
    handle = torch_module.register_module_forward_pre_hook(refuses)
    try:
        with armed() as agent:
            listener = listening(agent)
            root(torch.ones(2))
    finally:
        handle.remove()
    assert listener.exits == [(root.other, [root]), (root, [])]


def interrupted(self: Any, x: Any) -> Any:
    if self.armed:
        self.armed = False
        raise KeyboardInterrupt
    return x * float("nan") if self.bad else x


def interruptible() -> tuple[Any, Any]:
    inner: Any = Does(interrupted)
    inner.armed, inner.bad = True, False
    return Does(passing, Does(passing, inner)), inner


def test_a_call_abandoned_by_an_interrupt_is_forgotten_when_its_root_runs_again() -> None:
    root, inner = interruptible()
    x = torch.ones(2)
    with armed() as agent:
        with pytest.raises(KeyboardInterrupt):
            root(x)
        listener = listening(agent)
        root(x)
        assert listener.roots == [root]
        assert [len(outer) for _, outer in listener.exits] == [2, 1, 0]
        assert agent.names.step(root) == 1
        agent.hooks.listen([agent.nonfinite])
        inner.bad = True
        root(x)
    assert agent.stops == [("nonfinite.forward", "child.child", 2)]


def test_a_call_abandoned_by_an_interrupt_is_forgotten_when_another_model_runs() -> None:
    root, _ = interruptible()
    other = Does(passing, Does(nan))
    x = torch.ones(2)
    with armed() as agent:
        with pytest.raises(KeyboardInterrupt):
            root(x)
        gone = weakref.ref(root)
        del root, _
        listener = listening(agent)
        other(x)
        assert listener.roots == [other]
        assert listener.exits == [(other.child, [other]), (other, [])]
        agent.hooks.listen([agent.nonfinite])
        other(x)
        gc.collect()
        assert gone() is None
    assert agent.stops == [("nonfinite.forward", "child", 1)]


# Armed midway ------------------------------------------------------------------------------------


def test_armed_in_the_middle_of_a_forward_the_running_calls_are_read_from_the_stack() -> None:
    agent = Armed()

    def arms(self: Any, x: Any) -> Any:
        agent.arm(rule("nonfinite()"))
        return self.child(x)

    root = Does(passing, Does(arms, Does(passing, Does(nan))))
    x = torch.ones(2)
    try:
        root(x)
        assert agent.stops == [("nonfinite.forward", "child.child.child", None)]
        assert agent.hooks._threads.calls == []
        root(x)
        assert agent.names.step(root) == 0
    finally:
        agent.remove()
    assert not agent.faults


def test_disarmed_in_the_middle_of_a_forward_it_ends_as_without_us() -> None:
    agent = Armed()

    def disarms(self: Any, x: Any) -> Any:
        agent.remove()
        return self.child(x)

    root = Does(passing, Does(disarms, nn.ReLU()))
    agent.arm(rule("nonfinite()"))
    try:
        assert root(torch.ones(1)).item() == 1
        agent.hooks.install()
        listener = listening(agent)
        assert nn.Sequential(nn.ReLU())(torch.ones(1)).item() == 1
        assert len(listener.roots) == 1
    finally:
        agent.remove()
    assert not agent.faults


# Where only roots are heard of -------------------------------------------------------------------


class ListensToRoots:
    """Hears of no inner module."""

    def __init__(self) -> None:
        self.roots: list[nn.Module] = []

    def on_root(self, call: Call) -> None:
        self.roots.append(call.module)


def again(self: Any, x: Any) -> Any:
    """Calls itself, and its child before and after that."""
    return self.child(self(x - 1)) if self.child(x).sum() > 0 else x


def fails_below_zero(self: Any, x: Any) -> Any:
    if self.child(x).sum() < 0:
        raise KeyboardInterrupt
    return x


@pytest.mark.parametrize(
    "calls",
    [
        lambda child, root: (root, child, root, root),
        lambda child, root: (child, root, child, child),
    ],
    ids=["the root first", "the child first"],
)
@pytest.mark.parametrize("act", [passing, again, fails_below_zero])
def test_the_same_roots_are_told_and_counted_as_where_all_are_heard_of(
    act: Any, calls: Any
) -> None:
    found: list[Any] = []
    for listener in (Listens(), ListensToRoots()):
        child = nn.Sequential(nn.Identity())
        root = Does(act, child)
        with armed() as agent:
            agent.hooks.listen([listener])
            for module in calls(child, root):
                for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
                    with contextlib.suppress(KeyboardInterrupt):
                        module(x)
            assert agent.hooks.running() == []
            found.append(([item is root for item in listener.roots], agent.names.newest_step()))
    assert found[0] == found[1]
    counted: list[Any] = []
    for listeners in ([ListensToRoots()], []):  # and where nobody hears of roots either
        child = nn.Sequential(nn.Identity())
        root = Does(act, child)
        with armed() as agent:
            agent.hooks.listen(listeners)
            for module in calls(child, root):
                for x in (torch.ones(3), -torch.ones(3), torch.ones(3)):
                    with contextlib.suppress(KeyboardInterrupt):
                        module(x)
                counted.append((agent.names.step(root), agent.names.newest_step()))
            assert bool(torch_module._global_forward_hooks) == bool(listeners)
    assert counted[: len(counted) // 2] == counted[len(counted) // 2 :]


def test_calls_of_roots_are_counted_though_a_module_was_inside_of_another() -> None:
    helper, root = nn.Identity(), Does(lambda self, x: helper(x))
    larger = Does(passing, nn.Sequential(nn.Identity()))
    with armed() as agent:
        agent.hooks.listen([])
        for _ in range(2):
            root(torch.ones(1))
            helper(torch.ones(1))
            larger(torch.ones(1))
        assert [agent.names.step(item) for item in (root, helper, larger)] == [1, 1, 1]
        part: Any = larger.child
        del larger
        gc.collect()
        part(torch.ones(1))
        assert agent.names.step(part) == 0


def test_inner_calls_are_not_kept() -> None:
    depths: list[int] = []

    def noting(self: Any, x: Any) -> Any:
        depths.append(len(agent.hooks.running()))
        return x

    root = Does(passing, Does(noting))
    with armed() as agent:
        agent.hooks.listen([ListensToRoots()])
        for _ in range(3):
            root(torch.ones(1))
        assert depths == [2, 1, 1]  # the first tells that it is one
        agent.hooks.listen([Listens()])
        root(torch.ones(1))
    assert depths[3:] == [2]


def test_hearing_of_inner_calls_may_begin_and_end_inside_a_root() -> None:
    listener = Listens()
    heard: list[Any] = []

    def switches(self: Any, x: Any) -> Any:
        agent.hooks.listen([heard.pop()])
        return self.child(x)

    root = Does(switches, Does(passing, nn.Identity()))
    with armed() as agent:
        for heard[:] in ([ListensToRoots()], [listener], [ListensToRoots()], [listener]):
            root(torch.ones(1))
    inner: Any = root.child
    assert listener.exits[:2] == [(inner.child, [root, inner]), (inner, [root])]
    assert listener.roots == [root]  # it was still listening when the third call began


# Faults of ours ----------------------------------------------------------------------------------


class Faulty(Listens):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def on_root(self, call: Call) -> None:
        super().on_root(call)
        if self.where == "root":
            raise RuntimeError("ours")

    def on_exit(self, call: Call, outer: list[Call], output: object) -> None:
        super().on_exit(call, outer, output)
        if self.where == "exit":
            raise RuntimeError("ours")


@pytest.mark.parametrize("where", ["root", "exit"])
def test_a_fault_in_a_listener_is_its_own(where: str) -> None:
    with armed(faults="some") as agent:
        faulty, other = Faulty(where), Listens()
        agent.hooks.listen([faulty, other])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert nn.ReLU()(torch.ones(1)).item() == 1
        assert [culprit for culprit, _ in agent.faults] == [faulty]
        assert len(other.roots) == len(other.exits) == 1


def test_a_fault_at_entry_is_the_layer_breakpoints_own(monkeypatch: Any) -> None:
    with armed(layer("*"), faults="some") as agent:
        monkeypatch.setattr(agent.names, "path", lambda *_: 1 / 0)
        assert nn.ReLU()(torch.ones(1)).item() == 1
        assert [culprit for culprit, _ in agent.faults] == [agent.layers]


def test_a_fault_in_the_hooks_themselves_does_not_reach_the_program(monkeypatch: Any) -> None:
    with armed(faults="some") as agent:
        monkeypatch.setattr(agent.names, "learn", lambda *_: 1 / 0)
        assert nn.ReLU()(torch.ones(1)).item() == 1
        assert {culprit for culprit, _ in agent.faults} == {agent.hooks}


def test_a_fault_in_counting_optimizer_steps_does_not_reach_the_program() -> None:
    class Unhashable(torch.optim.SGD):
        __hash__ = None  # type: ignore[assignment]

    with armed(faults="some") as agent:
        Unhashable(nn.Linear(1, 1).parameters()).step()
        assert agent.updates in [culprit for culprit, _ in agent.faults]


# Layer breakpoints -------------------------------------------------------------------------------


def test_a_layer_breakpoint_stops_at_every_entry_that_matches() -> None:
    root = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU(), nn.ReLU()))
    with armed(layer("1.*")) as agent:
        root(torch.ones(1))
        root(torch.ones(1))
    assert agent.stops == [
        ("layer.entry", path, step) for step in (0, 1) for path in ("1.0", "1.1")
    ]


def test_a_layer_breakpoints_condition_is_asked_at_entry() -> None:
    root = nn.Sequential(nn.ReLU())
    with armed(layer("", "step >= 2"), layer("0", "step == 1", number=1)) as agent:
        for _ in range(4):
            root(torch.ones(1))
    assert agent.stops == [("layer.entry", "0", 1), ("layer.entry", "", 2), ("layer.entry", "", 3)]
    assert [ids for ids, _ in agent.calls] == [[1], [0], [0]]


def test_a_layer_stop_shows_the_arguments() -> None:
    class Scales(nn.Module):
        def forward(self, x: Any, scale: float) -> Any:
            return x * scale

    x = torch.ones(1)
    with armed(layer("*")) as agent:
        Scales()(x, scale=2.0)
    values = agent.event.values
    assert values["inputs"][0] is x and values["keyword_inputs"] == {"scale": 2.0}

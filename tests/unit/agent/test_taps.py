"""Tapped functions do what they did, tell the adapters, and are gone afterwards."""

from __future__ import annotations

import sys
import types
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tensorpoint.agent import adapters
from tensorpoint.agent.taps import Taps
from tensorpoint.agent.watches.base import Watch
from tests.unit.agent.attending import Attends, ByHand
from tests.unit.agent.tapped import Tapped, tapped


@dataclass
class Tap:
    target: str
    topic: str = "attention"
    before: Any = None
    after: Any = None


def adapter(*taps: Tap, name: str = "mine") -> Any:
    return types.SimpleNamespace(name=name, taps=taps, switches=())


def finding(*found: Any) -> Any:
    return lambda: found


def module_with(**attributes: Any) -> types.ModuleType:
    module = types.ModuleType("made_up_for_taps")
    vars(module).update(attributes)
    return module


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    def attend(a: int, b: int = 2) -> int:
        if a < 0:
            raise ValueError("negative")
        return a + b

    class Worker:
        def work(self, a: int) -> int:
            return a

        @staticmethod
        def fixed(a: int) -> int:
            return a + 1

        @classmethod
        def of(cls, a: int) -> str:
            return f"{cls.__name__}{a}"

    class Derived(Worker):
        pass

    module = module_with(attend=attend, Worker=Worker, Derived=Derived)
    monkeypatch.setitem(sys.modules, "made_up_for_taps", module)
    return module


# Installing ------------------------------------------------------------------------------------


def torch_functions() -> list[Any]:
    return [
        functional.scaled_dot_product_attention,
        torch.softmax,
        torch.Tensor.softmax,
        "softmax" in vars(torch.Tensor),
        nn.utils.clip_grad_norm_,
        nn.utils.clip_grad.clip_grad_norm_,
        torch.amp.GradScaler.scale,
        torch.amp.GradScaler.unscale_,
        torch.amp.GradScaler.update,
        torch.backends.mha.get_fastpath_enabled(),
    ]


def test_everything_is_as_before_once_it_is_removed() -> None:
    before = torch_functions()
    with tapped("attention", "gradients"):
        assert all(now is not was for now, was in zip(torch_functions(), before))
    assert torch_functions() == before


def test_only_the_topics_that_are_listened_to_are_tapped() -> None:
    before = torch_functions()
    with tapped("gradients") as agent:
        now = torch_functions()
        assert now[:4] == before[:4] and now[-1]
        assert all(one is not other for one, other in zip(now[4:9], before[4:9]))
        agent.listen("attention")
        now = torch_functions()
        assert now[4:9] == before[4:9]
        assert now[0] is not before[0]


def test_what_others_have_imported_by_name_is_tapped_and_given_back(
    made_up: types.ModuleType,
) -> None:
    original = functional.scaled_dot_product_attention
    vars(made_up).update(sdpa=original, also=original)
    with tapped():
        assert made_up.sdpa is made_up.also is functional.scaled_dot_product_attention
        assert made_up.sdpa is not original
        assert sys.modules["torch._C._nn"].scaled_dot_product_attention is original
        vars(made_up)["also"] = "the program's"
    assert made_up.sdpa is original
    assert made_up.also == "the program's"


def test_a_module_of_a_library_is_looked_through_once(made_up: types.ModuleType) -> None:
    """Its names are replaced each time all the same, also those that it has since."""
    original = functional.scaled_dot_product_attention
    vars(made_up).update(sdpa=original, __file__="/lib/site-packages/made_up_for_taps.py")
    with tapped() as agent:
        agent.listen()
        assert made_up.sdpa is original
        vars(made_up)["later"] = original
        agent.listen("attention")
        ours = functional.scaled_dot_product_attention
        assert original is not ours and made_up.sdpa is made_up.later is ours
    assert made_up.sdpa is made_up.later is original


def test_the_programs_own_replacement_stays(request: pytest.FixtureRequest) -> None:
    original = functional.scaled_dot_product_attention
    request.addfinalizer(lambda: setattr(functional, original.__name__, original))
    with tapped() as agent:
        ours = functional.scaled_dot_product_attention

        def theirs(*args: Any, **kwargs: Any) -> Any:
            return ours(*args, **kwargs)

        functional.scaled_dot_product_attention = theirs  # type: ignore[assignment]
        Attends()(torch.randn(1, 5, 16))
        assert agent.paths == [""]
    assert functional.scaled_dot_product_attention is theirs
    assert Attends()(torch.randn(1, 5, 16)).shape == (1, 5, 16)


def test_a_replacement_that_somebody_kept_only_passes_on_and_works_again() -> None:
    agent = Tapped()
    agent.listen("attention")
    kept = functional.scaled_dot_product_attention
    agent.remove()
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(kept(q, q, q), functional.scaled_dot_product_attention(q, q, q))
    assert agent.attentions == []
    agent.listen("attention")
    assert functional.scaled_dot_product_attention is kept
    agent.remove()
    assert not agent.faults


def test_a_module_is_waited_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "comes_later_for_taps.py").write_text("def attend(x):\n    return x\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    heard: list[Any] = []
    mine = adapter(
        Tap("comes_later_for_taps:attend", after=lambda observer, result, x: heard.append(x))
    )
    with tapped(find=finding(mine)):
        import comes_later_for_taps  # type: ignore[import-not-found]

        assert comes_later_for_taps.attend(3) == 3
    assert comes_later_for_taps.attend(4) == 4
    assert heard == [3]
    with tapped(find=finding(mine)):
        comes_later_for_taps.attend(5)
    assert heard == [3, 5]
    del sys.modules["comes_later_for_taps"]


def test_functions_and_methods_of_all_kinds(made_up: types.ModuleType) -> None:
    heard: list[Any] = []

    def tap(target: str) -> Tap:
        return Tap(
            f"made_up_for_taps:{target}", after=lambda observer, result, *a: heard.append(result)
        )

    targets = ("attend", "Worker.work", "Worker.fixed", "Worker.of", "Derived.work")
    worker, derived = made_up.Worker(), made_up.Derived()
    with tapped(find=finding(adapter(*map(tap, targets)))):
        assert made_up.attend(1) == 3
        assert worker.work(5) == 5
        assert made_up.Worker.fixed(6) == worker.fixed(6) == 7
        assert made_up.Worker.of(8) == "Worker8" and made_up.Derived.of(8) == "Derived8"
        assert derived.work(9) == 9
    assert heard == [3, 5, 7, 7, "Worker8", "Derived8", 9, 9]  # Derived.work, and the one below
    assert "work" not in vars(made_up.Derived)
    assert isinstance(vars(made_up.Worker)["fixed"], staticmethod)
    assert isinstance(vars(made_up.Worker)["of"], classmethod)


# The program's call ----------------------------------------------------------------------------


def test_before_and_after_get_the_arguments_and_what_before_noted(
    made_up: types.ModuleType,
) -> None:
    heard: list[Any] = []

    def before(observer: Any, *args: Any, **kwargs: Any) -> str:
        heard.append(("before", args, kwargs))
        return "noted"

    def after(observer: Any, result: Any, *args: Any, **kwargs: Any) -> None:
        heard.append(("after", result, args, kwargs))

    with tapped(find=finding(adapter(Tap("made_up_for_taps:attend", before=before, after=after)))):
        assert made_up.attend(1, b=5) == 6
        with pytest.raises(ValueError, match="negative"):
            made_up.attend(-1)
    assert heard == [
        ("before", (1,), {"b": 5}),
        ("after", 6, (1,), {"b": 5, "noted": "noted"}),
        ("before", (-1,), {}),
    ]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_adapter_that_fails_is_reported_once_and_its_topic_switched_off(
    made_up: types.ModuleType, when: str
) -> None:
    def fails(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("ours")

    mine = adapter(Tap("made_up_for_taps:attend", **{when: fails}))  # type: ignore[arg-type]
    with tapped("attention", "gradients", find=finding(mine), faults="some") as agent:
        assert [made_up.attend(1), made_up.attend(2)] == [3, 4]
        [(culprit, error)] = agent.faults
        assert culprit.metric == "attention (adapter mine)"
        assert str(error) == "ours"
        agent.listen("attention")
        assert made_up.attend(1) == 3


def test_a_target_that_is_not_there_is_a_fault(made_up: types.ModuleType) -> None:
    mine = adapter(Tap("made_up_for_taps:gone"), Tap("made_up_for_taps:attend"))
    with tapped(find=finding(mine), faults="some") as agent:
        assert made_up.attend(1) == 3
    assert [type(error) for _, error in agent.faults] == [AttributeError]


def test_a_fault_may_change_what_is_listened_to(made_up: types.ModuleType) -> None:
    """As the agent does, which then listens with the other watches."""

    class Hears(Watch):
        def on_attention(self, call: Any, attention: Any) -> None:
            pass

    mine = adapter(Tap("made_up_for_taps:gone"), Tap("made_up_for_taps:attend"))
    agent = Tapped()
    found: list[int] = []

    def find() -> Any:
        found.append(1)
        agent.fault("an adapter", RuntimeError("broken"))
        return (mine,)

    def fault(culprit: Any, error: Exception) -> None:
        faults.append(error)
        agent.taps.listen([Hears()])

    faults: list[Exception] = []
    agent.fault = fault  # type: ignore[method-assign]
    agent.taps = Taps(find, agent.names, agent.hooks, fault)
    original = made_up.attend
    agent.taps.listen([Hears()])
    assert [type(error) for error in faults] == [RuntimeError, AttributeError]
    assert found == [1]
    assert made_up.attend is original  # the topic is off
    agent.taps.listen([])


def test_a_listener_that_fails_is_reported_and_dropped() -> None:
    class Fails(Watch):
        def on_attention(self, call: Any, attention: Any) -> None:
            raise RuntimeError("the watch's")

    class Hears(Watch):
        heard = 0

        def on_attention(self, call: Any, attention: Any) -> None:
            self.heard += 1

    with tapped(faults="some") as agent:
        fails, hears = Fails(), Hears()
        agent.taps.listen([fails, hears])
        model = Attends()
        model(torch.randn(1, 5, 16))
        model(torch.randn(1, 5, 16))
        assert hears.heard == 2
        assert [culprit for culprit, _ in agent.faults] == [fails]


@pytest.mark.parametrize("make", [Attends, lambda: ByHand(lambda s: functional.softmax(s, -1))])
def test_training_is_bit_identical(make: Any) -> None:
    def train(listening: bool) -> list[torch.Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), make(), nn.Linear(16, 4))
        scaler = torch.amp.GradScaler("cpu")
        optimizer = torch.optim.AdamW(model.parameters())
        agent = Tapped()
        if listening:
            agent.listen("attention", "gradients")
        versions: list[int] = []
        for _ in range(3):
            x = torch.randn(4, 9, 16)
            optimizer.zero_grad()
            loss = model(x).square().mean()
            versions.append(x._version)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            for _, attention in agent.take():
                assert attention.sampled and attention.exact
        agent.remove()
        assert not agent.faults
        return [*model.parameters(), torch.rand(3), torch.tensor(versions)]

    for one, other in zip(train(False), train(True)):
        assert torch.equal(one, other)


def test_the_graph_of_autograd_is_the_same() -> None:
    def nodes(output: torch.Tensor) -> list[str]:
        found: list[str] = []
        waiting = [output.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None:
                found.append(type(node).__name__)
                waiting += [inner for inner, _ in node.next_functions]
        return found

    model, x = ByHand(lambda s: functional.softmax(s, -1)), torch.randn(2, 5, 16)
    plain = nodes(model(x))
    with tapped() as agent:
        output = model(x)
        assert agent.take()[0][1].sampled
    assert nodes(output) == plain


# Finding adapters ------------------------------------------------------------------------------


def test_the_built_in_adapters_are_found() -> None:
    faults: list[Any] = []
    found = adapters.find(lambda culprit, error: faults.append(error))
    assert [one.name for one in found][:3] == ["torch-attention", "torch-clip", "grad-scaler"]
    assert faults == []

"""What is recorded of layers and parameters, and what is not."""

from __future__ import annotations

import gc
import json
import math
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent import facts as facts_module
from tensorpoint.agent.facts import Recorder
from tensorpoint.agent.facts_file import Keeper, as_json
from tensorpoint.agent.gradients import Gradients
from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Names
from tensorpoint.agent.records import Ring
from tensorpoint.agent.samples import ROWS
from tensorpoint.agent.updates import Updates
from tensorpoint.wire import Facts
from tensorpoint.wire.codec import convert
from tensorpoint.wire.facts import SAMPLE, STEPS_KEPT, Layer, Parameter


class Recording:
    """A recorder behind installed hooks; every fault fails the test."""

    def __init__(self) -> None:
        self.names = Names()
        self.faults: list[tuple[Any, Exception]] = []
        self.scale: float | None = None
        #: A module that returns its argument.
        self.says = Says()
        self.hooks = Hooks(self.names, self._fault)
        self.gradients = Gradients(self.names, self._fault)
        self.updates = Updates(self.names, self._fault)
        self.recorder = Recorder(self.names, lambda _: self.scale)
        self.recorder.record(True)
        self.gradients.listen([self.recorder])
        self.hooks.listen([self.gradients, self.recorder])
        self.updates.listen([self.gradients, self.recorder])
        self.hooks.install()
        self.updates.install()

    def _fault(self, culprit: Any, error: Exception) -> None:
        self.faults.append((culprit, error))

    def remove(self) -> None:
        self.gradients.listen(())
        self.hooks.remove()
        self.updates.remove()

    def read(self, glob: str | None = None, history: bool = False) -> Facts:
        return self.recorder.read(glob, history)

    def layer(self, path: str) -> Layer:
        found = [item for item in self.read(history=True).layers if item.module == path]
        assert len(found) == 1, [item.module for item in self.read().layers]
        return found[0]

    def parameter(self, path: str) -> Parameter:
        return next(p for p in self.read(history=True).parameters if p.parameter == path)


@pytest.fixture
def recording() -> Iterator[Recording]:
    made = Recording()
    yield made
    made.remove()
    assert not made.faults, made.faults


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.act = nn.ReLU()
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))  # calls its layers


class Says(nn.Module):
    """Returns what it is told to."""

    def forward(self, value: Any) -> Any:
        return value


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    net(x).square().mean().backward()
    optimizer.step()


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


# -- layers


def test_layers_come_in_the_models_order_with_shape_place_and_step(recording: Recording) -> None:
    net = Net()
    for _ in range(3):
        net(torch.ones(5, 4))
    facts = recording.read()
    assert [layer.module for layer in facts.layers] == ["", "first", "act", "last"]
    assert [(root.module_type, root.step) for root in facts.roots] == [("Net", 2)]
    first = recording.layer("first")
    assert (first.module_type, first.step, first.calls, first.training) == ("Linear", 2, 1, True)
    assert first.outputs[0].shape == (5, 8)
    assert (first.outputs[0].dtype, first.outputs[0].device) == ("float32", "cpu")
    assert first.file == __file__
    assert (first.line, first.function) == (line_of("# calls its layers"), "forward")
    assert facts.step == 2 and facts.recording and facts.note is None


def test_statistics_of_a_small_output_are_exact(recording: Recording) -> None:
    x = torch.tensor([[0.0, 1.0, 2.0, 5.0]])
    recording.says(x)
    found = recording.layer("").statistics
    assert found is not None
    assert not found.sampled and found.elements == found.looked_at == 4
    assert found.mean == pytest.approx(2)
    assert found.std == pytest.approx(x.std().item())
    assert (found.min, found.max, found.zero_fraction) == (0, 5, 0.25)
    assert found.nonfinite_fraction == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_statistics_of_a_large_output_are_near(recording: Recording, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = (torch.randn(64, 512) * 3 + 100).relu().to(dtype)
    recording.says(x)
    found = recording.layer("").statistics
    assert found is not None
    assert found.sampled and found.elements == x.numel() and found.looked_at <= SAMPLE
    assert found.mean == pytest.approx(100, abs=0.5)
    assert found.std == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x.transpose(0, 1),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(64, 512),
        lambda x: x.view(1, 8, 64, 64).contiguous(memory_format=torch.channels_last),
        lambda x: torch.complex(x, x),
        lambda x: x.to_sparse(),
        lambda x: x.requires_grad_().mul(1),
    ],
)
def test_any_layout_has_statistics(recording: Recording, make: Any) -> None:
    torch.manual_seed(0)
    x = make(torch.randn(64, 512))
    recording.says(x)
    layer = recording.layer("")
    assert layer.outputs[0].shape == tuple(x.shape)
    assert layer.statistics is not None
    assert layer.statistics.looked_at <= SAMPLE
    assert layer.statistics.mean == pytest.approx(0, abs=0.2)
    assert layer.statistics.std == pytest.approx(1, rel=0.2)


def test_numbers_that_are_not_finite_are_counted_and_left_out(recording: Recording) -> None:
    recording.says(torch.tensor([1.0, 3.0, math.nan, -math.inf]))
    found = recording.layer("").statistics
    assert found is not None
    assert (found.mean, found.min, found.max, found.nonfinite_fraction) == (2, 1, 3, 0.5)
    recording.says(torch.full((4,), math.nan))
    json.loads(as_json(recording.read(history=True)), parse_constant=pytest.fail)


def test_numbers_beyond_float32_squares(recording: Recording) -> None:
    recording.says(torch.full((8,), 3e38))
    found = recording.layer("").statistics
    assert found is not None
    assert found.mean == pytest.approx(3e38) and found.nonfinite_fraction == 0


def test_all_tensors_of_an_output_are_named_and_the_first_floating_one_measured(
    recording: Recording,
) -> None:
    recording.says({"ids": torch.arange(3), "hidden": [torch.ones(2, 2), torch.zeros(1)]})
    layer = recording.layer("")
    names = ["output['ids']", "output['hidden'][0]", "output['hidden'][1]"]
    assert [output.name for output in layer.outputs] == names
    assert layer.statistics is not None and layer.statistics.mean == 1


@pytest.mark.parametrize("value", ["text", 3, (), torch.arange(4), torch.empty(0)])
def test_outputs_without_numbers_are_listed_without_statistics(
    recording: Recording, value: Any
) -> None:
    recording.says(value)
    assert recording.layer("").statistics is None


def test_a_shape_that_changes_is_seen(recording: Recording) -> None:
    says = Says()
    for value in (torch.ones(3), (torch.ones(3), torch.ones(2)), torch.ones(3), torch.ones(4, 1)):
        says(value)
        tensors = value if isinstance(value, tuple) else (value,)
        assert [output.shape for output in recording.layer("").outputs] == [
            tuple(tensor.shape) for tensor in tensors
        ]


def test_a_module_called_several_times_keeps_the_last_call_and_counts(
    recording: Recording,
) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.says = Says()

        def forward(self, x: Tensor) -> Tensor:
            return self.says(x) + self.says(x + 1)

    net = Twice()
    for _ in range(2):
        net(torch.ones(3))
    layer = recording.layer("says")
    assert layer.calls == 2
    assert layer.statistics is not None and layer.statistics.mean == 2
    assert layer.history is not None
    assert layer.history.step == (0, 1) and layer.history.mean == (2, 2)


def test_the_training_flag_is_that_of_the_last_call(recording: Recording) -> None:
    net = Net()
    net(torch.ones(1, 4))
    net.eval()(torch.ones(1, 4))
    assert not recording.layer("act").training


def test_history_is_bounded_and_in_order(recording: Recording) -> None:
    says = Says()
    steps = STEPS_KEPT + 10
    for step in range(steps):
        says(torch.full((2,), float(step)))
    history = recording.layer("").history
    assert history is not None
    assert history.step == tuple(range(10, steps))
    assert history.mean == tuple(float(step) for step in range(10, steps))
    assert recording.read().layers[0].history is None


def test_more_layers_than_a_table_has_rows(recording: Recording) -> None:
    net = nn.Sequential(*(nn.Linear(2, 2) for _ in range(ROWS + 5)))
    net(torch.ones(1, 2))
    for index in (0, ROWS - 1, ROWS, ROWS + 4):
        weight, bias = net[index].weight, net[index].bias
        assert recording.layer(str(index)).statistics is not None, (weight, bias)
    with torch.no_grad():
        expected = net[:2](torch.ones(1, 2)).mean().item()
    net(torch.ones(1, 2))
    found = recording.layer("1").statistics
    assert found is not None and found.mean == pytest.approx(expected)


def test_a_root_that_turns_out_to_be_a_part_is_renamed(recording: Recording) -> None:
    net = Net()
    net.first(torch.ones(1, 4))
    assert recording.layer("").module_type == "Linear"
    net(torch.ones(1, 4))
    assert [layer.module for layer in recording.read().layers] == ["", "first", "act", "last"]
    assert recording.layer("first").step == 0


def test_only_what_a_glob_matches_is_read(recording: Recording) -> None:
    net = Net()
    net(torch.ones(1, 4))
    facts = recording.read("*st")
    assert [layer.module for layer in facts.layers] == ["first", "last"]
    assert {p.parameter.partition(".")[0] for p in facts.parameters} == {"first", "last"}
    facts = recording.read("*.weight")
    assert [p.parameter for p in facts.parameters] == ["first.weight", "last.weight"]


def test_rows_are_measured_when_the_table_is_full(recording: Recording) -> None:
    lengths = [3, 5, 3, 7]
    for step in range(ROWS + 1):
        recording.says(torch.full((lengths[step % 4],), float(step)))
        if step == 20:
            recording.read()
    record = next(iter(recording.recorder._layers.values()))
    assert record.numbers is not None and record.numbers[0] == ROWS - 1
    history = recording.layer("").history
    assert history is not None
    assert history.mean == tuple(float(step) for step in range(ROWS + 1 - STEPS_KEPT, ROWS + 1))


def test_what_a_thread_that_has_ended_recorded_is_kept(recording: Recording) -> None:
    for step in range(3):
        thread = threading.Thread(target=recording.says, args=(torch.full((2,), float(step)),))
        thread.start()
        thread.join()
    history = recording.layer("").history
    assert history is not None and history.mean == (0, 1, 2)
    assert len(recording.recorder._tables) == 1


def test_facts_are_readable_in_the_middle_of_a_forward(recording: Recording) -> None:
    seen: list[Facts] = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            thread = threading.Thread(target=lambda: seen.append(recording.read()))
            thread.start()
            thread.join()
            return x

    net = nn.Sequential(Says(), Looks())
    net(torch.full((3,), 7.0))
    layer = next(layer for layer in seen[0].layers if layer.module == "0")
    assert layer.statistics is not None and layer.statistics.mean == 7


# -- parameters


def test_gradient_norms_age_and_parameter_norms(recording: Recording) -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train(net, optimizer, torch.ones(3, 4))
    gradient = net.first.weight.grad
    assert gradient is not None
    found = recording.parameter("first.weight")
    assert found.gradient_norm == pytest.approx(gradient.norm().item())
    assert (found.step, found.optimizer_step, found.age) == (0, 0, 0)
    assert found.norm == pytest.approx(net.first.weight.norm().item()) and not found.norm_sampled
    assert found.shape == (8, 4) and found.trainable and found.gradient_finite
    with torch.no_grad():
        net(torch.ones(3, 4))
    assert recording.parameter("first.weight").age == 1
    train(net, optimizer, torch.ones(3, 4))
    history = recording.parameter("first.weight").history
    assert history is not None
    assert history.step == (0, 2) and history.optimizer_step == (0, 1)


def test_the_norm_of_a_large_parameter_is_estimated(recording: Recording) -> None:
    torch.manual_seed(0)
    net = nn.Linear(300, 300)
    train(net, torch.optim.SGD(net.parameters(), lr=0.0), torch.ones(1, 300))
    found = recording.parameter("weight")
    assert found.norm_sampled
    assert found.norm == pytest.approx(net.weight.norm().item(), rel=0.05)


def test_frozen_and_unused_parameters_are_listed_without_a_gradient(recording: Recording) -> None:
    net = Net()
    net.first.bias.requires_grad_(False)
    net.extra = nn.Parameter(torch.ones(2))  # type: ignore[assignment]
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(3, 4))
    frozen, unused = recording.parameter("first.bias"), recording.parameter("extra")
    assert not frozen.trainable and unused.trainable
    for found in (frozen, unused):
        assert found.gradient_norm is found.age is found.gradient_finite is None


def test_gradients_that_are_not_finite_have_no_norm(recording: Recording) -> None:
    net = Net()
    (net(torch.ones(1, 4)).sum() * math.inf).backward()
    found = recording.parameter("last.bias")
    assert found.gradient_finite is False and found.gradient_norm is None


def test_gradients_are_unscaled(recording: Recording) -> None:
    recording.scale = 4.0
    net = Net()
    (net(torch.ones(1, 4)).sum() * 4).backward()
    assert recording.parameter("last.bias").gradient_norm == pytest.approx(math.sqrt(2))


def test_an_update_ratio_that_somebody_measured(recording: Recording) -> None:
    net = Net()
    net(torch.ones(1, 4)).sum().backward()
    recording.recorder.note_update(net.last.bias, 1e-3)
    found = recording.parameter("last.bias")
    assert found.update_ratio == 1e-3
    assert found.history is not None and found.history.update_ratio == (1e-3,)


def test_parameters_of_no_module(recording: Recording) -> None:
    loose = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([loose], lr=0.1)
    for _ in range(2):
        loose.sum().backward()
        optimizer.step()
    assert [p.root for p in recording.read().parameters] == [None]


# -- what is not recorded


def test_nothing_while_nobody_asks() -> None:
    recorder = Recorder(Names(), lambda _: None)
    assert recorder.read().note == f"nothing is recorded in process {os.getpid()}"


def test_a_checkpoint_is_recorded_once(recording: Recording) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Net()

        def forward(self, x: Tensor) -> Tensor:
            output: Any = checkpoint(self.inner, x, use_reentrant=False)
            return output

    net = Checkpointed()
    net(torch.ones(1, 4, requires_grad=True)).sum().backward()
    assert recording.layer("inner.first").calls == 1
    assert recording.parameter("inner.first.weight").step == 0


def test_what_the_user_evaluates_is_not_recorded(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = Net()
    net(torch.ones(2, 4))

    class Waiting:
        is_in_wait_loop = True

    monkeypatch.setattr(facts_module.debugger, "evaluating", lambda: True)
    monkeypatch.setattr(recording.recorder._mine, "state", Waiting)
    net(torch.zeros(7, 4))
    assert recording.layer("first").outputs[0].shape == (2, 8)
    recording.recorder._mine.state = None  # a thread of the debugger's own
    net(torch.zeros(7, 4))
    assert recording.layer("first").outputs[0].shape == (2, 8)


def test_switched_off_it_keeps_nothing(recording: Recording) -> None:
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(3, 4))
    record = weakref.ref(next(iter(recording.recorder._layers.values())))
    table = weakref.ref(recording.recorder._tables[0][1])
    recording.recorder.record(False)
    assert record() is None
    assert table() is None


def test_modules_and_parameters_are_not_kept_alive(recording: Recording) -> None:
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(3, 4))
    reference, weight = weakref.ref(net), weakref.ref(net.first.weight)
    del net
    gc.collect()
    assert reference() is weight() is None
    assert not recording.recorder._layers and not recording.recorder._parameters


def test_the_last_facts_of_a_model_that_is_gone_are_kept(recording: Recording) -> None:
    def run(steps: int) -> None:
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(steps):
            train(net, optimizer, torch.ones(3, 4))

    run(3)
    run(2)
    nn.ReLU()(torch.ones(1))
    facts = recording.read(history=True)
    assert [(root.module_type, root.step, root.gone) for root in facts.roots] == [
        ("Net", 1, True),
        ("ReLU", 0, True),
    ]
    assert [layer.module for layer in facts.layers] == ["", "first", "act", "last", ""]
    assert facts.optimizer_step == 2 and len(facts.parameters) == 4
    assert (facts.parameters[0].age, facts.parameters[0].shape) == (0, (8, 4))
    net = Net()
    net(torch.ones(1, 4))
    facts = recording.read()
    assert [root.gone for root in facts.roots if root.module_type == "Net"] == [False]


def test_a_layer_that_is_taken_out_of_a_living_model_is_forgotten(recording: Recording) -> None:
    net = nn.Sequential(Says(), Says())
    net(torch.ones(1))
    del net[1]
    assert [layer.module for layer in recording.read().layers] == ["", "0"]


def test_a_layer_that_is_added_later(recording: Recording) -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    net(torch.ones(1, 2))
    net.append(nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    assert [layer.module for layer in recording.read().layers] == ["", "0", "1"]
    assert recording.layer("1").step == 1


def test_too_many_layers_are_left_out_and_counted(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(facts_module, "_MAX_RECORDS", 2)
    net = Net()
    net(torch.ones(1, 4))
    facts = recording.read()
    assert len(facts.layers) == len(facts.parameters) == 2 and facts.left_out == 4


# -- the program is not disturbed


def test_numerics_and_random_numbers_stay_as_they_are(recording: Recording) -> None:
    def run() -> tuple[Tensor, Tensor]:
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(3):
            train(net, optimizer, torch.randn(5, 4))
        return torch.cat([p.detach().flatten() for p in net.parameters()]), torch.rand(3)

    watched = run()
    recording.remove()
    for ours, plain in zip(watched, run(), strict=True):
        assert torch.equal(ours, plain)


def test_an_output_needs_no_graph_of_ours(recording: Recording) -> None:
    x = torch.ones(3, requires_grad=True)
    y = recording.says(x * 2)
    y.sum().backward()
    assert not next(iter(recording.recorder._mine.samples.values())).table.requires_grad


@pytest.mark.parametrize("wrapped", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_modes_of_autograd(recording: Recording, wrapped: Any) -> None:
    net = Net()
    for guard in (wrapped, torch.enable_grad, wrapped):
        with guard():
            net(torch.ones(2, 4))
    assert recording.layer("last").step == 2
    history = recording.layer("last").history
    assert history is not None and history.step == (0, 1, 2)


def test_meta_fake_and_functorch(recording: Recording) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with torch.device("meta"):
        net = Net()
        net(torch.ones(2, 4))
    assert recording.layer("first").outputs[0].device == "meta"
    assert recording.layer("first").statistics is None
    del net
    gc.collect()
    with FakeTensorMode():
        net = Net()
        net(torch.ones(2, 4))
    assert recording.layer("first").outputs[0].shape == (2, 8)
    assert recording.layer("first").statistics is None
    del net
    gc.collect()
    net = Net()
    torch.vmap(net)(torch.ones(3, 2, 4))
    assert recording.layer("first").statistics is None
    torch.func.jvp(net, (torch.ones(2, 4),), (torch.ones(2, 4),))
    net(torch.ones(2, 4))
    assert recording.layer("first").statistics is not None


def test_forward_mode_derivatives(recording: Recording) -> None:
    import torch.autograd.forward_ad as forward_ad

    net = Net()
    with forward_ad.dual_level():
        net(forward_ad.make_dual(torch.ones(2, 4), torch.ones(2, 4)))
    net(torch.ones(2, 4))
    assert recording.layer("first").step == 1


def test_modes_of_the_program_see_nothing_of_ours(recording: Recording) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net = Net()
    with FlopCounterMode(display=False) as ours:
        net(torch.ones(2, 4))
    assert recording.layer("last").statistics is not None
    recording.remove()
    with FlopCounterMode(display=False) as plain:
        net(torch.ones(2, 4))
    assert ours.get_total_flops() == plain.get_total_flops()


def test_threads_record_side_by_side(recording: Recording) -> None:
    nets = [Net() for _ in range(4)]

    def work(net: Net) -> None:
        for _ in range(20):
            net(torch.ones(3, 4))

    threads = [threading.Thread(target=work, args=(net,)) for net in nets]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        recording.read(history=True)
    facts = recording.read(history=True)
    assert len(facts.layers) == 16
    for layer in facts.layers:
        assert layer.history is not None and layer.history.step == tuple(range(20))


# -- reading


def test_json_is_what_the_dataclasses_say(recording: Recording) -> None:
    net = Net()
    train(net, torch.optim.SGD(net.parameters(), lr=0.1), torch.ones(3, 4))
    facts = recording.read(history=True)
    assert convert(json.loads(as_json(facts)), Facts) == facts


def test_a_ring_replaces_the_row_of_the_same_step() -> None:
    ring = Ring(2)
    for row in ((0.0, 1.0), (0.0, 2.0), (1.0, 3.0)):
        ring.put(row)
    ring.amend(1, 1, 4.0)
    ring.amend(0, 1, 9.0)
    assert ring.columns() == [(0.0, 1.0), (9.0, 4.0)]


def test_the_file_is_written_at_the_end_and_when_it_changes(
    recording: Recording, tmp_path: Path
) -> None:
    faults: list[str] = []
    keeper = Keeper(recording.recorder, lambda activity, error: faults.append(activity))
    net = Net()
    net(torch.ones(1, 4))
    file = tmp_path / "facts.json"
    keeper.leave_in(str(file))
    assert not file.exists()
    assert json.loads(keeper.answer('{"save": true}')) == {"file": str(file)}
    assert len(json.loads(file.read_text())["layers"]) == 4
    file.unlink()
    keeper.leave_in("")
    assert file.exists() and [path.name for path in tmp_path.iterdir()] == ["facts.json"]
    keeper.leave_in(str(tmp_path / "gone" / "facts.json"))
    assert "cannot write" in json.loads(keeper.answer('{"save": true}'))["error"]
    keeper.leave_in("")
    assert faults == [f"writing {tmp_path / 'gone' / 'facts.json'}"]


def test_a_child_that_recorded_nothing_leaves_no_file(tmp_path: Path) -> None:
    keeper = Keeper(Recorder(Names(), lambda _: None), lambda *_: pytest.fail("a fault"))
    for name, written in ((f"f.{os.getpid()}", False), ("f", True)):
        keeper.leave_in(str(tmp_path / name))
        keeper.answer('{"save": true}')
        assert (tmp_path / name).exists() == written
    keeper.file = ""


def test_a_forward_that_was_running_when_recording_began(recording: Recording) -> None:
    recording.recorder.record(False)

    class Begins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Says()

        def forward(self, x: Tensor) -> Tensor:
            recording.hooks.remove()
            recording.recorder.record(True)
            recording.hooks.install()
            return self.inner(x)

    net = Begins()
    net(torch.ones(3))
    assert [layer.module for layer in recording.read().layers] == ["inner"]


def test_a_root_made_of_parts_of_another_that_is_gone(recording: Recording) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net(torch.ones(1, 4))
    net[1:](torch.ones(1, 4))
    net(torch.ones(1, 4)).sum().backward()
    facts = recording.read()
    assert [layer.module for layer in facts.layers] == ["", "0", "1", "2"]
    assert {layer.step for layer in facts.layers} == {1}
    assert recording.parameter("2.weight").step == 1

"""Facts: what the program notices of being recorded, and when nothing is kept."""

from __future__ import annotations

import gc
import json
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent import facts as facts_module
from tensorpoint.agent.facts import Recorder
from tensorpoint.agent.facts_file import Keeper, as_json
from tensorpoint.agent.modules import Names
from tensorpoint.agent.records import Ring
from tensorpoint.wire import Facts
from tensorpoint.wire.codec import convert
from tests.unit.agent.recorded import Net, Recording, Says, recording, train

__all__ = ["recording"]


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
    told: list[Facts] = []
    keeper = Keeper(recording.recorder, told.append, lambda what, error: faults.append(what))
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
    assert not told  # that is for the end of the process
    assert faults == [f"writing {tmp_path / 'gone' / 'facts.json'}"]


def test_a_child_that_recorded_nothing_leaves_no_file(tmp_path: Path) -> None:
    keeper = Keeper(Recorder(Names(), lambda _: None), print, lambda *_: pytest.fail("a fault"))
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

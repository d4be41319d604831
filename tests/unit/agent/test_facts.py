"""What is recorded of layers and parameters, and what is not."""

from __future__ import annotations

import json
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn

from tensorpoint.agent.facts_file import as_json
from tensorpoint.agent.samples import ROWS, Samples
from tensorpoint.wire import Facts
from tensorpoint.wire.facts import SAMPLE, STEPS_KEPT
from tests.unit.agent.recorded import Net, Recording, Says, line_of, recording, train

__all__ = ["recording"]


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
    assert first.file == sys.modules[Net.__module__].__file__
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


def test_the_rank_is_that_of_the_process_group_or_of_the_launcher(
    recording: Recording, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def place() -> tuple[int | None, int | None]:
        facts = recording.read()
        return facts.rank, facts.ranks

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert place() == (None, None)
    monkeypatch.setenv("RANK", "3")
    assert place() == (None, None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert place() == (3, 4)
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert place() == (0, 1)
    finally:
        distributed.destroy_process_group()


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


def test_nothing_runs_on_a_device_for_a_layer_that_is_hovered_over(
    recording: Recording, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording.says(torch.ones(2))
    monkeypatch.setattr(Samples, "is_on_cpu", False)
    of_layer = recording.recorder.of_layer
    layer = of_layer(recording.says)
    assert layer is not None and layer.statistics is None
    layer = of_layer(recording.says, history=True)  # the tensor view has asked
    assert layer is not None and layer.statistics is not None and layer.statistics.mean == 1


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


def test_an_update_that_somebody_measured(recording: Recording) -> None:
    net = Net()
    net(torch.ones(1, 4)).sum().backward()
    recording.recorder.note_update(net.last.bias, 1e-3, 0.5)
    found = recording.parameter("last.bias")
    assert (found.update_norm, found.update_ratio) == (1e-3, 2e-3)
    assert found.history is not None
    assert (found.history.update_norm, found.history.update_ratio) == ((1e-3,), (2e-3,))
    recording.recorder.note_update(net.last.bias, math.inf, 0.0)
    found = recording.parameter("last.bias")
    assert (found.update_norm, found.update_ratio) == (None, None)


def test_parameters_of_no_module(recording: Recording) -> None:
    loose = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([loose], lr=0.1)
    for _ in range(2):
        loose.sum().backward()
        optimizer.step()
    assert [p.root for p in recording.read().parameters] == [None]


# -- what is not recorded

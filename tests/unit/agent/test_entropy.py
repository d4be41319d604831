"""The entropy watches: what they measure, when they are sure, and what they compare with what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tensorpoint.agent.attention import Scored
from tensorpoint.agent.judge import Judge
from tensorpoint.agent.rules import Rule
from tensorpoint.agent.watches.base import Event
from tensorpoint.agent.watches.entropy import Entropy, EntropyShift
from tests.unit.agent.armed import rule
from tests.unit.agent.tapped import Tapped


class Attention(nn.Module):
    """Two heads whose entropy is set: `sharpness` multiplies each head's scores."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness = [1.0, 1.0]

    def forward(self, x: Tensor) -> Tensor:
        factors = torch.tensor(self.sharpness)[None, :, None, None]
        query = x[:, None].expand(-1, 2, -1, -1) * factors
        return functional.scaled_dot_product_attention(
            query, x[:, None].expand(-1, 2, -1, -1), query
        )


class Model(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers: Any = nn.ModuleList(Attention() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([layer(x) for layer in self.layers])


class Watching:
    """Both watches, and what would have stopped the program."""

    def __init__(self, conditions: Sequence[str]) -> None:
        self.agent = Tapped()
        names = self.agent.names
        self.judge = Judge(names, self.stop)
        self.watches = (Entropy(names, self.judge), EntropyShift(names, self.judge))
        self.attached = True
        #: (step, path, event) of each stop.
        self.stops: list[tuple[int | None, str, Event]] = []
        rules = [rule(condition, number) for number, condition in enumerate(conditions)]
        self.judge.arm(rules, [watch.metric for watch in self.watches])
        armed = [w for w in self.watches if any(one.uses(w.metric) for one in rules)]
        for watch in self.watches:
            watch.arm([one for one in rules if one.uses(watch.metric)])
        self.agent.hooks.install()
        self.agent.taps.listen(armed)

    def stop(self, rules: Sequence[Rule], event: Event) -> bool:
        assert event.module is not None
        names = self.agent.names
        self.stops.append((names.step(event.module), names.path(event.module, event.module), event))
        return self.attached

    @property
    def places(self) -> list[tuple[int | None, str]]:
        return [(step, path) for step, path, _ in self.stops]


@contextmanager
def watching(*conditions: str) -> Iterator[Watching]:
    watched = Watching(conditions)
    try:
        yield watched
    finally:
        watched.agent.remove()
    assert not watched.agent.faults, watched.agent.faults


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The attentions that were looked at exactly."""
    found: list[Any] = []
    exact = Scored._exact

    def counted(self: Scored) -> tuple[float, ...]:
        found.append(self)
        return exact(self)

    monkeypatch.setattr(Scored, "_exact", counted)
    return found


def batches(steps: int, seed: int = 0, length: int = 24) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        yield torch.randn(4, length, 8, generator=generator)


# entropy ---------------------------------------------------------------------------------------


def test_it_stops_at_the_layer_and_head_whose_attention_collapses() -> None:
    model = Model()
    with watching('entropy("*") < 0.1') as watched:
        for step, x in enumerate(batches(4)):
            model.layers[1].sharpness[1] = 50.0 if step == 2 else 1.0
            model(x)
        assert watched.places == [(2, "layers.1")]
        event = watched.stops[0][2]
        assert event.name == "entropy"
        assert "of head 1 in" in event.headline
        assert event.value is not None and event.value < 0.1
        assert event.entered is event.module is model.layers[1]
        assert set(event.values) == {"query", "key", "mask"}
        assert any("24 queries and 24 keys" in sentence for sentence in event.sentences)


def test_it_stops_once_and_again_after_it_was_false() -> None:
    model = Model(1)
    sharp = [50.0, 50.0, 1.0, 50.0, 50.0]
    with watching('entropy("layers.*") < 0.1') as watched:
        for factor, x in zip(sharp, batches(5)):
            model.layers[0].sharpness[0] = factor
            model(x)
        assert watched.places == [(0, "layers.0"), (3, "layers.0")]


def test_a_stop_that_nobody_sees_is_not_spent() -> None:
    model = Model(1)
    model.layers[0].sharpness[0] = 50.0
    with watching('entropy("*") < 0.1') as watched:
        watched.attached = False
        inputs = list(batches(3))
        model(inputs[0])
        watched.attached = True
        model(inputs[1])
        model(inputs[2])
        assert watched.places == [(0, "layers.0"), (1, "layers.0")]


def test_only_what_the_condition_looks_at_is_looked_at(looks: list[Any]) -> None:
    model = Model()
    with watching('entropy("layers.1") < 2') as watched:
        model(next(batches(1)))
        assert {path for _, path in watched.places} == {"layers.1"}
    assert len(looks) == 1


def test_the_whole_batch_is_looked_at_only_on_suspicion(looks: list[Any]) -> None:
    model = Model()
    with watching('entropy("*") < 0.1') as watched:
        for x in batches(5):
            model(x)
        assert not looks
        model.layers[0].sharpness[0] = 50.0
        model(next(batches(1)))
        assert len(looks) == 1 and len(watched.stops) == 1


def test_an_estimate_alone_is_not_enough(looks: list[Any]) -> None:
    """The rows that the estimate sees collapse; the batch as a whole does not."""
    model = Model(1)
    with watching('entropy("*") < 0.3') as watched:
        x = torch.randn(32, 24, 8, generator=torch.Generator().manual_seed(0))
        x[::8] *= 30
        model(x)
        assert watched.stops == []
    assert len(looks) == 1


def test_conditions_combine_it_with_others() -> None:
    model = Model(1)
    model.layers[0].sharpness[0] = 50.0
    with watching('entropy("*") < 0.1 and step >= 2') as watched:
        for x in batches(4):
            model(x)
        assert watched.places == [(2, "layers.0")]


def test_checkpointed_blocks_count_once() -> None:
    model = Model(1)
    model.layers[0].sharpness[0] = 50.0
    with watching('entropy("*") < 0.1') as watched:
        x = next(batches(1)).requires_grad_()
        checkpoint(model.layers[0], x, use_reentrant=False).sum().backward()
        assert len(watched.stops) == 1


def test_nan_is_left_to_the_nonfinite_watch() -> None:
    model = Model(1)
    with watching('not (entropy("*") > 0.5)', 'entropy_shift("*") < 100') as watched:
        for x in batches(40):
            model(x)
        assert len(watched.stops) == 2  # the shift of each head is known
        model(next(batches(1)) * float("nan"))
        assert len(watched.stops) == 2


# entropy_shift ---------------------------------------------------------------------------------

SHIFTED = 'entropy_shift("*") > 4'


def run(watched: Watching, model: Model, steps: int, seed: int = 0, length: int = 24) -> None:
    for x in batches(steps, seed, length):
        model(x)


@pytest.mark.parametrize(("factor", "direction"), [(3.0, "fell"), (0.2, "rose")])
def test_a_sudden_change_stops_in_its_step(factor: float, direction: str) -> None:
    model = Model()
    with watching(SHIFTED) as watched:
        run(watched, model, 60)
        assert watched.stops == []
        model.layers[1].sharpness[0] = factor
        run(watched, model, 1, seed=1)
        assert watched.places == [(60, "layers.1")]
        event = watched.stops[0][2]
        assert event.name == "entropy_shift"
        assert f"of head 0 {direction} to" in event.headline
        assert event.value is not None and event.value > 4
        assert "over 60 steps in training mode" in event.sentences[0]


def test_a_change_of_less_than_a_twentieth_is_not_sudden() -> None:
    model = Model(1)
    with watching(SHIFTED) as watched:
        x = next(batches(1))
        for _ in range(60):
            model(x)  # no noise at all
        before = Scored(x[:, None], x[:, None]).exact[0]
        model.layers[0].sharpness = [1.05, 1.05]
        after = Scored(x[:, None] * 1.05, x[:, None]).exact[0]
        assert 0.005 < abs(after - before) < 0.05
        model(x)
        assert watched.stops == []


def test_a_slow_change_is_gone_along_with() -> None:
    model = Model(1)
    with watching(SHIFTED) as watched:
        for step, x in enumerate(batches(150)):
            model.layers[0].sharpness = [1 + max(0, step - 50) * 0.01] * 2
            model(x)
        assert watched.stops == []


def test_nothing_is_known_in_the_first_thirty_steps() -> None:
    model = Model(1)
    with watching('entropy_shift("*") >= 0') as watched:
        run(watched, model, 30)
        assert watched.stops == []
        run(watched, model, 1)
        assert watched.places == [(30, "layers.0")] * 2


def test_training_and_evaluation_are_not_compared() -> None:
    class Drops(Model):
        def forward(self, x: Tensor) -> Tensor:
            self.layers[0].sharpness = [1.0 if self.training else 3.0] * 2
            return super().forward(x)

    model = Drops(1)
    with watching(SHIFTED) as watched:
        for round in range(12):
            model.train(round % 2 == 0)
            run(watched, model, 10, seed=round)
        assert watched.stops == []
        model.train()
        model(next(batches(1)) * 3)
        assert len(watched.stops) == 2


def test_lengths_are_not_compared() -> None:
    model = Model(1)
    with watching(SHIFTED) as watched:
        for round in range(12):
            length = (24, 200)[round % 2]
            model.layers[0].sharpness = [1.0 if length == 24 else 2.0] * 2
            run(watched, model, 10, seed=round, length=length)
        assert watched.stops == []


def test_a_shared_layer_is_compared_with_its_own_turn() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Attention()

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) + self.layer(x * 2)

    model = Shared()
    with watching(SHIFTED, 'entropy("*") < 0.02') as watched:
        run(watched, model, 60)  # type: ignore[arg-type]
        assert watched.stops == []


def test_it_costs_no_exact_look_while_nothing_happens(looks: list[Any]) -> None:
    model = Model()
    with watching(SHIFTED) as watched:
        run(watched, model, 200)
        assert watched.stops == []
    assert len(looks) < 0.02 * 200 * 2


def test_running_means_last_as_long_as_their_condition() -> None:
    model = Model(1)
    with watching('entropy_shift("*") >= 0') as watched:
        run(watched, model, 31)
        assert len(watched.stops) == 2
        shift = watched.watches[1]
        shift.arm([rule(SHIFTED)])
        assert shift._kinds
        shift.arm([])
        assert not shift._kinds


def test_training_is_bit_identical() -> None:
    def train(armed: bool) -> list[Tensor]:
        torch.manual_seed(1)
        model = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True), 2
        )
        optimizer = torch.optim.AdamW(model.parameters())
        conditions = (SHIFTED, 'entropy("*") < 0.99')
        with watching(*(conditions if armed else ())) as watched:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.randn(2, 9, 16)).square().mean().backward()
                optimizer.step()
            assert bool(watched.stops) == armed
        return [*model.parameters(), torch.rand(2)]

    for one, other in zip(train(False), train(True)):
        assert torch.equal(one, other)

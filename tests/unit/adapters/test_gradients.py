"""What the adapters for GradScaler and gradient clipping tell, from real training steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from tests.unit.agent.tapped import Tapped, tapped


def training() -> tuple[nn.Linear, torch.optim.Optimizer, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1), torch.randn(4, 3)


def scales(agent: Tapped, model: nn.Module) -> list[float | None]:
    return [agent.taps.scaling.scale_of(parameter) for parameter in model.parameters()]


# Scaling ---------------------------------------------------------------------------------------


def test_gradients_are_scaled_until_they_are_unscaled() -> None:
    model, optimizer, x = training()
    other = nn.Linear(3, 2)
    second = torch.optim.SGD(other.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
    with tapped("gradients") as agent:
        assert scales(agent, model) == [None, None]
        scaler.scale(model(x).sum() + other(x).sum()).backward()
        assert scales(agent, model) == scales(agent, other) == [8.0, 8.0]
        assert agent.taps.scaling.scale_of(None) == 8.0
        scaler.unscale_(optimizer)
        assert scales(agent, model) == [None, None]
        assert scales(agent, other) == [8.0, 8.0]
        scaler.step(optimizer)
        scaler.step(second)  # calls unscale_ itself
        assert scales(agent, other) == [None, None]
        scaler.update()
        assert agent.scales == [16.0]
        assert agent.taps.scaling.scale_of(None) is None
        scaler.scale([model(x).sum()])
        assert scales(agent, model) == [16.0, 16.0]


def test_a_skipped_step_lowers_the_scale() -> None:
    model, optimizer, x = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with tapped("gradients") as agent:
        scaler.scale(model(x).sum() * float("inf")).backward()
        assert agent.taps.scaling.is_scaled(model.weight)
        scaler.step(optimizer)
        scaler.update()
        assert agent.scales == [4.0]


def test_a_scaler_that_is_not_enabled_says_nothing() -> None:
    model, optimizer, x = training()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with tapped("gradients") as agent:
        scaler.scale(model(x).sum()).backward()
        assert scales(agent, model) == [None, None]
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        assert agent.scales == []


def test_the_scale_is_not_read_before_it_is_asked_for() -> None:
    class Unread(torch.Tensor):
        def __float__(self) -> float:
            raise AssertionError("this would wait for the device")

    model, optimizer, x = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with tapped("attention") as agent:
        agent.taps.listen([], ["gradients"])
        scaler.scale(model(x).sum()).backward()
        scaler._scale = scaler._scale.as_subclass(Unread)  # type: ignore[union-attr]
        scaler.scale(model(x).sum()).backward()
        scaler.unscale_(optimizer)
        assert not agent.taps.scaling.is_scaled(model.weight)


def test_what_was_scaled_is_forgotten_when_nobody_listens() -> None:
    model, _, x = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with tapped("gradients") as agent:
        scaling = agent.taps.scaling
        scaler.scale(model(x).sum()).backward()
        agent.taps.listen([])
        assert agent.taps.scaling is scaling and scales(agent, model) == [None, None]


# Clipping --------------------------------------------------------------------------------------


def clipped(
    parameters: Callable[[nn.Module], Any], *args: Any, clip: Any = None, **kwargs: Any
) -> tuple[nn.Module, list[Any]]:
    model, _, x = training()
    model(x).sum().backward()
    with tapped("gradients") as agent:
        (clip or nn.utils.clip_grad_norm_)(parameters(model), *args, **kwargs)
        return model, agent.clips


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "a generator of the module": lambda model: model.parameters(),
    "a list": lambda model: list(model.parameters()),
    "a tuple": lambda model: tuple(model.parameters()),
}


@pytest.mark.parametrize("way", list(WAYS))
def test_the_norm_before_clipping_is_told_with_the_parameters(way: str) -> None:
    plain, _, x = training()
    plain(x).sum().backward()
    gradients = [
        parameter.grad.flatten() for parameter in plain.parameters() if parameter.grad is not None
    ]
    norm = float(torch.cat(gradients).norm())
    for call in ({"max_norm": 0.5}, {"max_norm": 0.5, "norm_type": 2}):
        model, clips = clipped(WAYS[way], **call)
        [(owned, total)] = clips
        assert total == pytest.approx(norm)
        assert list(map(id, owned)) == list(map(id, model.parameters()))
        assert float(nn.utils.get_total_norm([p.grad for p in model.parameters()])) < 0.51  # type: ignore[misc]


def test_a_single_tensor() -> None:
    model, [(owned, _)] = clipped(lambda model: model.weight, 0.5)
    assert len(owned) == 1 and owned[0] is model.weight


def test_parameters_that_only_an_iterator_knows_are_not_known() -> None:
    unknowable: list[Callable[[nn.Module], Iterable[Any]]] = [
        lambda model: (p for p in model.parameters() if p.requires_grad),
        lambda model: filter(lambda p: p.requires_grad, [model.weight]),
        lambda model: iter(list(model.parameters())),
    ]
    for way in unknowable:
        _, [(owned, total)] = clipped(way, 0.5)
        assert owned == () and total > 0.5

    def begun(model: nn.Module) -> Any:
        generator = model.parameters()
        next(generator)
        return generator

    model, [(owned, _)] = clipped(begun, 0.01)
    assert owned == ()
    assert model.bias.grad.norm() <= 0.011 < model.weight.grad.norm()  # type: ignore[union-attr, operator]


def test_other_norms_are_not_told() -> None:
    for norm_type in (1.0, float("inf"), "inf"):
        _, clips = clipped(lambda model: model.parameters(), 0.5, norm_type)
        assert clips == []
        _, clips = clipped(lambda model: model.parameters(), 0.5, norm_type=norm_type)
        assert clips == []


def test_the_norm_of_scaled_gradients_is_told_unscaled() -> None:
    model, _, x = training()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with tapped("gradients") as agent:
        model(x).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        model.zero_grad()
        scaler.scale(model(x).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
        (_, plain), (_, scaled) = agent.clips
        assert scaled == pytest.approx(plain)


# Frameworks, which call the same functions -------------------------------------------------------


def test_accelerate_clips_through_torch() -> None:
    from accelerate import Accelerator

    model, optimizer, x = training()
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    with tapped("gradients") as agent:
        accelerator.backward(model(x).sum())
        accelerator.clip_grad_norm_(model.parameters(), 0.5)
        [(owned, total)] = agent.clips
        assert len(owned) == 2 and total > 0.5


def test_the_trainer_of_transformers_clips_through_torch(tmp_path: Any) -> None:
    import transformers as hf

    config = hf.GPT2Config(
        n_embd=16, n_head=2, n_layer=1, n_positions=8, vocab_size=20, bos_token_id=0, eos_token_id=0
    )
    model = hf.GPT2LMHeadModel(config)
    tokens = torch.randint(20, (8,))
    trainer = hf.Trainer(
        model,
        hf.TrainingArguments(
            str(tmp_path), max_steps=2, report_to=[], save_strategy="no", use_cpu=True,
            disable_tqdm=True, max_grad_norm=0.1,
        ),
        train_dataset=[{"input_ids": tokens, "labels": tokens}] * 4,  # type: ignore[arg-type]
    )  # fmt: skip
    with tapped("attention", "gradients") as agent:
        trainer.train()
        assert len(agent.clips) == 2
        assert {len(owned) for owned, _ in agent.clips} == {len(list(model.parameters()))}
        assert agent.paths == ["transformer.h.0.attn"] * 2

"""The layer events of a step come in the order of hooks on the modules themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tensorpoint.agent.hooks import Hooks
from tensorpoint.agent.modules import Names
from tensorpoint.agent.ops.state import Entries
from tensorpoint.agent.stepping.stepper import Stepper

#: Class of the model, and what its config needs besides the sizes.
ARCHITECTURES = (
    *("Albert", "Bert", "Bloom", "Electra", "Falcon", "GPT2", "GPTNeoX", "Gemma", "Granite"),
    *("Llama", "MPNet", "Mistral", "Mixtral", "OPT", "Olmo", "Phi", "Phi3", "Qwen2", "Roberta"),
    *("StableLm", "Starcoder2", "XGLM"),
)
SIZES = {
    **dict.fromkeys(("vocab_size",), 64),
    **dict.fromkeys(
        ("hidden_size", "n_embd", "d_model", "embedding_size", "word_embed_proj_dim"), 16
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "attention_heads", "num_key_value_heads"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 32),
}
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def model_of(name: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config_class = getattr(transformers, f"{name}Config")
    default = config_class()
    config = config_class(
        **IDS, **{key: value for key, value in SIZES.items() if hasattr(default, key)}
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}Model")(config)


@contextlib.contextmanager
def hooked(model: nn.Module, seen: list[tuple[str, str]]) -> Iterator[None]:
    """Note what hooks on each module see."""
    handles: list[Any] = []
    for path, module in model.named_modules():
        handles.append(
            module.register_forward_pre_hook(
                lambda _, args, path=path: seen.append(("entry", path))
            )
        )
        handles.append(
            module.register_forward_hook(
                lambda _, args, output, path=path: seen.append(("exit", path))
            )
        )
    yield
    for handle in handles:
        handle.remove()


@contextlib.contextmanager
def traced(events: list[dict[str, Any]]) -> Iterator[Stepper]:
    """List the layer events of the step that is made inside."""
    names, faults = Names(), []
    hooks = Hooks(names, lambda culprit, error: faults.append(error))

    def switch() -> None:
        hooks.on_enter = (stepper.on_enter,) if stepper.is_on else ()
        hooks.on_leave = (stepper.on_leave,) if stepper.is_on else ()
        hooks.listen(())
        hooks.install() if stepper.is_on else hooks.remove()

    stepper = Stepper(
        names,
        hooks,
        Entries(),
        lambda frame, body, values: False,
        switch,
        lambda culprit, error: faults.append(error),
    )
    stepper.trace(lambda part, is_last: events.extend(part))
    yield stepper
    stepper.stop()
    assert not faults
    assert not torch.nn.modules.module._global_forward_hooks


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_order_is_that_of_hooks(architecture: str) -> None:
    model = model_of(architecture)
    seen: list[tuple[str, str]] = []
    events: list[dict[str, Any]] = []
    with traced(events) as stepper, hooked(model, seen):
        output = model(torch.tensor([[1, 5, 6, 7]]))
        stepper.on_backward(())  # as `gradients` does
        output[0].sum().backward()
        stepper.on_backward_end(())
    forward = [(event["phase"], event["path"]) for event in events if "back" not in event["phase"]]
    assert forward == seen
    assert len(seen) > 10
    backward = [event["path"] for event in events if event["phase"] == "backward entry"]
    assert backward[0] == ""
    # The blocks of a list come in the reverse of the forward's order.
    blocks: dict[str, list[int]] = {}
    for path in backward:
        around, _, number = path.rpartition(".")
        if number.isdecimal():
            blocks.setdefault(around, []).append(int(number))
    assert any(len(numbers) > 1 for numbers in blocks.values()) or architecture == "Albert"
    assert all(numbers == sorted(numbers, reverse=True) for numbers in blocks.values())
    inputs = [event["inputs"] for event in events if event["phase"] == "entry"]
    assert inputs[0][0] == {"name": "input_ids", "dtype": "int64", "shape": (1, 4)}

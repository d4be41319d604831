"""How often the exact operation and line of a planted fault is found.

A small transformer of one of five families, with random weights, gets a fault in the output of one
of its modules at a step: family, module, step, type and operation are drawn by the seed, the module
among those that the model calls. It counts as located if what is named first is the operation and
the line of the fault. Half of the seeds train: a loss and its backward follow the forward. In half
of those the forward stays finite and the fault is in the gradient: counted is then the operation
whose backward makes the first bad value, and its line in the forward.

The numeric cases are those of the tests (`tests/unit/agent/ops/faults.py`), among them the patterns
of bug reports: each in a module of its own, once with each finder.

    python -m tests.bench.located SEEDS
"""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

#: The family of the numeric cases.
NUMERIC = "numeric"
FAMILIES = ("gpt2", "llama", "bert", "t5", "vit")
_STEPS = 3


@dataclass
class Located:
    """One planted fault and what a finder named."""

    finder: str
    seed: int
    family: str
    module: str
    dtype: str
    trains: bool
    of_gradients: bool
    fault: str
    found_op: str | None
    found_line: int | None
    expected_op: str
    expected_line: int

    @property
    def exact(self) -> bool:
        """Whether operation and line are the fault's."""
        if self.found_op is None or self.found_line != self.expected_line:
            return False
        # Autograd's nodes are named without the underscores of private and in-place operations.
        return self.found_op.strip("_") == self.expected_op.strip("_")


def measure(seeds: Sequence[int]) -> list[Located]:
    """A fault for each seed and finder, and the numeric cases, in a process of their own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.located", *map(str, seeds)],
        cwd=Path(__file__).resolve().parents[2],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return [Located(**json.loads(line)) for line in done.stdout.splitlines()]


# The faults: each is one line, whose operation is the first to make a bad value ------------------


def _log_of_negative(x: Any) -> Any:
    import torch

    shifted = x - x.amax()
    return torch.log(shifted - 1.0)


def _root_of_negative(x: Any) -> Any:
    lowest = x.float().square() * -1.0 - 0.5
    return lowest.sqrt().to(x.dtype)


def _zero_by_zero(x: Any) -> Any:
    zero = x - x
    return zero / zero


def _one_by_zero(x: Any) -> Any:
    zero = (x - x).abs()
    return zero.reciprocal()


def _exp(x: Any) -> Any:
    large = x.float().abs() * 0 + 1000.0
    return large.exp().to(x.dtype)


def _half(x: Any) -> Any:
    import torch

    large = x.float() * 0 + 1e6
    return large.to(torch.float16).to(x.dtype)


def _power(x: Any) -> Any:
    base = x.float().abs() + 10.0
    return (base**60.0).to(x.dtype)


def _product(x: Any) -> Any:
    large = x.float() * 0 + 1e25
    return (large * large).to(x.dtype)


def _masked_row(x: Any) -> Any:
    import torch

    masked = x.masked_fill(torch.ones_like(x, dtype=torch.bool), float("-inf"))
    return masked.softmax(-1)


def _inverse_cosine(x: Any) -> Any:
    import torch

    beyond = x.float() * 0 + 1.5
    return torch.acos(beyond).to(x.dtype)


def _in_place(x: Any) -> Any:
    copy = x.clone()
    copy.div_(0.0)
    return copy


FAULTS: tuple[tuple[Callable[[Any], Any], str, str], ...] = (
    (_log_of_negative, "log", "torch.log("),
    (_root_of_negative, "sqrt", ".sqrt()"),
    (_zero_by_zero, "div", "zero / zero"),
    (_one_by_zero, "reciprocal", ".reciprocal()"),
    (_exp, "exp", ".exp()"),
    (_half, "_to_copy", "torch.float16"),
    (_power, "pow", "base**60.0"),
    (_product, "mul", "large * large"),
    (_masked_row, "_softmax", ".softmax("),
    (_inverse_cosine, "acos", "torch.acos("),
    (_in_place, "div_", ".div_("),
)


# The same where only the gradient is bad: a slope that is infinite, or 0/0 -----------------------


def _slope_of_norm(x: Any) -> Any:
    squares = (x.float() * 0).square().sum(-1, keepdim=True)
    return x + squares.sqrt().to(x.dtype)


def _slope_of_power(x: Any) -> Any:
    zero = x.float().abs() * 0
    return x + (zero**0.5).to(x.dtype)


def _slope_of_arc(x: Any) -> Any:
    one = x.float() * 0 + 1.0
    return x + one.acos().to(x.dtype)


def _masked_log(x: Any) -> Any:
    import torch

    zero = x.float() * 0
    safe = torch.where(zero > 0, zero.log(), zero)
    return x + safe.to(x.dtype)


def _masked_quotient(x: Any) -> Any:
    import torch

    zero = x.float() * 0
    safe = torch.where(zero > 0, 1.0 / zero, zero)
    return x + safe.to(x.dtype)


OF_GRADIENTS: tuple[tuple[Callable[[Any], Any], str, str], ...] = (
    (_slope_of_norm, "sqrt", ".sqrt()"),
    (_slope_of_power, "pow", "zero**0.5"),
    (_slope_of_arc, "acos", ".acos()"),
    (_masked_log, "log", ".log()"),
    (_masked_quotient, "reciprocal", "1.0 / zero"),
)


# One fault ---------------------------------------------------------------------------------------


def _model(family: str) -> tuple[Any, Callable[[], dict[str, Any]]]:
    """A tiny model and a maker of batches."""
    import torch
    import transformers

    def ids() -> Any:
        return torch.randint(0, 60, (2, 9))

    text: dict[str, Any] = {"vocab_size": 60, "bos_token_id": 0, "eos_token_id": 1}
    if family == "gpt2":
        config = transformers.GPT2Config(**text, n_positions=16, n_embd=32, n_layer=3, n_head=4)
        return transformers.GPT2LMHeadModel(config), lambda: {"input_ids": ids()}
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    heads: dict[str, Any] = {"num_attention_heads": 4}
    if family == "llama":
        config = transformers.LlamaConfig(**text, **sizes, **heads, num_key_value_heads=2)
        return transformers.LlamaForCausalLM(config), lambda: {"input_ids": ids()}
    if family == "bert":
        config = transformers.BertConfig(**text, **sizes, **heads)
        return transformers.BertModel(config), lambda: {"input_ids": ids()}
    if family == "t5":
        config = transformers.T5Config(
            **text, d_model=32, d_kv=8, d_ff=48, num_layers=3, num_heads=4
        )
        return transformers.T5EncoderModel(config), lambda: {"input_ids": ids()}
    config = transformers.ViTConfig(**sizes, **heads, image_size=16, patch_size=8)
    return transformers.ViTModel(config), lambda: {"pixel_values": torch.randn(2, 3, 16, 16)}


def plant(seed: int, finder: str) -> Located:
    """Plant the fault of this seed, run the model, and see what the finder names."""
    import torch

    from tests.bench.finders import FINDERS, Named

    draw = random.Random(seed)
    torch.manual_seed(seed)
    family = draw.choice(FAMILIES)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    fault, operation, text = draw.choice(FAULTS)
    at, trains, of_gradients = draw.randrange(_STEPS), seed % 2 == 0, seed % 4 == 0
    model, batch = _model(family)
    model.to(dtype).train(draw.random() < 0.5)
    names = _called(model, _cast(batch(), dtype))
    if of_gradients:
        fault, operation, text = draw.choice(OF_GRADIENTS)
        names = [name for name in names if "pooler" not in name]  # the loss is not of its output
    name = draw.choice(names)
    module = model.get_submodule(name)
    forward, steps_left = module.forward, [at]

    def faulty(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        return output if steps_left[0] else fault(output)

    module.forward = faulty
    named = Named()
    with FINDERS[finder](model, named), torch.set_grad_enabled(trains):
        for steps_left[0] in range(at, -1, -1):
            output = model(**_cast(batch(), dtype))[0]
            if trains:
                output.float().square().mean().backward()
    source, first = inspect.getsourcelines(fault)
    return Located(
        finder=finder,
        seed=seed,
        family=family,
        module=name,
        dtype=str(dtype).removeprefix("torch."),
        trains=trains,
        of_gradients=of_gradients,
        fault=fault.__name__.strip("_"),
        found_op=named.op,
        found_line=named.line,
        expected_op=operation,
        expected_line=first + next(n for n, code in enumerate(source) if text in code),
    )


def numeric_case(fault: Callable[[Any], Any], finder: str, *, of_gradients: bool) -> Located:
    """One of the tests' faults, in a step with its backward."""
    import torch
    from torch import nn

    from tests.bench.finders import FINDERS, Named
    from tests.unit.agent.ops.faults import expected

    class Case(nn.Module):
        def forward(self, x: Any) -> Any:
            return fault(x)

    torch.manual_seed(0)
    model, named = nn.Sequential(nn.Linear(4, 4), Case(), nn.Dropout(0.1)), Named()
    with FINDERS[finder](model, named):
        model(torch.randn(3, 4)).square().sum().backward()
    wanted = expected(fault)
    return Located(
        finder=finder,
        seed=0,
        family=NUMERIC,
        module="1",
        dtype="float32",
        trains=True,
        of_gradients=of_gradients,
        fault=fault.__name__,
        found_op=named.op,
        found_line=named.line,
        expected_op=wanted.op,
        expected_line=wanted.line,
    )


def _cast(inputs: dict[str, Any], dtype: Any) -> dict[str, Any]:
    return {
        key: value.to(dtype) if value.is_floating_point() else value
        for key, value in inputs.items()
    }


def _called(model: Any, inputs: dict[str, Any]) -> list[str]:
    """The layers without layers of their own that a forward calls and that return one tensor.

    An attention that is fused leaves its dropout out.
    """
    import torch

    names: set[str] = set()

    def note(name: str, output: object) -> None:
        if isinstance(output, torch.Tensor) and output.is_floating_point():
            names.add(name)

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: note(name, output))
        for name, module in model.named_modules()
        if name and not list(module.children())
    ]
    model(**inputs)
    for handle in handles:
        handle.remove()
    return sorted(names)


def _main(seeds: Sequence[str]) -> None:
    from tests.bench.finders import FINDERS
    from tests.unit.agent.ops.faults import BACKWARD, FORWARD

    for seed in map(int, seeds):
        for finder in FINDERS:
            print(json.dumps(asdict(plant(seed, finder))), flush=True)
    for cases in (FORWARD, BACKWARD):
        for case in cases:
            for finder in FINDERS:
                found = numeric_case(case, finder, of_gradients=cases is BACKWARD)
                print(json.dumps(asdict(found)), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])

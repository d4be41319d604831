"""The table of rules, and its documentation."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from random import Random

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tensorpoint.agent.causes import RULES, explain
from tensorpoint.agent.causes.element import find
from tensorpoint.agent.ops.operation import Operation
from tests.unit.agent.causes.capture import INF, MARKS, NAN, captured, why

ROOT = Path(__file__).parents[4]
DOCS = (ROOT / "docs" / "causes.md").read_text(encoding="utf-8")


def test_names_are_unique_and_sources_are_issues_or_pages() -> None:
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert re.fullmatch(r"\w+#\d+|https://\S+|IEEE 754", rule.source), rule
        assert rule.ops


@cache
def marked() -> list[tuple[str, str, str]]:
    """Mark, rule and place of each test in this folder that stands for a rule."""
    files = sorted(Path(__file__).parent.glob("test_*.py"))
    modules = [importlib.import_module(f"{__package__}.{file.stem}") for file in files]
    return [
        (mark.name, rule, f"{module.__name__}.{name}")
        for module in modules
        for name, test in vars(module).items()
        for mark in getattr(test, "pytestmark", ())
        if mark.name in MARKS
        for rule in mark.args
    ]


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_each_rule_has_two_programs_and_a_near_miss(rule: str) -> None:
    places = {mark: place for mark, name, place in marked() if name == rule}
    missing = [mark for mark in MARKS if mark not in places]
    assert not missing, f"{rule!r} has no test marked as {' and '.join(missing)}"
    assert len(set(places.values())) == len(MARKS), places


def test_marks_name_rules() -> None:
    assert {rule for _, rule, _ in marked()} <= {rule.name for rule in RULES}


def test_the_documentation_lists_every_rule_with_its_source() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", DOCS, re.MULTILINE)[1:]
    assert rows == [
        (
            rule.name,
            ", ".join("all" if op == "*" else f"`{op}`" for op in sorted(rule.ops)),
            rule.source,
        )
        for rule in RULES
    ]


def test_the_example_of_the_documentation_runs() -> None:
    example = re.search(r"```python\n(.+?)```", DOCS, re.DOTALL)
    assert example is not None
    made: dict[str, object] = {
        "__name__": "tensorpoint.agent.causes.example",
        "__package__": "tensorpoint.agent.causes",
    }
    exec(compile(example[1], "causes.md", "exec"), made)
    (rule,) = made["RULES"]  # type: ignore[misc]
    assert rule.ops == {"special_zeta"}  # type: ignore[attr-defined]
    operation = captured(lambda: torch.special.zeta(torch.tensor([2.0, 1.0]), torch.tensor([1.0])))
    at = find(operation, {"self": "s"}, None)
    cause = rule.judge(operation, at)  # type: ignore[attr-defined]
    assert cause.cause == "zeta has a pole at 1: s at [1] is 1."


def test_the_rules_load_without_torch() -> None:
    code = "import sys, tensorpoint.agent.causes; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT / "server")


#: Arguments that the rules read.
_ARGUMENTS = re.findall(
    r"\w+",
    """self other alpha dim input weight bias mat1 mat2 mask target tensor1 tensor2 value exponent
    query key attn_mask A B x1 x2 v eps normalized_shape group groups padding ord grad_output
    output running_mean running_var training src keepdim correction scalars inv_scale targets
    input_lengths target_lengths vec tensor batch1 batch2 scale""",
)


@pytest.mark.parametrize("seed", range(4))
def test_no_rule_fails_on_odd_arguments(seed: int) -> None:
    random = Random(seed)
    shapes = [(), (0,), (2,), (3, 2), (1, 2), (2, 3, 2), (1, 2, 2, 2)]
    dtypes = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.long, torch.bool]
    numbers = [0, 1, 0.0, -1.0, 1e30, INF, -INF, NAN]

    def tensor() -> torch.Tensor:
        full = torch.full(random.choice(shapes), random.choice(numbers), dtype=torch.float64)
        return full.nan_to_num(0).to(random.choice(dtypes)) if random.random() < 0.3 else full

    def argument(name: str) -> object:
        if name in ("dim", "correction", "groups", "group"):
            return random.choice([None, 0, -1, [0]] if name == "dim" else [None, 1])
        if name == "normalized_shape":
            return [2]
        if name in ("training", "keepdim"):
            return random.random() < 0.5
        return random.choice([tensor, tensor, lambda: random.choice(numbers), lambda: None])()

    unusual = {"*", "conv1d", "conv2d", "conv3d", "convolution"}  # torch checks the shapes of those
    names = sorted({op for rule in RULES for op in rule.ops} - unusual)
    last: dict[str, Operation] = {}
    for name in names * 5:
        given = {key: argument(key) for key in _ARGUMENTS if random.random() < 0.8}
        output = torch.full(random.choice(shapes), random.choice([INF, -INF, NAN]))
        node = name.endswith("Backward")
        operation = Operation(
            name=random.choice(["div", "mul", "pow", "sub", "rsqrt"]) if node else name,
            full_name=name,
            arguments=given,
            outputs=(output.to(random.choice(dtypes[:4])),),
            phase="backward" if node else random.choice(["forward", "update"]),
            node=f"{name}0" if node else None,
            rounded=last,
        )
        explain(operation)
        last = {"self": operation, "other": operation}


def test_modes_of_the_program_see_nothing_of_it() -> None:
    class Counts(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counts.calls += 1
            return func(*args, **(kwargs or {}))

    operation = captured(lambda: torch.tensor([0.0]).log())
    with Counts():
        assert explain(operation) is not None
    assert Counts.calls == 0


def test_a_large_output_is_looked_at_in_pieces() -> None:
    x = torch.ones(70, 300_000)
    x[69, 299_999] = 0
    assert "at [69, 299999] is 0" in why(x.log)

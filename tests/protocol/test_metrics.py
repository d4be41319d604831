"""Every metric through the real adapter on a training loop: what stops, where, with which value."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tensorpoint.conditions import parse
from tests.protocol.dap import adapter_environment

pytestmark = [
    pytest.mark.xdist_group("metrics"),
    pytest.mark.usefixtures("resident_process"),
]

PROGRAM = """\
import math
import sys

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
torch.set_num_threads(1)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=40)
model = GPT2LMHeadModel(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
kept = []
for step in range(46):
    ids = torch.randint(40, (8, 24))
    if step == 40:  # what has to be seen
        with torch.no_grad():
            model.transformer.h[1].attn.c_attn.weight.mul_(30.0)
            model.transformer.h[0].mlp.c_fc.bias.fill_(-50.0)
        kept.append(torch.ones(20_000_000))
        for group in optimizer.param_groups:
            group["lr"] = 0.5
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    scaler.scale(loss * (1000.0 if step == 40 else 1.0)).backward()  # backward
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
    scaler.step(optimizer)  # step
    scaler.update(8.0 if step == 40 else None)  # scale
    if step == 40:
        break
"""
SCORES = """\
def surprise(output):
    return output.loss
"""

#: Condition, event, module, and the text of the line on top.
EXPECTED = [
    ("grad_norm() > 20", "grad_norm", "", "# clip"),
    ('grad_norm("transformer.h.1.mlp") > 5', "grad_norm", "transformer.h.1.mlp", "# backward"),
    ('grad_norm("lm_head.weight") > 5', "grad_norm", "transformer.wte", "# backward"),
    ('entropy("*.h.1.attn") < 0.5', "entropy", "transformer.h.1.attn", None),
    ("entropy_shift() > 6", "entropy_shift", "transformer.h.1.attn", None),
    ('absmax("*.c_attn") > 10', "absmax", "transformer.h.1.attn.c_attn", None),
    ('zero_fraction("*.mlp.act") > 0.9', "zero_fraction", "transformer.h.0.mlp.act", None),
    ("update_norm() > 5", "update_norm", "", "# step"),
    ("update_ratio() > 0.02 and optimizer_step > 3", "update_ratio", "", "# step"),
    ('update_ratio("*.ln_f") > 0.1', "update_ratio", "transformer.ln_f", "# step"),
    ('update_norm("*.h.1.*_fc.weight") > 0.5', "update_norm", "transformer.h.1.mlp.c_fc", "# step"),
    ('update_ratio("lm_head.weight") > 1', "update_ratio", "transformer.wte", "# step"),
    ("loss > 100", "loss", "", "# backward"),
    ("memory_growth() > 5e7 and step > 5", "memory_growth", "", "model("),
    ("scale() < 100", "scale", "", "# scale"),
    ('score("scores:surprise") > 3 and step > 39', "score", "", "model("),
    (
        'grad_norm("*.h.0.mlp") > 0 and absmax("*.h.0.mlp") > 0 and step > 39',
        *("grad_norm", "transformer.h.0.mlp", "# backward"),
    ),
]


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """All stops of one run with all conditions set."""
    folder = tmp_path_factory.mktemp("metrics")
    (folder / "scores.py").write_text(SCORES, encoding="utf-8")
    program = folder / "train.py"
    program.write_text(PROGRAM, encoding="utf-8")
    status, stops = run_json(program, [text for text, *_ in EXPECTED])
    assert status == 3
    return stops


def run_json(
    program: Path, conditions: list[str], *arguments: str
) -> tuple[int, list[dict[str, Any]]]:
    """The exit status and the stops of a run with these conditions."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tensorpoint", "run", "--json", "--on-stop", "continue"),
            *(item for text in conditions for item in ("--on", text)),
            *(str(program), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        env=adapter_environment(),
        check=False,
    )
    assert "a fault" not in done.stderr, done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("condition", "event", "module", "line"), EXPECTED)
def test_a_metric_stops_where_it_is_measured(
    stops: list[dict[str, Any]], condition: str, event: str, module: str, line: str | None
) -> None:
    mine = [stop for stop in stops if stop["condition"] == parse(condition).text]
    assert mine, sorted({stop["condition"] for stop in stops})
    assert {stop["step"] for stop in mine} == {40}, mine[0]["text"]
    first = mine[0]
    assert (first["event"], first["module"]) == (event, module)
    assert isinstance(first["value"], float)
    assert f"(step {first['step']})" in first["text"]
    source = Path(first["file"]).read_text(encoding="utf-8").splitlines()
    if line is None:
        assert "modeling_gpt2" in first["file"] or "sdpa_attention" in first["file"]
    else:
        assert line in source[first["line"] - 1]


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ('grad_norm("lm_head.weight") > 5', "2-norm of the gradient of parameter weight of"),
        (
            'update_norm("*.h.1.*_fc.weight") > 0.5',
            "2-norm of the change {} of parameter weight of",
        ),
        ('update_ratio("lm_head.weight") > 1', "to the parameters {} of parameter weight of"),
    ],
)
def test_a_stop_for_a_parameter_names_it_with_its_value(
    stops: list[dict[str, Any]], condition: str, words: str
) -> None:
    stop = next(stop for stop in stops if stop["condition"] == parse(condition).text)
    value = f"{stop['value']:.6g}"
    assert f"{words.format(value)} {stop['module']} ({stop['module_type']})" in stop["text"]
    assert value in stop["text"]


#: One head of two is made sharp, at once and in all steps from there on.
SHARP = """\
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

torch.manual_seed(0)
torch.set_num_threads(1)
config = GPT2Config(n_layer=2, n_embd=32, n_head=2, n_positions=32, vocab_size=40)
model = GPT2LMHeadModel(config)
model.set_attn_implementation(sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(42):
    ids = torch.randint(40, (8, 24))
    if step == 40:
        with torch.no_grad():
            model.transformer.h[1].attn.c_attn.weight[:, 16:32].mul_(200.0)
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SHIFT = re.compile(
    r"attention entropy of head (?P<head>\d) fell to (?P<value>\S+) in (?P<layer>\S+) .*"
    r"Its running mean is (?P<mean>\S+) with a standard deviation of (?P<deviation>\S+), over 40 "
    r"steps in training mode: a shift of (?P<shift>\S+) standard deviations",
    re.DOTALL,
)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_shift_of_entropy_names_layer_head_value_baseline_and_deviations(
    tmp_path: Path, attention: str
) -> None:
    program = tmp_path / "sharp.py"
    program.write_text(SHARP, encoding="utf-8")
    status, stops = run_json(program, ["entropy_shift() > 6"], attention)
    assert status == 3
    (stop,) = stops
    assert (stop["event"], stop["module"], stop["step"]) == (
        "entropy_shift",
        "transformer.h.1.attn",
        40,
    )
    found = SHIFT.search(stop["text"])
    assert found, stop["text"]
    assert (found["head"], found["layer"]) == ("1", "transformer.h.1.attn")
    value, mean, deviation, shift = (
        float(found[name]) for name in ("value", "mean", "deviation", "shift")
    )
    assert 0 < value < mean <= 1
    assert (value - mean) / deviation == pytest.approx(shift, rel=0.05)
    assert stop["value"] == pytest.approx(-shift, abs=0.1)

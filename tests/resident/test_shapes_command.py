"""`tensorpoint shapes` in processes of its own: what it prints, and what a hostile file can do."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import z3

from tensorpoint.shapes import trace
from tensorpoint.wire.shapes import ShapeRequest
from tests.conftest import Write

PROGRAMS = Path(__file__).parents[1] / "programs" / "shapes"
HOSTILE = """\
import os, subprocess, sys
import torch

print("printed")
sys.stdin.read()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x):
        print("printed", file=sys.stderr)
        {hostile}
        return self.fc(x)
"""


def shapes(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tensorpoint", "shapes", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_json_has_hints_diagnostics_and_the_status_of_a_check(tmp_path: Path) -> None:
    smt2 = tmp_path / "conditions.smt2"
    path = PROGRAMS / "branching.py"
    done = shapes(str(path), "--json", "--smt2", str(smt2))
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    table = json.loads(done.stdout)
    assert table["target"] == {"qualname": "Net", "constructor": "Net()"}
    assert table["inputs"] == [
        {"name": "x", "dtype": "f32", "shape": ["B", "T", "32"], "origin": "spec"}
    ]
    shown = {h["name"]: (h["dtype"], h["shape"]) for h in table["hints"]}
    assert shown["self.fc(x)"] == ("f32", ["B", "T", "8"])
    lines = path.read_text("utf-8").split("\n")
    [dead] = table["diagnostics"]
    assert (dead["code"], dead["severity"]) == ("dead-branch", "hint")
    assert lines[dead["line"] - 2].strip() == "# dead"
    solver = z3.Solver()
    solver.from_file(str(smt2))
    assert solver.check() == z3.sat
    size = int(str(solver.model()[z3.Int("T")]))
    assert size <= 100 and size % 2  # the way that was traced


def test_an_error_is_status_one_and_nothing_to_trace_is_two(write: Write) -> None:
    failed = shapes(str(PROGRAMS / "faults.py"), "--class", "Clash")
    assert failed.returncode == 1, failed.stderr
    assert "3x20 and 30x5" in failed.stdout
    nothing = shapes(str(write("x = 1\n")))
    assert nothing.returncode == 2 and "no class with a forward" in nothing.stderr
    assert "name a FILE or --object" in shapes().stderr
    assert "--config goes with --object" in shapes("x.py", "--config", "x.json").stderr
    both = shapes("--object", "transformers:LlamaModel", "--class", "LlamaMLP")
    assert both.returncode == 2 and "--class goes with a FILE" in both.stderr


def test_what_can_not_be_written_or_named_is_said_in_a_line(tmp_path: Path) -> None:
    path = PROGRAMS / "branching.py"
    done = shapes(str(path), "--smt2", str(tmp_path / "none" / "x.smt2"))
    assert done.returncode == 2 and "No such file" in done.stderr
    assert "Traceback" not in done.stderr
    done = shapes("--object", ":Net")
    assert done.returncode == 2 and "':Net' is not MODULE:CLASS" in done.stdout


@pytest.mark.parametrize(
    ("hostile", "said"),
    [
        ("while True: pass", "not within"),
        ("bytearray(100 << 30)", "MemoryError"),
        ("os._exit(3)", "it ended without an answer"),
        ("sys.exit(3)", "SystemExit"),
        ("os.fork()", "can't start processes"),
        ("input()", ""),
    ],
)
def test_a_hostile_file_harms_nobody(write: Write, hostile: str, said: str) -> None:
    path = write(HOSTILE.replace("{hostile}", hostile))
    request = ShapeRequest(str(path), path.read_text("utf-8"), symbolic=False)
    seconds = 8.0 if "while" in hostile else 60.0  # it computes all the while
    outcome = asyncio.run(trace(request, seconds=seconds))
    table = outcome.value
    text = outcome.error if table is None else " ".join(table.untraced)
    assert said in text, outcome
    assert text or (table and table.hints)


def test_an_installed_class_is_made_from_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "tiny.json"
    fields = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config.write_text(json.dumps({**fields, "intermediate_size": 64, "vocab_size": 99}))
    done = shapes("--object", "transformers:LlamaForCausalLM", "--config", str(config), "--json")
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)
    assert table["target"]["constructor"] == "LlamaForCausalLM(LlamaConfig(**config))"
    assert not table["diagnostics"] and not table["untraced"]
    shown = {h["name"]: h for h in table["hints"] if h["kind"] == "target"}
    assert shown["logits"]["shape"] == ["B", "T", "99"]
    assert shown["query_states"]["shape"] == ["B", "4", "T", "8"]
    confirmed = [h for h in table["hints"] if h["origin"] == "symbolic"]
    assert len(confirmed) >= 0.7 * len(table["hints"])


def test_a_project_a_pretrained_model_and_no_network(write: Write, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"  # without weights
    folder.mkdir()
    config = {"model_type": "bert", "hidden_size": 32, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    path = write(
        f"""
        import socket, subprocess
        import torch
        from transformers import AutoModel

        class Refused(Exception): ...

        def refused(do):
            try:
                do()
            except PermissionError:
                return True
            raise Refused

        class Net(torch.nn.Module):
            def __init__(self, kind):
                super().__init__()
                self.body = AutoModel.from_pretrained(kind)

            def forward(self, tokens):
                refused(lambda: socket.create_connection(("127.0.0.1", 9)))
                refused(lambda: socket.getaddrinfo("localhost", 80))
                refused(lambda: subprocess.run(["true"]))
                hidden = self.body(tokens).last_hidden_state
                return hidden

        def make():
            return Net({str(folder)!r})
        """
    )
    (tmp_path / "pyproject.toml").write_text(
        f"[[tool.tensorpoint.shapes]]\ntarget = '{path.name}:Net'\nfactory = 'make()'\n"
        "inputs = 'tokens: i64[B, T], T <= 9'\n",
        encoding="utf-8",
    )
    done = shapes(str(path), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    table = json.loads(done.stdout)
    assert table["target"]["constructor"] == "make()"
    shown = {h["name"]: h["shape"] for h in table["hints"] if h["kind"] == "target"}
    assert shown["hidden"] == ["B", "T", "32"], table
    (tmp_path / "pyproject.toml").write_text("[tool.tensorpoint]\nfactory = ''\n", encoding="utf-8")
    refused = shapes(str(path))
    assert refused.returncode == 2
    assert "pyproject.toml, [tool.tensorpoint]: it has 'factory'" in refused.stderr

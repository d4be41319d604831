"""`tensorpoint/facts`, `tp facts` and `tensorpoint run --facts` on real programs under debugpy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import STUBBED, Session, adapter_environment, eventually, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

NET = """\
import sys
import time
from pathlib import Path

import torch
from torch import nn

torch.manual_seed(0)  # one in 300 networks is dead: no unit passes anything on


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU()
        self.last = nn.Linear(8, 2)

    def forward(self, x):
        return self.last(self.act(self.first(x)))  # call layers


def train(steps, until=None, x=1.0):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    step = 0
    while step < steps or (until is not None and not until.exists()):
        optimizer.zero_grad()
        net(torch.full((3, 4), x)).square().mean().backward()
        optimizer.step()
        step += 1
        if until is not None:
            print("step", step, flush=True)
            time.sleep(0.02)
    return net


"""
FIVE_STEPS = NET + "net = train(5)\nprint('after')  # after training\n"
FOREVER = NET + "train(1, Path(__file__).with_suffix('.end'))\n"
#: A child by each way to start one; only those that run the model leave facts.
CHILDREN = (
    NET
    + """\
import multiprocessing
import subprocess


def idle():
    pass


if __name__ == "__main__":
    train(2)
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        for target in (lambda: train(3)) if method == "fork" else worker, idle:
            child = context.Process(target=target)
            child.start()
            child.join()
"""
).replace('if __name__ == "__main__"', 'def worker():\n    train(3)\n\n\nif __name__ == "__main__"')


@pytest.fixture
def program(tmp_path: Path) -> Any:
    def write(text: str) -> Path:
        path = tmp_path / "program.py"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def layers(body: dict[str, Any]) -> list[str]:
    return [layer["module"] for layer in body["layers"]]


# -- the request


def test_facts_of_a_stopped_program(program: Any) -> None:
    path = program(FIVE_STEPS)
    with Session() as session:
        session.launch(path, record=True, breakpoints={str(path): [line_of(path, "# after tr")]})
        session.stopped()
        body = session.request("tensorpoint/facts", history=True)
        assert layers(body) == ["", "first", "act", "last"]
        assert (body["step"], body["optimizer_step"]) == (4, 5)
        first = body["layers"][1]
        assert (first["file"], first["line"]) == (str(path), line_of(path, "# call layers"))
        assert first["outputs"][0]["shape"] == [3, 8]
        assert first["history"]["step"] == [0, 1, 2, 3, 4]
        weight = body["parameters"][0]
        assert (weight["parameter"], weight["step"], weight["age"]) == ("first.weight", 4, 0)
        assert weight["gradient_norm"] > 0 and weight["norm"] > 0
        assert layers(session.request("tensorpoint/facts", layers="*st")) == ["first", "last"]
        # The model called in the console is no step of the program's.
        session.console("__import__('__main__').net(__import__('torch').zeros(9, 4))")
        frame = session.frames({"threadId": 1})[0]["id"]
        session.request("evaluate", expression="net(torch.zeros(9, 4))", frameId=frame)
        body = session.request("tensorpoint/facts")
        assert body["layers"][1]["outputs"][0]["shape"] == [3, 8] and body["step"] == 4
        session.resume()
        assert session.exit_code() == 0


def test_the_tensor_view_has_the_recorded_numbers_over_steps(program: Any) -> None:
    """Of the newest step also before a table of samples is full."""
    path = program(FIVE_STEPS)
    with Session() as session:
        session.launch(path, record=True, breakpoints={str(path): [line_of(path, "# after tr")]})
        stopped = session.stopped()
        frame = session.frames(stopped)[0]["id"]

        def history(expression: str) -> Any:
            body = session.request(
                "tensorpoint/tensor", expression=expression, frameId=frame, parts=["history"]
            )
            return body["history"]

        facts = session.request("tensorpoint/facts", history=True)
        layer, weight = history("net.last"), history("net.last.weight")
        assert layer == next(
            item["history"] for item in facts["layers"] if item["module"] == "last"
        )
        assert weight == next(
            item["history"] for item in facts["parameters"] if item["parameter"] == "last.weight"
        )
        assert layer["step"] == weight["step"] == [0, 1, 2, 3, 4]
        assert all(isinstance(value, float) for value in layer["mean"] + weight["gradient_norm"])
        assert history("torch.ones(3)") is None
        session.resume()
        assert session.exit_code() == 0


def test_a_hover_on_a_module_is_of_its_last_call(program: Any) -> None:
    path = program(FIVE_STEPS)
    with Session() as session:
        session.launch(path, record=True, breakpoints={str(path): [line_of(path, "# after tr")]})
        stopped = session.stopped()
        hover = session.evaluate("net.last", stopped, "hover")
        (last,) = session.request("tensorpoint/facts", layers="last")["layers"]
        statistics = last["statistics"]
        assert statistics["step"] == last["step"] == 4
        assert hover.startswith("Linear(8, 2) 18 parameters f32 cpu train | output f32[3, 2] in st")
        assert f"in step 4 | µ {statistics['mean']:.3g} σ " in hover
        norm = session.evaluate("grad_norm(net.last)", stopped, "watch")
        assert hover.endswith(f"‖grad‖ {float(norm):.3g}")
        session.resume()
        assert session.exit_code() == 0


def test_facts_of_a_running_program_switched_on_and_off(program: Any) -> None:
    path = program(FOREVER)
    with Session() as session:
        session.launch(path)
        eventually(lambda: "step 1\n" in session.output("stdout"), "the first step")
        reason = session.refused("tensorpoint/facts")
        assert reason.startswith("tensorpoint/facts: not recorded: tp record on")
        body = session.request("tensorpoint/facts", record=True)
        assert body["recording"]
        eventually(lambda: session.request("tensorpoint/facts", record=True)["layers"], "facts")
        assert layers(session.request("tensorpoint/facts")) == ["", "first", "act", "last"]
        assert not session.request("tensorpoint/facts", record=False)["recording"]
        assert "not recorded" in session.refused("tensorpoint/facts")
        assert session.refused("tensorpoint/facts", layers=3)
        path.with_suffix(".end").touch()
        assert session.exit_code() == 0


def test_the_console(program: Any) -> None:
    path = program(FOREVER)
    with Session() as session:
        session.launch(path)
        eventually(lambda: "step 1\n" in session.output("stdout"), "the first step")
        assert session.console("tp facts").startswith("not recorded: tp record on")
        assert session.console("tp record on") == "facts are recorded"
        # Switched on within a step, the parameters' facts come before those of the first layer.
        eventually(lambda: "Linear" in session.console("tp facts 'fi*'"), "facts")
        shown = session.console("tp facts 'fi*'")
        assert "first.weight" in shown and "float32[3,8]" in shown and "last" not in shown
        assert "no layer matches" in session.console("tp facts nothing")
        assert session.console("tp record off") == "facts are not recorded"
        assert session.console("tp facts").startswith("not recorded")
        assert "tp facts [GLOB]" in session.console("tp help")
        path.with_suffix(".end").touch()
        assert session.exit_code() == 0


def test_facts_in_the_middle_of_a_forward(program: Any) -> None:
    path = program(FIVE_STEPS)
    with Session() as session:
        session.launch(
            path, record=True, functions=[{"name": "layer:last", "condition": "step == 2"}]
        )
        session.stopped()
        body = session.request("tensorpoint/facts")
        steps = {layer["module"]: layer["statistics"]["step"] for layer in body["layers"]}
        assert steps == {"": 1, "first": 2, "act": 2, "last": 1}
        session.resume()
        assert session.exit_code() == 0


def test_switching_off_leaves_no_hook(program: Any) -> None:
    path = program(FIVE_STEPS)
    with Session() as session:
        session.launch(
            path, filters=[], record=True, breakpoints={str(path): [line_of(path, "# after tr")]}
        )
        stopped = session.stopped()
        hooks = "len(torch.nn.modules.module._global_forward_hooks)"
        assert session.evaluate(hooks, stopped) == "1"
        session.console("tp record off")
        eventually(lambda: session.evaluate(hooks, stopped) == "0", "no hook")


@pytest.mark.usefixtures("cold")
def test_without_torch_and_without_a_module(program: Any) -> None:
    path = program("print('before')\nimport torch\nprint('after')\n")
    with Session() as session:
        session.launch(path, record=True, breakpoints={str(path): [1, 3]})
        stopped = session.stopped()
        assert "torch is not imported in process" in session.refused("tensorpoint/facts")
        assert "torch is not imported in process" in session.console("tp facts")
        assert session.request("tensorpoint/facts", record=True)["layers"] == []
        session.resume(stopped)
        session.stopped()
        assert "no module has returned" in session.refused("tensorpoint/facts")


def test_without_debugging_there_is_no_agent(program: Any) -> None:
    path = program("import time; time.sleep(60)")
    with Session() as session:
        session.initialize()
        session.send("launch", program=str(path), noDebug=True, record=True, python=sys.executable)
        eventually(lambda: session.seen("process"), "the program")
        assert "there is no agent" in session.refused("tensorpoint/facts")


@pytest.mark.parametrize("wrong", [{"record": "yes"}, {"factsFile": 3}])
def test_a_wrong_configuration_is_refused(program: Any, wrong: dict[str, Any]) -> None:
    path = program("pass")
    with Session() as session:
        session.initialize()
        reason = session.refused("launch", program=str(path), **STUBBED, **wrong)
        assert next(iter(wrong)) in reason


def test_a_file_from_the_launch_configuration_survives_a_detach(
    program: Any, tmp_path: Path
) -> None:
    path = program(FOREVER)
    with Session() as session:
        session.launch(path, factsFile="facts.json", cwd=str(tmp_path))
        eventually(lambda: "step 3\n" in session.output("stdout"), "some steps")
        session.request("disconnect", terminateDebuggee=True)
    assert layers(json.loads((tmp_path / "facts.json").read_text())) == ["", "first", "act", "last"]


def test_child_sessions_have_facts_of_their_own(program: Any) -> None:
    path = program(
        FIVE_STEPS.replace(
            "net = train(5)", "import os\nif os.fork():\n    os.wait()\nelse:\n    net = train(3)"
        )
    )
    with Session() as session:
        session.launch(path, record=True)
        child = session.child(breakpoints={str(path): [line_of(path, "# after tr")]})
        try:
            child.stopped()
            body = child.request("tensorpoint/facts")
            assert (body["step"], layers(body)) == (2, ["", "first", "act", "last"])
            assert "nothing is recorded" in session.refused("tensorpoint/facts")
            child.resume()
        finally:
            child.close()


# -- tensorpoint run --facts FILE


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tensorpoint", "run", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=adapter_environment(),
        check=False,
    )


@pytest.mark.parametrize(("end", "status"), [("", 0), ("raise ValueError", 1), ("sys.exit(5)", 5)])
def test_run_leaves_facts_however_the_program_ends(
    program: Any, tmp_path: Path, end: str, status: int
) -> None:
    file = tmp_path / "facts.json"
    file.write_text("old")
    done = run("--facts", file, program(FIVE_STEPS + end))
    assert done.returncode == status, done.stderr
    facts = json.loads(file.read_text())
    assert layers(facts) == ["", "first", "act", "last"]
    assert facts["layers"][0]["history"]["step"] == [0, 1, 2, 3, 4]
    assert {path.name for path in tmp_path.iterdir()} == {"facts.json", "program.py"}


def test_the_facts_of_a_long_run_are_those_of_its_last_steps(program: Any, tmp_path: Path) -> None:
    file, sizes = tmp_path / "facts.json", []
    for steps, models in ((100, 1), (2000, 1), (20, 60)):
        done = run(
            "--facts", file, program(NET + f"for _ in range({models}):\n    train({steps})\n")
        )
        assert done.returncode == 0, done.stderr
        facts = json.loads(file.read_text())
        assert (len(facts["roots"]), layers(facts)) == (1, ["", "first", "act", "last"])
        assert facts["layers"][0]["history"]["step"] == list(range(max(steps - 64, 0), steps))
        sizes.append(file.stat().st_size)
    assert sizes[2] < sizes[0] and sizes[1] < 1.1 * sizes[0], sizes


def test_run_leaves_facts_at_the_stop_that_ends_it(program: Any, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    done = run("--facts", file, program(NET + "train(3)\ntrain(1, x=float('nan'))\n"))
    assert done.returncode == 3, done.stderr
    facts = json.loads(file.read_text())
    assert facts["optimizer_step"] == 3 and len(facts["layers"]) >= 3


def test_run_leaves_facts_of_a_program_that_is_killed(program: Any, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    path = program(NET + "import os\nprint(os.getpid(), flush=True)\ntrain(1, Path('never'))\n")
    running = subprocess.Popen(
        [sys.executable, "-m", "tensorpoint", "run", "--facts", str(file), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=adapter_environment(),
    )
    assert running.stdout is not None
    try:
        pid = int(running.stdout.readline())
        eventually(
            lambda: file.exists() and layers(json.loads(file.read_text())),
            "the facts that are left every ten seconds",
        )
        os.kill(pid, signal.SIGKILL)
        assert running.wait(30) == 128 + signal.SIGKILL
    finally:
        running.kill()
    assert layers(json.loads(file.read_text())) == ["", "first", "act", "last"]


def test_run_leaves_facts_of_each_process_that_has_some(program: Any, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    done = run("--facts", file, program(CHILDREN))
    assert done.returncode == 0, done.stderr
    children = list(tmp_path.glob("facts.json.*"))
    assert len(children) == 2
    assert json.loads(file.read_text())["step"] == 1
    for path in children:
        facts = json.loads(path.read_text())
        assert path.name == f"facts.json.{facts['pid']}" and facts["step"] == 2


@pytest.mark.usefixtures("cold")
def test_a_program_without_torch_leaves_a_file_that_says_so(program: Any, tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    done = run("--facts", file, program("pass"))
    assert done.returncode == 0, done.stderr
    assert "torch is not imported" in json.loads(file.read_text())["note"]


def test_a_file_that_cannot_be_written_is_refused_before_the_program_starts(
    program: Any, tmp_path: Path
) -> None:
    path = program("print('started')")
    for file in (tmp_path, tmp_path / "none" / "facts.json"):
        began = time.monotonic()
        done = run("--facts", file, path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("tensorpoint: --facts: "), done.stderr
        assert time.monotonic() - began < 20

"""`tensorpoint.watch`: a program stops itself, without a debugger."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import traceback
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hook_tables
from torch.optim import Optimizer
from torch.utils.checkpoint import checkpoint

import tensorpoint
from tensorpoint import TensorpointHit, TensorpointWarning
from tests.protocol.dap import adapter_environment

HERE = Path(__file__)


class Log(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.log(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.log = Log()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.log(x)  # call log


GOOD, BAD = torch.ones(2), -torch.ones(2)


def line(text: str) -> int:
    """The line of this file that ends with a comment."""
    lines = HERE.read_text(encoding="utf-8").splitlines()
    found = [number for number, code in enumerate(lines, 1) if code.endswith(f"# {text}")]
    assert len(found) == 1, (text, found)
    return found[0]


def hooks() -> list[object]:
    """What is in torch's global hook tables."""
    names = [name for name in vars(hook_tables) if name.startswith("_global_")]
    tables = [getattr(hook_tables, name) for name in names]
    optimizers = vars(sys.modules[Optimizer.__module__])
    tables += [table for name, table in optimizers.items() if name.startswith("_global_")]
    return [key for table in tables if isinstance(table, dict) for key in table]


@pytest.fixture(autouse=True)
def _no_hook_is_left() -> Any:
    assert not hooks()
    yield
    assert not hooks()


def python(code: str, *flags: str) -> str:
    """What a program prints that is run with the package on its path."""
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        check=False,
        capture_output=True,
        text=True,
        env=adapter_environment(),
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Raise -----------------------------------------------------------------------------------------


def test_a_hit_is_raised_from_the_line_that_called_the_layer() -> None:
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        Net()(BAD)
    stop = caught.value.stop
    assert (stop.module, stop.module_type, stop.event) == ("log", "Log", "nonfinite.forward")
    assert (stop.file, stop.line, stop.function) == (str(HERE), line("call log"), "forward")
    assert stop.condition == 'nonfinite("*")' and stop.value == 2
    assert str(caught.value) == stop.text
    assert stop.text.startswith(
        "NaN in the output of log (Log), made by log, called at test_watch.py:"
    )


def test_the_traceback_ends_at_that_line() -> None:
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        Net()(BAD)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(HERE), line("call log"))


def test_a_bad_batch_is_raised_before_the_model_runs() -> None:
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        Net()(torch.full((2,), torch.nan))  # bad batch
    assert (caught.value.stop.event, caught.value.stop.line) == (
        "nonfinite.input",
        line("bad batch"),
    )


def test_a_bad_batch_is_news_to_the_next_watch() -> None:
    """What an earlier one let pass has nothing to do with it."""
    with pytest.warns(TensorpointWarning), tensorpoint.watch("nonfinite()", on="warn"):
        Net()(BAD)
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        Net()(torch.full((2,), torch.nan))
    assert caught.value.stop.event == "nonfinite.input"


def test_a_program_that_goes_on_hears_of_the_next_hit() -> None:
    net, hits = Net(), 0
    with tensorpoint.watch("nonfinite()"):
        for batch in (BAD, GOOD, BAD, BAD):
            try:
                net(batch)
            except TensorpointHit:
                hits += 1
    assert hits == 3


def test_a_hit_inside_of_backward_comes_out_of_backward() -> None:
    class Once(nn.Module):
        """Its second run, in the backward pass, differs from the first."""

        runs = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.runs += 1
            return (x - 2 * (self.runs - 1)).log()

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.once = Once()

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.once, x, use_reentrant=True)

    loss = Outer()(torch.ones(2, requires_grad=True)).sum()
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        loss.backward()
    assert caught.value.stop.module_type == "Once"


class Scaled(torch.autograd.Function):
    """Its argument, with a gradient that is multiplied."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def train(factor: float, rate: float) -> None:
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=rate)
    loss: Any = Scaled.apply(layer(GOOD), factor)
    loss.sum().backward()  # backward pass
    optimizer.step()  # optimizer step


@pytest.mark.parametrize(
    ("condition", "factor", "rate", "where"),
    [
        ('nonfinite("*", phase="backward")', float("inf"), 0.1, "backward pass"),
        ("grad_norm() > 1e3", 1e6, 0.1, "optimizer step"),
        ('grad_norm("*") > 1e3', 1e6, 0.1, "backward pass"),
        ('nonfinite("*", phase="update")', 1.0, float("inf"), "optimizer step"),
        ("update_norm() > 1e3", 1.0, 1e6, "optimizer step"),
    ],
)
def test_a_hit_comes_out_of_backward_and_out_of_an_optimizers_step(
    condition: str, factor: float, rate: float, where: str
) -> None:
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch(condition):
        train(factor, rate)
    assert caught.value.stop.line == line(where), str(caught.value)


def test_a_hit_can_be_pickled_for_a_process_without_an_agent(tmp_path: Path) -> None:
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        Net()(BAD)
    assert pickle.loads(pickle.dumps(caught.value)).stop == caught.value.stop
    file = tmp_path / "hit"
    file.write_bytes(pickle.dumps(caught.value))
    code = f"import pickle; print(repr(pickle.load(open({str(file)!r}, 'rb')).stop.tensor.nan))"
    assert python(code) == "2"


def test_the_program_may_set_layer_tensorpoints() -> None:
    net, layer = Net(), tensorpoint.watch("layer:log if step > 1")
    with pytest.raises(TensorpointHit) as caught, layer:
        [net(GOOD) for _ in range(9)]
    assert (caught.value.stop.event, caught.value.stop.step) == ("layer.entry", 2)
    stops: list[Any] = []
    exit, backward = "layer:Log@exit if output.isnan().any()", "layer:log@backward"
    with tensorpoint.watch(exit, backward, on=stops.append):
        net(BAD)
        net(GOOD.clone().requires_grad_()).sum().backward()
    assert [stop.event for stop in stops] == ["layer.exit", "layer.backward"]


# Warn, call, stop ------------------------------------------------------------------------------


def test_a_warning_is_at_the_line_and_the_program_goes_on() -> None:
    message, watch = "NaN in the output of log", tensorpoint.watch("nonfinite()", on="warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")  # Python's own, which keeps what a module has warned of
        for _ in "again":
            with watch:
                assert Net()(BAD).isnan().all()
    assert len(caught) == 5 and len({str(item.message) for item in caught}) == 1
    assert (caught[-1].filename, caught[-1].lineno) == (str(HERE), line("call log"))
    assert issubclass(caught[-1].category, TensorpointWarning) and message in str(
        caught[-1].message
    )


def test_warnings_as_errors_come_out_as_a_hit() -> None:
    watch = tensorpoint.watch("nonfinite()", on="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TensorpointHit) as caught, watch:
            Net()(BAD)
    assert isinstance(caught.value.__cause__, TensorpointWarning)


def test_a_function_gets_the_stop() -> None:
    stops: list[tensorpoint.Stop] = []
    with tensorpoint.watch("nonfinite()", on=stops.append):
        net = Net()
        for batch in (BAD, BAD, GOOD, BAD):
            net(batch)
    assert [(stop.module, stop.step) for stop in stops] == [("log", 0), ("log", 3)]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_of_torchscript_is_watched_as_one_layer() -> None:
    """Its class can't be asked for its forward."""
    stops: list[tensorpoint.Stop] = []
    with tensorpoint.watch("nonfinite()", on=stops.append):
        traced: Any = torch.jit.trace(Net(), GOOD)
        nn.Sequential(traced, nn.Identity())(BAD)
    assert [(stop.module, stop.operation and stop.operation.name) for stop in stops] == [
        ("0", "aten.log.default")
    ]


def test_what_a_function_raises_is_the_cause_of_a_hit() -> None:
    def give_up(stop: tensorpoint.Stop) -> None:
        raise RuntimeError("no more")

    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()", on=give_up):
        Net()(BAD)
    assert str(caught.value.__cause__) == "no more"


def test_what_a_function_runs_is_not_watched() -> None:
    seen: list[int] = []

    def look(stop: tensorpoint.Stop) -> None:
        seen.append(stop.line)
        Net()(BAD)

    with tensorpoint.watch("nonfinite()", on=look):
        Net()(BAD)
    assert len(seen) == 1


def test_without_a_debugger_stop_warns_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with tensorpoint.watch("nonfinite()", on="stop"):
            net = Net()
            for batch in (BAD, GOOD, BAD):
                net(batch)
    assert len(caught) == 1 and "no debugger is attached" in str(caught[0].message)


# With statements and decorators ----------------------------------------------------------------


def test_all_hooks_are_gone_after_the_body_however_it_ends() -> None:
    with tensorpoint.watch("nonfinite()"):
        Net()(GOOD)
        assert hooks()
    assert not hooks()
    with pytest.raises(KeyError), tensorpoint.watch("nonfinite()"):
        raise KeyError
    assert not hooks()
    Net()(BAD)


def test_a_decorated_function_is_watched_during_its_calls() -> None:
    @tensorpoint.watch("nonfinite()")
    def run(batch: torch.Tensor, depth: int) -> torch.Tensor:
        if depth:
            run(GOOD, depth - 1)
        assert hooks()
        return Net()(batch)

    assert run(GOOD, 2).tolist() == [0, 0]
    with pytest.raises(TensorpointHit):
        run(BAD, 2)
    Net()(BAD)


def test_a_decorated_forward_is_watched_from_within() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.log = Log()

        @tensorpoint.watch("nonfinite()")
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.log(x)  # in a decorated forward

    assert Part()(GOOD).tolist() == [0, 0]
    with pytest.raises(TensorpointHit) as caught:
        Part()(BAD)
    assert caught.value.stop.line == line("in a decorated forward")


def test_what_runs_after_its_call_is_refused() -> None:
    with pytest.raises(TypeError, match="write `with tensorpoint"):

        @tensorpoint.watch("nonfinite()")
        async def later() -> None:
            pass

    with pytest.raises(TypeError, match="write `with tensorpoint"):

        @tensorpoint.watch("nonfinite()")
        def steps() -> Any:
            yield


def test_nested_watches_each_get_their_share() -> None:
    outer: list[str] = []
    inner: list[str] = []
    net = Net()
    with tensorpoint.watch("nonfinite()", on=lambda stop: outer.append(stop.module)):
        with tensorpoint.watch("nonfinite()", on=lambda stop: inner.append(stop.module)):
            net(BAD)
        assert hooks()
        net(GOOD)
        net(BAD)
    assert (outer, inner) == (["log", "log"], ["log"])


def test_an_exception_comes_after_all_others_have_their_share() -> None:
    seen: list[str] = []
    first = tensorpoint.watch("nonfinite()", on="raise")
    second = tensorpoint.watch("nonfinite()", on=lambda stop: seen.append(stop.module))
    with pytest.raises(TensorpointHit), first, second:
        Net()(BAD)
    assert seen == ["log"]


def test_one_watch_may_be_entered_while_it_is_entered() -> None:
    watch = tensorpoint.watch("nonfinite()")
    with watch, watch:
        assert hooks()
    with watch, pytest.raises(TensorpointHit):
        Net()(BAD)


def test_several_conditions_are_watched_for() -> None:
    seen: list[str] = []
    conditions = ('nonfinite("log") and step > 0', 'nonfinite("*") and step > 1')
    with tensorpoint.watch(*conditions, on=lambda stop: seen.append(stop.condition)):
        net = Net()
        for batch in (BAD, GOOD, BAD):
            net(batch)
    assert seen == list(conditions)


# Where it runs ---------------------------------------------------------------------------------


def test_a_notebook_cell_is_named_as_the_notebook_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = "def run(net, x):\n    return net(x)\nrun(net, x)\n"
    name = "/tmp/ipykernel_12/764618265.py"
    code = compile(cell, name, "exec")
    compiler = SimpleNamespace(format_code_name={name: ("Cell", "In[3]")}.get)
    shell = SimpleNamespace(compile=compiler)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        exec(code, {"net": Log(), "x": BAD})
    stop = caught.value.stop
    assert (stop.file, stop.line, stop.function) == (name, 2, "run")
    assert stop.user_file == stop.file
    assert "called at Cell In[3]:2 in run." in stop.text


def test_needs_neither_torch_nor_a_debugger_until_the_body_imports_it() -> None:
    code = """
        import sys
        import tensorpoint
        print(sorted(name for name in sys.modules if "tensorpoint" in name))
        with tensorpoint.watch("nonfinite()"):
            assert "torch" not in sys.modules
            import torch
            class Log(torch.nn.Module):
                def forward(self, x): return x.log()
            try:
                Log()(-torch.ones(2))
            except tensorpoint.TensorpointHit as hit:
                print(hit.stop.module_type)
        others = ("debugpy", "pydevd", "z3", "msgspec", "torch._dynamo")
        print([name for name in others if name in sys.modules])
        """
    assert python(code) == "['tensorpoint']\nLog\n[]"


def test_a_fault_in_a_watch_is_told_and_the_program_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tensorpoint.watch("nonfinite()"):
        pass
    watch = sys.modules["_tensorpoint.agent.watches.nonfinite"].Nonfinite

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(watch, "on_exit", fail)
    again = tensorpoint.watch("nonfinite()")
    with pytest.warns(TensorpointWarning, match="a fault of ours"), again:
        Net()(BAD)


# Conditions ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("nonfinit()", "did you mean nonfinite?\nnonfinit()\n^"),
        ("nonfinite() and steps > 3", "\nnonfinite() and steps > 3\n                ^"),
        ("nonfinite() and step < 0", "nonfinite() and step < 0\n^"),
        ("layer:", "layer: needs the path"),
        ("layer:log if nonfinite()", "not known yet when a layer is entered"),
        ("layer:log if inputs[0", "\ninputs[0\n"),
    ],
)
def test_a_bad_condition_is_refused_with_the_place(condition: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        tensorpoint.watch("nonfinite()", condition)
    assert message in str(caught.value)


def test_without_z3_a_condition_that_cannot_hold_is_let_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "z3", None)
    with tensorpoint.watch("nonfinite() and step < 0", on="warn"):
        Net()(BAD)
    with pytest.raises(ValueError):
        tensorpoint.watch("nonfinit()")


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a condition is a text"):
        tensorpoint.watch(None)  # pyright: ignore[reportArgumentType]


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(ValueError, match='on must be "stop"'):
        tensorpoint.watch("nonfinite()", on="continue")  # pyright: ignore[reportArgumentType]


def test_of_a_fused_step_only_the_member_that_is_meant_is_told() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2) for _ in range(9)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e38, weight_decay=10, fused=True)
    model(GOOD).sum().backward()
    with pytest.raises(TensorpointHit) as caught, tensorpoint.watch("nonfinite()"):
        optimizer.step()
    operation = caught.value.stop.operation
    assert operation is not None and operation.name == "aten._fused_adamw_.default"
    names = [operand.name for operand in operation.operands]
    assert names == ["self[0]", "grads[0]", "exp_avgs[0]", "exp_avg_sqs[0]", "state_steps[0]"]


def test_a_watch_that_was_not_entered_can_not_be_left() -> None:
    watch = tensorpoint.watch("nonfinite()")
    with pytest.raises(RuntimeError, match="left without being entered"):
        watch.__exit__(None, None, None)
    with watch:
        pass
    with pytest.raises(RuntimeError, match="left without being entered"):
        watch.__exit__(None, None, None)

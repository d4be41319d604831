"""NaN and Inf in the forward pass: which module is blamed, when, and what the program notices."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.agent.armed import Armed, armed, rule

NAN, INF = float("nan"), float("inf")


class Makes(nn.Module):
    """Returns its input with the first element replaced, at the steps in `at` (all if None)."""

    def __init__(self, value: float = NAN, at: set[int] | None = None) -> None:
        super().__init__()
        self.value, self.at, self.calls = value, at, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        if self.at is not None and self.calls - 1 not in self.at:
            return x * 1
        return torch.cat([torch.full_like(x[:1], self.value), x[1:]])


class Does(nn.Module):
    """Runs a function as its forward, around children."""

    def __init__(self, act: Any, **children: nn.Module) -> None:
        super().__init__()
        self.act = act
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.act(self, *args, **kwargs)


X = torch.ones(4, 2)


def ran(model: nn.Module, *rules: Any, steps: int = 1, x: Any = X) -> Armed:
    with armed(*rules) as agent:
        for _ in range(steps):
            model(x)
    return agent


# Who made it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_the_producer_is_named_not_those_that_pass_it_on(value: float) -> None:
    def overflows(self: Any, x: Any) -> Any:
        return x * value

    model: Any = nn.Sequential(
        nn.Linear(2, 2),
        nn.Sequential(nn.ReLU6(), Does(overflows), nn.Linear(2, 2)),
        nn.Linear(2, 2),
    )
    agent = ran(model)
    assert agent.stops == [("nonfinite.forward", "1.1", 0)]
    assert agent.event.tensor is not None and agent.event.value == 8
    assert agent.event.module is agent.event.entered is model[1][1]


def test_an_op_between_two_children_is_blamed_on_the_forward_around() -> None:
    def around(self: Any, x: Any) -> Any:
        return self.second(self.first(x) * NAN)

    inner = Does(around, first=nn.ReLU(), second=nn.Linear(2, 2))
    agent = ran(nn.Sequential(inner))
    assert agent.stops == [("nonfinite.forward", "0", 0)]
    assert agent.event.entered is inner.second


def test_an_op_after_the_last_child_is_blamed_on_the_forward_around() -> None:
    inner = Does(lambda self, x: self.child(x) * NAN, child=nn.ReLU())
    agent = ran(nn.Sequential(inner))
    assert agent.stops == [("nonfinite.forward", "0", 0)]
    assert agent.event.entered is inner


def test_a_value_that_does_not_survive_does_not_stop() -> None:
    def dies(self: Any, x: Any) -> Any:
        return torch.nan_to_num(x * NAN)

    assert ran(nn.Sequential(Does(dies))).stops == []


def test_two_producers_in_one_step_are_two_stops() -> None:
    def both(self: Any, x: Any) -> Any:
        return self.first(x).nan_to_num() + self.second(x)

    agent = ran(Does(both, first=Makes(), second=Makes()))
    assert agent.places == ["first", "second"]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda x: (x, None),
        lambda x: [{"hidden": (x,)}],
        lambda x: {"loss": torch.ones(()), "x": x},
        lambda x: x.to(torch.complex64),
        lambda x: x.to_sparse(),
        lambda x: torch.nested.nested_tensor([x, x], layout=torch.jagged),
        lambda x: x.half(),
        lambda x: x.to(torch.float8_e4m3fn),
    ],
)
def test_it_is_found_in_any_kind_of_output(wrap: Any) -> None:
    model = nn.Sequential(Does(lambda self, x: wrap(Makes().forward(x))))
    assert ran(model).places == ["0"]


@pytest.mark.parametrize(
    "output", [None, "text", 3, (), torch.ones(2, dtype=torch.long), torch.ones(2, device="meta")]
)
def test_outputs_without_numbers_pass(output: Any) -> None:
    assert ran(Does(lambda self, x: output)).stops == []


def test_an_output_changed_after_it_was_looked_at_is_looked_at_again() -> None:
    def spoils(self: Any, x: Any) -> Any:
        y = self.child(x)
        y[0] = NAN
        return y

    agent = ran(nn.Sequential(Does(spoils, child=Does(lambda self, x: x * 2))))
    assert agent.places == ["0"]


def test_an_argument_changed_in_place_is_blamed_on_the_module_that_changed_it() -> None:
    def spoils(self: Any, x: Any) -> Any:
        return x.mul_(NAN)

    agent = ran(nn.Sequential(Does(lambda self, x: x * 1), Does(spoils), nn.ReLU()))
    assert agent.places == ["1"]


def test_an_inplace_activation_passes_on_what_it_received() -> None:
    model = nn.Sequential(Makes(), nn.ReLU(inplace=True), nn.ReLU6(inplace=True))
    assert ran(model).places == ["0"]


def test_a_module_called_by_forward_is_hidden_behind_the_one_around() -> None:
    inner = Does(lambda self, x: self.child.forward(x), child=Makes())
    agent = ran(nn.Sequential(inner))
    assert agent.places == ["0"]


def test_keyword_arguments_are_arguments() -> None:
    def makes(self: Any, x: Any) -> Any:
        return self.child(x=x * NAN)

    inner = Does(makes, child=Does(lambda self, x: x + 1))
    agent = ran(nn.Sequential(inner))
    assert agent.places == ["0"] and agent.event.entered is inner.child


# The batch ---------------------------------------------------------------------------------------


def test_a_bad_batch_stops_once_at_the_root_and_names_the_argument() -> None:
    x = X.clone()
    x[2, 1] = NAN
    agent = ran(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), x=x)
    assert agent.stops == [("nonfinite.input", "", 0)]
    assert agent.event.tensor is not None
    assert (agent.event.tensor.name, agent.event.tensor.first_index) == ("input", (2, 1))


def test_a_bad_keyword_of_the_batch_is_named() -> None:
    model = Does(lambda self, *, pixels: pixels + 1)
    with armed() as agent:
        model(pixels=X * INF)
    assert agent.event.name == "nonfinite.input"
    assert agent.event.tensor is not None and agent.event.tensor.name == "pixels"


def test_each_bad_batch_after_a_good_one_stops() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with armed() as agent:
        for batch in (X, X * NAN, X * NAN, X, X * NAN):
            model(batch)
    assert [step for _, _, step in agent.stops] == [1, 4]


def test_a_loss_module_after_a_bad_model_is_not_a_bad_batch() -> None:
    with armed() as agent:
        nn.MSELoss()(nn.Sequential(Makes())(X), X)
    assert agent.stops == [("nonfinite.forward", "0", 0)]


# Parameters --------------------------------------------------------------------------------------


def test_a_spoilt_parameter_is_blamed_on_its_owner_once() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with torch.no_grad():
        model[1][0].weight[0, 1] = NAN
    agent = ran(model, steps=3)
    assert agent.stops == [("nonfinite.input", "1.0", 0)]
    assert agent.event.tensor is not None and agent.event.tensor.name == "weight"
    assert "parameter weight" in agent.event.headline


def test_a_spoilt_buffer_is_called_a_buffer() -> None:
    model: Any = nn.Sequential(nn.BatchNorm1d(2)).eval()
    model[0].running_mean[0] = NAN
    agent = ran(model)
    assert agent.places == ["0"] and "buffer running_mean" in agent.event.headline


def test_a_parameter_spoilt_again_after_a_repair_stops_again() -> None:
    model: Any = nn.Sequential(nn.Linear(2, 2))
    with armed() as agent, torch.no_grad():
        for spoilt in (True, True, False, True):
            model[0].weight.fill_(NAN if spoilt else 1.0)
            model(X)
    assert [step for _, _, step in agent.stops] == [0, 3]


def test_a_spoilt_parameter_that_reaches_no_output_does_not_stop() -> None:
    unused = Does(lambda self, x: x + 1, child=nn.Linear(2, 2))
    with torch.no_grad():
        nn.init.constant_(cast("nn.Linear", unused.get_submodule("child")).weight, NAN)
    assert ran(nn.Sequential(unused)).stops == []


def test_a_mask_kept_as_a_buffer_is_no_spoilt_state() -> None:
    model = nn.Sequential(Makes())
    model[0].register_buffer("mask", torch.full((4, 4), -INF).triu(1))
    assert ran(model).stops == [("nonfinite.forward", "0", 0)]


# Masks -------------------------------------------------------------------------------------------

GRADS = pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])


@GRADS
def test_a_nan_behind_a_mask_is_still_found(grad: bool) -> None:
    def around(self: Any, x: Any) -> Any:
        scores = (x @ x.t()).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -INF)
        return self.child(self.softmax(scores) @ x)

    model = nn.Sequential(
        nn.Linear(2, 2), Does(around, child=Makes(), softmax=nn.Softmax(-1)), nn.Linear(2, 2)
    )
    with torch.set_grad_enabled(grad):
        assert ran(model).places == ["1.child"]


@GRADS
def test_masked_logits_returned_by_the_root_pass(grad: bool) -> None:
    def masks(self: Any, x: Any) -> Any:
        return self.child(x).masked_fill(torch.tensor([True, False]), -INF)

    with torch.set_grad_enabled(grad):
        assert ran(Does(masks, child=nn.Linear(2, 2))).stops == []


# Conditions --------------------------------------------------------------------------------------


def chain(**at: Any) -> Any:
    return nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(nn.ReLU6(), Makes(**at), nn.Linear(2, 2)), nn.Linear(2, 2)
    )


@pytest.mark.parametrize(
    ("condition", "places"),
    [
        ('nonfinite("*")', ["1.1"]),
        ('nonfinite("1.*")', ["1.1"]),
        ('nonfinite("1")', ["1"]),
        ('nonfinite("")', [""]),
        ('nonfinite("1.2")', []),
        ('nonfinite("0")', []),
        ('nonfinite("2")', []),
        ('nonfinite("*", phase="forward")', ["1.1"]),
        ('nonfinite("*", phase="input")', []),
        ('nonfinite("*") and step >= 1', []),
        ('nonfinite("*") and step == 0', ["1.1"]),
        ('nonfinite("*") and optimizer_step == 0', ["1.1"]),
    ],
)
def test_a_condition_narrows_where_and_when(condition: str, places: list[str]) -> None:
    assert ran(chain(), condition).places == places


def test_a_phase_keeps_a_bad_batch_apart() -> None:
    x = X * NAN
    assert ran(chain(), 'nonfinite("*", phase="input")', x=x).stops == [("nonfinite.input", "", 0)]
    assert ran(chain(), 'nonfinite("*", phase="forward")', x=x).stops == []


def test_a_step_condition_stops_at_that_step() -> None:
    agent = ran(chain(at={2, 4}), 'nonfinite("*") and step > 2', steps=6)
    assert agent.stops == [("nonfinite.forward", "1.1", 4)]


def test_it_fires_when_it_turns_true_and_again_only_after_being_false() -> None:
    agent = ran(chain(at={1, 2, 3, 5, 6}), steps=8)
    assert [step for _, _, step in agent.stops] == [1, 5]


def test_what_nobody_was_there_to_see_fires_again() -> None:
    model = chain()
    with armed() as agent:
        for agent.attached in (False, False, True, True):
            model(X)
    assert [step for _, _, step in agent.stops] == [0, 1, 2]


def test_not_is_true_where_the_output_is_finite() -> None:
    agent = ran(chain(at={1}), 'not nonfinite("1.1")', steps=3)
    assert agent.stops == [("nonfinite.forward", "1.1", 0), ("nonfinite.forward", "1.1", 2)]


def test_or_needs_no_nan_for_its_other_side() -> None:
    agent = ran(chain(at={1}), 'nonfinite("1.1") or step == 3', steps=5)
    assert agent.stops == [("nonfinite.forward", "1.1", 1), ("nonfinite.forward", "1.1", 3)]


def test_two_rules_at_one_event_are_one_stop_with_both() -> None:
    agent = ran(chain(), 'nonfinite("*")', 'nonfinite("2")', 'nonfinite("1.1")')
    assert agent.places == ["1.1"] and agent.calls[0][0] == [0, 2]


def test_rules_at_different_places_stop_at_each() -> None:
    agent = ran(chain(), 'nonfinite("")', 'nonfinite("1.1")')
    assert agent.places == ["1.1", ""]
    assert [ids for ids, _ in agent.calls] == [[1], [0]]


def test_a_rule_kept_by_a_new_plan_remembers_where_it_is_true() -> None:
    kept, model = rule("nonfinite()"), chain()
    with armed(kept) as agent:
        model(X)
        agent.arm(kept, rule('nonfinite("0")', 1))
        model(X)
    assert len(agent.stops) == 1


# What the program notices ------------------------------------------------------------------------


class Every(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class EveryFunction(torch.overrides.TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


def block() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(2, 8),
        nn.Sequential(nn.LayerNorm(8), nn.ReLU(), nn.Dropout(0.5)),
        nn.GELU(),
        nn.Linear(8, 1),
    )


@contextmanager
def maybe_armed(on: bool) -> Iterator[None]:
    with armed() if on else nullcontext():
        yield


@pytest.mark.parametrize("make", [block, chain], ids=["finite", "NaN"])
@pytest.mark.parametrize("mode", [Every, EveryFunction])
def test_modes_of_the_program_see_the_same_operations(mode: Any, make: Any) -> None:
    seen: list[list[str]] = []
    for on in (False, True):
        model = make()
        with maybe_armed(on), mode() as watching:
            model(X)
        seen.append(watching.seen)
    assert seen[0] == seen[1] and seen[0]


def test_a_default_device_does_not_change_what_is_found() -> None:
    torch.set_default_device("cpu")
    try:
        assert ran(chain()).places == ["1.1"]
    finally:
        torch.set_default_device(None)


def test_under_a_mode_the_stop_is_the_same() -> None:
    model = chain()
    with armed() as agent, Every(), EveryFunction():
        model(X)
    assert agent.places == ["1.1"]


def test_a_flop_counter_counts_the_same() -> None:
    counts: list[Any] = []
    for on in (False, True):
        model = block()
        with maybe_armed(on), FlopCounterMode(display=False) as flops:
            model(X).sum().backward()
        counts.append((flops.get_total_flops(), flops.get_flop_counts()))
    assert counts[0] == counts[1] and counts[0][0] > 0


def trained(*, use_checkpoint: bool = False) -> tuple[Any, ...]:
    model = block()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses: list[float] = []
    for _ in range(5):
        hidden = checkpoint(model[:2], X, use_reentrant=False) if use_checkpoint else model[:2](X)
        loss = model[2:](hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = [tensor.tolist() for tensor in model.state_dict().values()]
    return losses, state, torch.get_rng_state().tolist()


@pytest.mark.parametrize("use_checkpoint", [False, True])
def test_training_and_random_numbers_are_the_same_to_the_bit(use_checkpoint: bool) -> None:
    plain = trained(use_checkpoint=use_checkpoint)
    with armed("nonfinite()", 'not nonfinite("nowhere")') as agent:
        assert trained(use_checkpoint=use_checkpoint) == plain
    assert agent.stops == []


@pytest.mark.parametrize("make", [block, chain], ids=["finite", "NaN"])
def test_outputs_and_inputs_are_freed_as_without_us(make: Any) -> None:
    alive: list[weakref.ref[Any]] = []

    def keeps(module: Any, args: Any, output: Any) -> None:
        alive.extend((weakref.ref(args[0]), weakref.ref(output)))

    model = make()
    for module in model.modules():
        module.register_forward_hook(keeps)
    gc.disable()
    try:
        with armed() as agent:
            output = model(X * 1)
            agent.calls.clear()  # what the user looked at
            del output
            assert alive and [item() for item in alive] == [None] * len(alive)
    finally:
        gc.enable()


def test_the_graph_is_the_programs_own() -> None:
    def graph(node: Any) -> Any:
        return (node.name(), [graph(other) for other, _ in node.next_functions if other])

    graphs: list[Any] = []
    for on in (False, True):
        model = block()
        with maybe_armed(on):
            graphs.append(graph(model(X).grad_fn))
    assert graphs[0] == graphs[1]


def test_anomaly_mode_works_and_finds_its_own() -> None:
    leaf = torch.zeros(2, requires_grad=True)
    model = nn.Sequential(Does(lambda self, x: torch.sqrt(x)))
    with armed() as agent, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
            (model(leaf) * 0).sum().backward()
    assert agent.stops == []


@pytest.mark.parametrize(
    "context",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_it_stops_in_every_context(context: Any) -> None:
    ambient: AbstractContextManager[Any] = context()
    with ambient:
        assert ran(chain()).places == ["1.1"]


# Transforms and tracers --------------------------------------------------------------------------


@pytest.fixture
def strict() -> Iterator[None]:
    """A program that turns warnings into errors, but for those that torch gives anyway."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
        yield
    torch.compiler.reset()


def functional(model: nn.Module, x: torch.Tensor) -> Any:
    state = {name: value.detach() for name, value in model.named_parameters()}
    return torch.func.functional_call(model, state, (x,))


def test_function_transforms_give_the_same(strict: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))

    def results() -> list[torch.Tensor]:
        return [
            torch.func.vmap(lambda x: functional(model, x))(X),
            torch.func.grad(lambda x: functional(model, x).sum())(X),
            torch.func.jacrev(lambda x: functional(model, x))(X),
            torch.func.jvp(lambda x: functional(model, x), (X,), (X,))[1],
            torch.func.vmap(torch.func.grad(lambda x: functional(model, x).sum()))(X),
        ]

    plain = results()
    with armed() as agent:
        assert all(map(torch.equal, plain, results()))
    assert agent.stops == []


def test_jit_trace_records_the_same_graph(strict: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())

    def graph() -> str:
        traced: Any = torch.jit.trace(model, (X,))
        graph = str(traced.inlined_graph)
        return re.sub(r"___torch_mangle_\d+\.", "", graph)  # a number per trace

    plain = graph()
    with armed() as agent:
        assert graph() == plain
        traced: Any = torch.jit.trace(model, (X,))
        traced(X * NAN)
    assert agent.places[:1] == [""] and agent.calls[0][1].name == "nonfinite.input"


def test_jit_script_works(strict: None) -> None:
    with armed():
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
        assert scripted(X).shape == (4, 3)


def test_symbolic_trace_records_the_same_graph(strict: None) -> None:
    model = nn.Sequential(nn.Linear(2, 3), Does(lambda self, x: {"x": (x + 1,)}))
    plain = torch.fx.symbolic_trace(model).code
    with armed() as agent:
        traced = torch.fx.symbolic_trace(model)
        assert traced.code == plain
        assert traced(X)["x"][0].shape == (4, 3)
    assert agent.stops == []


def test_make_fx_records_the_same_graph(strict: None) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    for mode in ("real", "fake", "symbolic"):
        first = nn.Linear(2, 3) if mode == "real" else nn.Softmax(-1)
        model = nn.Sequential(first, nn.ReLU())
        plain = make_fx(model, tracing_mode=mode)(X).code
        with armed():
            assert make_fx(model, tracing_mode=mode)(X).code == plain


@pytest.mark.parametrize("strictly", [True, False])
def test_export_records_the_same_graph(strict: None, strictly: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    plain = torch.export.export(model, (X,), strict=strictly).graph_module.code
    with armed() as agent:
        exported = torch.export.export(model, (X,), strict=strictly)
        assert exported.graph_module.code == plain
        assert exported.module()(X).shape == (4, 3)
    assert agent.stops == []


def test_compile_with_fullgraph_works_and_is_watched_at_its_boundary(strict: None) -> None:
    model: Any = nn.Sequential(
        nn.Linear(2, 2), nn.Sequential(Does(lambda self, x: torch.log(x - 1)))
    )
    with torch.no_grad():
        model[0].weight.fill_(1)
        model[0].bias.fill_(-10)
    with armed() as agent:
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        compiled(X * 100)
        compiled(X)
    assert agent.stops == [("nonfinite.forward", "", 1)]


def test_compiled_code_is_not_compiled_again_for_us(strict: None) -> None:
    compilations: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compilations.append(len(graph.graph.nodes))
        return graph.forward

    model = block().eval()
    torch.compile(model, fullgraph=True, backend=backend)(X)
    torch.compiler.reset()
    with armed():
        compiled = torch.compile(model, fullgraph=True, backend=backend)
        for _ in range(3):
            compiled(X)
    assert len(compilations) == 2 and compilations[0] == compilations[1]


def test_a_module_compiled_in_place_works_inside_a_compiled_one(strict: None) -> None:
    with armed() as agent:
        model = nn.Sequential(nn.Linear(2, 2), Does(lambda self, x: x * NAN))
        model[1].compile(backend="eager", fullgraph=True)
        model(X)
        assert agent.places == ["1"]
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        compiled(X)
    assert agent.places == ["1", ""]


def test_a_graph_break_leaves_the_steps_and_names_right() -> None:
    def breaks(self: Any, x: Any) -> Any:
        torch._dynamo.graph_break()
        return self.child(x)

    model = nn.Sequential(nn.Linear(2, 2), Does(breaks, child=Makes(at={1})))
    with armed() as agent:
        compiled = torch.compile(model, backend="eager")
        for _ in range(3):
            compiled(X)
        assert agent.names.step(model) == 2
    assert [step for _, _, step in agent.stops] == [1]

"""NaN and Inf in forward passes: what the program notices, transforms and tracers."""

from __future__ import annotations

import gc
import re
import warnings
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.agent.armed import armed
from tests.unit.agent.making import NAN, Makes, X, chain, ran
from tests.unit.agent.spoiling import Does

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

"""Who attends: attentions, and what torch does with the functions that are tapped."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.unit.agent.attending import Attends, ByHand
from tests.unit.agent.tapped import Tapped, tapped

# Who attends -----------------------------------------------------------------------------------


SPELLINGS = {
    "functional.softmax": lambda s: functional.softmax(s, dim=-1),
    "functional.softmax float32": lambda s: functional.softmax(s, dim=-1, dtype=torch.float32),
    "torch.softmax": lambda s: torch.softmax(s, -1),
    "torch.softmax dim 3": lambda s: torch.softmax(s, dim=3),
    "Tensor.softmax": lambda s: s.softmax(dim=-1),
    "nn.Softmax": nn.Softmax(dim=-1),
}


@pytest.mark.parametrize("spelling", list(SPELLINGS))
def test_attention_by_a_softmax_is_told_once_with_the_values_of_the_fused(spelling: str) -> None:
    by_hand, fused = ByHand(SPELLINGS[spelling]), Attends()
    by_hand.qkv = fused.qkv
    x = torch.randn(3, 11, 16)
    with tapped() as agent:
        nn.Sequential(by_hand)(x)
        nn.Sequential(fused)(x)
        (path, one), (_, other) = agent.take()
        assert path == "0"
        assert one.exact == pytest.approx(other.exact, abs=1e-5)
        assert one.sampled == pytest.approx(other.sampled, abs=1e-5)


class AttentionClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = Attends()
        self.gate = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.gate(self.attn(x)), -1)


class Router(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(-1)


def test_other_uses_of_softmax_are_not_attention() -> None:
    with tapped() as agent:
        AttentionClassifier()(torch.randn(2, 5, 16))
        assert agent.paths == ["attn"]
        agent.take()
        Router()(torch.randn(2, 2, 5, 5))
        nn.Softmax(-1)(torch.randn(2, 2, 5, 5))
        torch.softmax(torch.randn(2, 2, 5, 5), -1)
        by_hand = ByHand(lambda s: s.softmax(-2))
        by_hand(torch.randn(2, 5, 16))
        assert agent.attentions == []


class Head(nn.Module):
    """As in a well-known lecture: nothing says attention but the names of the projections."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Linear(16, 8)
        self.query = nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.softmax(self.query(x) @ self.key(x).transpose(-2, -1), dim=-1)


def test_an_attention_is_known_by_its_projections() -> None:
    with tapped() as agent:
        Head()(torch.randn(2, 5, 16))
        [(_, attention)] = agent.take()
        assert len(attention.exact) == 1


def test_outside_of_any_module_nothing_is_told() -> None:
    q = torch.randn(1, 2, 5, 4)
    with tapped() as agent:
        functional.scaled_dot_product_attention(q, q, q)
        assert agent.attentions == []


def test_a_block_that_checkpointing_runs_again_is_not_counted() -> None:
    model = Attends()
    x = torch.randn(2, 5, 16, requires_grad=True)
    with tapped() as agent:
        for reentrant in (False, True):
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()
            assert len(agent.take()) == 1


def test_what_the_user_tries_in_the_console_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    with tapped() as agent:
        monkeypatch.setattr("tensorpoint.agent.debugger.evaluating", lambda: True)
        Attends()(torch.randn(1, 5, 16))
        assert agent.attentions == []


def test_a_shared_layer_is_told_apart_by_its_turn() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Attends()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(self.layer(x)))

    model = Shared()
    with tapped() as agent:
        for _ in range(2):
            model(torch.randn(1, 5, 16))
            assert [attention.ordinal for _, attention in agent.take()] == [0, 1, 2]


def test_threads_have_their_own_calls() -> None:
    model = nn.ModuleDict({"a": Attends(), "b": Attends()})
    with tapped() as agent:
        agent.names.learn(model)
        batches = torch.randn(9, 1, 5, 16)
        threads = [
            threading.Thread(target=lambda module=module: [module(x) for x in batches])
            for module in model.values()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(agent.paths) == ["a"] * 9 + ["b"] * 9


# nn.MultiheadAttention, and what torch does with functions --------------------------------------


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
def test_multihead_attention(training: bool, need_weights: bool) -> None:
    torch.manual_seed(0)
    module = nn.MultiheadAttention(16, 4, batch_first=True).train(training)
    x = torch.randn(3, 7, 16)
    with tapped() as agent, torch.inference_mode(not training):
        module(x, x, x, need_weights=need_weights)
        [(_, attention)] = agent.take()
        assert len(attention.exact) == 4
        _, weights = module(x, x, x, average_attn_weights=False)
    entropy = torch.special.entr(weights).sum(-1).mean((0, 2)) / torch.tensor(7.0).log()
    assert attention.exact == pytest.approx(entropy.tolist(), abs=1e-5)


def test_the_fast_path_of_an_encoder_is_avoided_and_switched_back() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x = torch.randn(2, 6, 16)
    padding = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
    with torch.no_grad():
        plain = model(x)
        with tapped() as agent:
            torch.testing.assert_close(model(x), plain)
            assert agent.paths == ["layers.0.self_attn", "layers.1.self_attn"]
            agent.take()
            model(x, src_key_padding_mask=padding)
            assert [len(attention.exact) for _, attention in agent.take()] == [4, 4]
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_fast_path_that_the_program_has_switched_off_stays_off() -> None:
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with tapped():
            pass
        assert not torch.backends.mha.get_fastpath_enabled()
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize(
    "make", [Attends, *(lambda s=s: ByHand(s) for s in list(SPELLINGS.values())[:5])]
)
def test_compiled_code_holds_the_original_and_is_not_compiled_again(
    backend: str, make: Any
) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def compiler(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    model, x = make(), torch.randn(2, 5, 16)
    plain = model(x)
    agent = Tapped()
    agent.listen("attention")
    compiled = torch.compile(model, fullgraph=True, backend=compiler)
    try:
        torch.testing.assert_close(compiled(x), plain)
        compiled(x)
        assert len(graphs) == 1
        ours = functional.scaled_dot_product_attention
        assert ours not in [node.target for node in graphs[0].graph.nodes]
    finally:
        agent.remove()
    torch.testing.assert_close(compiled(x), plain)
    assert not agent.faults


def test_compiling_after_they_are_gone_has_no_graph_break() -> None:
    torch._dynamo.reset()
    with tapped():
        torch.compile(Attends(), fullgraph=True, backend="eager")(torch.randn(2, 5, 16))
    torch._dynamo.reset()
    torch.compile(Attends(), fullgraph=True, backend="eager")(torch.randn(2, 5, 16))


def scripted_attention(q: torch.Tensor) -> torch.Tensor:
    weights = torch.softmax(q, -1) + q.softmax(-1) + functional.softmax(q, -1)
    return functional.scaled_dot_product_attention(q, q, q) + weights.sum()


class Scripted(nn.Module):
    def forward(self, q: torch.Tensor) -> torch.Tensor:
        return scripted_attention(q)


def test_scripts_exports_and_traces() -> None:
    q = torch.randn(1, 2, 5, 4)
    expected = scripted_attention(q)
    model, x = Attends(), torch.randn(1, 5, 16)
    with tapped() as agent:
        torch.testing.assert_close(torch.jit.script(scripted_attention)(q), expected)
        traced: Any = torch.jit.trace(model, x)
        torch.testing.assert_close(traced(x), model(x))
        torch.export.export(model, (x,))
        torch.fx.symbolic_trace(Scripted())(q)
        torch.func.vmap(model)(x[None])
        torch.func.grad(lambda x: model(x).sum())(x)
        model.to("meta")(x.to("meta"))
        assert not agent.faults
    scripted = torch.jit.script(scripted_attention)
    torch.testing.assert_close(scripted(q), expected)


def test_fake_tensors_and_modes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils.flop_counter import FlopCounterMode

    with tapped() as agent:
        with FakeTensorMode():
            Attends()(torch.randn(1, 5, 16))
        assert agent.take() == []
        with FlopCounterMode(display=False) as counted:
            Attends()(torch.randn(1, 5, 16))
            [(_, attention)] = agent.take()
            before = counted.get_total_flops()
            assert attention.sampled and attention.exact
            assert counted.get_total_flops() == before
        with torch.device("meta"):
            Attends()(torch.randn(1, 5, 16))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            Attends()(torch.randn(1, 40, 16))
            [(_, attention)] = [item for item in agent.take() if item[1]]
            assert attention.sampled == pytest.approx(attention.exact, abs=0.1)


def test_functions_can_be_pickled_and_copied() -> None:
    with tapped():
        assert pickle.loads(pickle.dumps(torch.softmax)) is torch.softmax
        sdpa = functional.scaled_dot_product_attention
        assert pickle.loads(pickle.dumps(sdpa)) is sdpa
        copy.deepcopy(Attends())

"""Entropy of attention by the formulas that the watches use, against the definition."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tensorpoint.agent.attention import Scored, Weighted
from tests.unit.agent.tapped import tapped


def by_definition(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    rows: slice = slice(None),
    pads: Tensor | None = None,
) -> list[float]:
    """Per head the mean over batch and queries of H / log(visible keys), in float64."""
    query, key = query.double(), key.double()
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    visible = torch.ones(scores.shape, dtype=torch.bool)
    if is_causal:
        visible &= torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if mask is not None and mask.dtype is torch.bool:
        visible &= mask
    elif mask is not None:
        scores = scores + mask
        visible &= mask.expand(scores.shape) > -9e3
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), -1).nan_to_num(0)
    entropy = torch.special.entr(weights).sum(-1)
    keys = visible.sum(-1)
    valid = keys > 1
    if pads is not None:
        valid = valid & ~pads[:, None, :]
    normalised = torch.where(valid, entropy / keys.clamp_min(2).log(), 0.0)[:, :, rows]
    return (normalised.sum((0, 2)) / valid[:, :, rows].sum((0, 2))).tolist()


def tensors(
    batch: int = 2, heads: int = 4, groups: int = 4, queries: int = 40, keys: int = 40
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(batch, heads, queries, 16) * 2, torch.randn(batch, groups, keys, 16)


PADDED = torch.arange(40) < torch.tensor([25, 40])[:, None]
ADDITIVE = torch.where(PADDED, 0.0, torch.finfo(torch.float32).min)

CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "cross": {"queries": 7, "keys": 50},
    "causal": {"is_causal": True},
    "causal, more keys": {"is_causal": True, "queries": 20, "keys": 50},
    "causal, more queries": {"is_causal": True, "queries": 50, "keys": 20},
    "grouped": {"groups": 2, "is_causal": True},
    "one group": {"groups": 1},
    "scale": {"scale": 1.0},
    "boolean mask": {"mask": torch.arange(1600).reshape(1, 1, 40, 40) % 7 > 2},
    "a mask per head": {"mask": torch.arange(6400).reshape(1, 4, 40, 40) % 7 > 2},
    "bias": {"mask": torch.linspace(-3, 3, 1600).reshape(1, 1, 40, 40)},
    "bias that needs a gradient": {"mask": torch.zeros(1, 4, 40, 40, requires_grad=True)},
    "single token": {"queries": 1, "keys": 30},
    "long": {"queries": 700, "keys": 700, "is_causal": True, "groups": 2},
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_exact_entropy_is_that_of_the_definition(name: str) -> None:
    case = dict(CASES[name])
    sizes = {key: case.pop(key) for key in ("groups", "queries", "keys") if key in case}
    query, key = tensors(**sizes)
    attention = Scored(query, key, **case)
    assert attention.exact == pytest.approx(by_definition(query, key, **case), abs=2e-6)
    # The estimate is exact where it looks at everything.
    if attention.queries <= 8:
        assert attention.sampled == pytest.approx(attention.exact, abs=2e-6)
    assert all(0 <= value <= 1 for value in attention.sampled)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("batch", "rows"), [(1, (0,)), (2, (0, 1)), (4, (0, 1, 2, 3)), (9, (0, 2, 4, 6))]
)
def test_the_estimate_is_that_of_sixteen_queries_spread_over_rows(
    batch: int, rows: tuple[int, ...], is_causal: bool
) -> None:
    query, key = tensors(batch, queries=64, keys=64)
    every = 64 // (16 // len(rows) * len(rows))
    sampled = [
        by_definition(
            query[row : row + 1],
            key[row : row + 1],
            None,
            is_causal,
            rows=slice(every * (number + 1) - 1, None, every * len(rows)),
        )
        for number, row in enumerate(rows)
    ]
    expected = torch.tensor(sampled).mean(0).tolist()
    attention = Scored(query, key, None, is_causal)
    assert attention.sampled == pytest.approx(expected, abs=2e-6)
    masked = Scored(query, key, torch.zeros(1, 1, 1, 64), is_causal)
    assert masked.sampled == pytest.approx(expected, abs=2e-6)
    if not is_causal:
        weighted = Weighted(torch.softmax(query @ key.transpose(-1, -2) / 4, -1))
        assert weighted.sampled == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("mask", [PADDED, ADDITIVE], ids=["boolean", "additive"])
@pytest.mark.parametrize("full", [False, True], ids=["a row for all queries", "a row per query"])
def test_padding_is_left_out_as_key_and_as_query(mask: Tensor, full: bool) -> None:
    query, key = tensors()
    given = mask[:, None, None, :]
    if full:
        given = given.expand(2, 1, 40, 40)
    expected = by_definition(query, key, given, pads=~PADDED)
    assert Scored(query, key, given).exact == pytest.approx(expected, abs=2e-6)
    scores = query @ key.transpose(-1, -2) / 4
    scores = scores.masked_fill(~PADDED[:, None, None], -math.inf)
    weighted = Weighted(torch.softmax(scores, -1), scores)
    assert weighted.exact == pytest.approx(expected, abs=2e-6)
    # The first row's padding is not the program's attention either.
    alone = Scored(query[:1, :, :25], key[:1, :, :25])
    assert Scored(query[:1], key[:1], given[:1]).exact == pytest.approx(alone.exact, abs=2e-6)


def test_a_mask_that_hides_each_querys_own_key_is_not_padding() -> None:
    query, key = tensors()
    mask = ~torch.eye(40, dtype=torch.bool)[None, None]
    expected = by_definition(query, key, mask)
    assert Scored(query, key, mask).exact == pytest.approx(expected, abs=2e-6)


def test_where_no_query_sees_two_keys_there_is_no_entropy() -> None:
    query, key = tensors()
    assert Scored(query, key[:, :, :1]).exact == Scored(query, key[:, :, :1]).sampled == ()
    nothing = torch.zeros(1, 1, 1, 40, dtype=torch.bool)
    assert Scored(query, key, nothing).exact == Scored(query, key, nothing).sampled == ()
    first = Scored(query[:, :, :1], key, None, True)  # sees the first key only
    assert first.exact == first.sampled == ()
    assert Weighted(torch.ones(2, 4, 5, 1)).exact == ()


@pytest.mark.parametrize("factor", [1e3, 1e5])
def test_a_collapsed_head_has_no_entropy_left(factor: float) -> None:
    query, key = tensors()
    for attention in (Scored(query * factor, key), Scored(query * factor, key, None, True)):
        assert all(0 <= value < 0.01 for value in (*attention.exact, *attention.sampled))
    scores = query @ key.transpose(-1, -2) * factor
    weighted = Weighted(torch.softmax(scores, -1), scores)
    assert all(0 <= value < 0.01 for value in (*weighted.exact, *weighted.sampled))
    assert len(weighted.exact) == 4


def test_equal_weights_have_all_of_it() -> None:
    query, key = tensors()
    for is_causal in (False, True):
        attention = Scored(query * 0, key, None, is_causal)
        assert attention.exact == pytest.approx([1.0] * 4, abs=1e-5)
        assert attention.sampled == pytest.approx([1.0] * 4, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_computed_in_single_precision(dtype: torch.dtype) -> None:
    query, key = (tensor.to(dtype) for tensor in tensors())
    expected = by_definition(query, key, is_causal=True)
    assert Scored(query, key, None, True).exact == pytest.approx(expected, abs=1e-5)
    mask = torch.zeros(1, 1, 40, 40, dtype=dtype)
    expected = by_definition(query, key)
    assert Scored(query, key, mask).exact == pytest.approx(expected, abs=1e-5)


def test_autocast_and_default_types_make_no_difference() -> None:
    query, key = tensors()
    expected = Scored(query, key).exact, Scored(query, key).sampled
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.device("meta"):
            attention = Scored(query, key)
            assert (attention.exact, attention.sampled) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_weights_alone_tell_masked_keys_by_other_heads() -> None:
    query, key = tensors()
    weights = torch.softmax(query @ key.transpose(-1, -2) / 4, -1)
    weights[:, 0] = 0
    weights[:, 0, :, 0] = 1  # a head that looks at one key only
    assert Weighted(weights).exact[0] == 0
    assert Weighted(weights).exact[1:] == pytest.approx(Scored(query, key).exact[1:], abs=2e-6)


# Shapes, through the taps ----------------------------------------------------------------------


class Product(nn.Module):
    num_heads = 4

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return functional.scaled_dot_product_attention(*args, **kwargs)


def told(*args: Any, **kwargs: Any) -> tuple[float, ...]:
    with tapped() as agent:
        Product()(*args, **kwargs)
        [(_, attention)] = agent.take()
        assert len(attention.sampled) == len(attention.exact)
        return attention.exact


def test_inputs_of_three_to_five_dimensions() -> None:
    query, key = tensors()
    mask = torch.arange(1600).reshape(40, 40) % 7 > 2
    plain, masked = Scored(query, key).exact, Scored(query, key, mask[None, None]).exact
    flat_query, flat_key = query.flatten(0, 1), key.flatten(0, 1)
    assert told(query, key, key) == plain
    assert told(flat_query, flat_key, flat_key) == plain
    assert told(query[None], key[None], key[None]) == plain
    for form in (mask, mask[None], mask[None, None]):
        assert told(query, key, key, attn_mask=form) == pytest.approx(masked, abs=1e-6)
    for form in (mask, mask[None], mask.expand(8, 40, 40)):
        assert told(flat_query, flat_key, flat_key, form) == pytest.approx(masked, abs=1e-6)
    for form in (mask, mask[None], mask.expand(2, 4, 40, 40), mask.expand(1, 2, 1, 40, 40)):
        found = told(query[None], key[None], key[None], attn_mask=form)
        assert found == pytest.approx(masked, abs=1e-6)


def test_three_dimensions_without_heads_are_one_head() -> None:
    query, key = tensors(batch=1, heads=3, groups=3)  # 4 heads don't divide 3
    assert len(told(query[0], key[0], key[0])) == 1


def test_grouped_queries_and_dropout() -> None:
    query, key = tensors(groups=2)
    expected = by_definition(query, key, is_causal=True)
    found = told(query, key, key, is_causal=True, enable_gqa=True)
    assert found == pytest.approx(expected, abs=2e-6)
    query, key = tensors()
    assert told(query, key, key, dropout_p=0.5) == Scored(query, key).exact


def test_what_cannot_be_read_is_passed_over() -> None:
    from torch.nn.attention.bias import causal_lower_right

    query, key = tensors()
    with tapped() as agent:
        found = Product()(query, key, key, attn_mask=causal_lower_right(40, 40))
        assert torch.equal(found, Product()(query, key, key, is_causal=True))
        agent.take()
        Product()(query[0, 0], key[0, 0], key[0, 0])  # no dimension of heads
        nested = torch.nested.nested_tensor([query[0].transpose(0, 1)] * 2, layout=torch.jagged)
        nested = nested.transpose(1, 2)
        Product()(nested, nested, nested)
        assert agent.attentions == []


# The attention of transformers -------------------------------------------------------------------


def models() -> dict[str, tuple[Any, Any, int]]:
    """By name: the class, its configuration, and the attentions in one call."""
    import transformers as hf

    small: dict[str, Any] = {
        "vocab_size": 99,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return {
        "gpt2": (
            hf.GPT2LMHeadModel,
            hf.GPT2Config(n_embd=32, n_head=4, n_layer=2, n_positions=64, **small),
            2,
        ),
        "llama": (
            hf.LlamaForCausalLM,
            hf.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes, **small),
            2,
        ),
        "bert": (
            hf.BertModel,
            hf.BertConfig(num_attention_heads=4, **sizes, **small),
            2,
        ),
        "t5": (
            hf.T5Model,
            hf.T5Config(
                d_model=32, d_kv=8, d_ff=48, num_heads=4, num_layers=2, **small
            ),
            6,
        ),
    }  # fmt: skip


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_eager_and_fused_attention_of_transformers_agree(name: str, padded: bool) -> None:
    kind, config, number = models()[name]
    found: dict[str, list[Any]] = {}
    for implementation in ("eager", "sdpa"):
        torch.manual_seed(0)
        config._attn_implementation = implementation
        model = kind(config).train()
        for parameter in model.parameters():
            parameter.data *= 3  # not all alike
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        tokens = torch.randint(3, 99, (2, 20))
        given = {"input_ids": tokens}
        if padded:
            given["attention_mask"] = (torch.arange(20) < torch.tensor([[14], [20]])).long()
        if name == "t5":
            given["decoder_input_ids"] = tokens[:, :9]
        with tapped() as agent:
            model(**given)
            found[implementation] = [
                (path, attention.exact, attention.sampled) for path, attention in agent.take()
            ]
    eager, fused = found["eager"], found["sdpa"]
    assert len(eager) == len(fused) == number
    for (path, exact, sampled), (other_path, other_exact, other_sampled) in zip(eager, fused):
        assert path == other_path
        assert len(exact) == len(other_exact) == 4
        assert exact == pytest.approx(other_exact, abs=1e-4), path
        assert sampled == pytest.approx(other_sampled, abs=1e-4), path


def test_generation_with_a_cache() -> None:
    kind, config, _ = models()["llama"]
    model = kind(config).eval()
    with tapped() as agent:
        model.generate(torch.randint(3, 99, (1, 6)), max_new_tokens=4, do_sample=False)
        told = [(a.queries, a.keys) for path, a in agent.take() if path.endswith("0.self_attn")]
        assert told[0] == (6, 6)
        assert [keys for _, keys in told[1:]] == list(range(7, 7 + len(told) - 1))


@pytest.mark.parametrize("case", [{}, {"groups": 2}, {"is_causal": True}, {"mask": PADDED}])
def test_a_map_has_the_weights_of_the_first_row(
    case: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    case = dict(case)
    query, key = tensors(groups=case.pop("groups", 4))
    if "mask" in case:
        case["mask"] = case["mask"][:, None, None, :]
    repeated = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    expected = _weights(query, repeated, **case)
    found, step = Scored(query, key, **case).map()
    assert step == 1 and torch.allclose(found, expected[0], atol=1e-6)
    monkeypatch.setattr("tensorpoint.agent.attention._MAPPED", 2200)
    found, step = Scored(query, key, **case).map()
    assert step == 3 and torch.allclose(found, expected[0, :, ::3], atol=1e-6)
    found, step = Weighted(expected).map()
    assert step == 3 and torch.equal(found, expected[0, :, ::3])
    assert found.data_ptr() != expected.data_ptr()


def _weights(query: Tensor, key: Tensor, mask: Any = None, is_causal: bool = False) -> Tensor:
    """By torch's own attention, with the identity as values."""
    values = torch.eye(key.shape[2]).expand(*key.shape[:2], -1, -1)
    return functional.scaled_dot_product_attention(
        query, key, values, attn_mask=mask, is_causal=is_causal
    )

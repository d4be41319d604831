"""Which -inf are meant: masks and masked logits are, overflows and logarithms of zero are not."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from tensorpoint.agent.mask_words import may_mask
from tensorpoint.agent.masks import is_mask, is_masked_output
from tests.unit.agent.armed import armed

INF = float("inf")


class User(nn.Module):
    """A module of the user's own, in which anything may happen."""

    def forward(self, x: torch.Tensor, attn_mask: torch.Tensor) -> torch.Tensor:
        return x + attn_mask


def fill(x: torch.Tensor) -> torch.Tensor:
    x[x < 1] = -INF
    return x


def topmost(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 1, x, float("-inf"))


class ByHelper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x)

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        return topmost(x)


class ByTable(nn.Module):
    ways: ClassVar[dict[str, Any]] = {"fill": fill}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.ways["fill"](x)


class ByBuffer(nn.Module):
    offsets: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0.0, -INF]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offsets


class ByLogarithm(nn.Module):
    def forward(self, logits: torch.Tensor, legal_actions: torch.Tensor) -> torch.Tensor:
        return logits + legal_actions.log()


class Surprise(nn.Module):
    """It computes: no word of a mask."""

    def forward(self, x: torch.Tensor, information: Any = None, keepdim: bool = True) -> Any:
        inference = x.softmax(-1)
        return -inference.log().mean(-1, keepdim=keepdim), nn.functional.normalize(inference)


class Neighbours(nn.Module):
    """It computes a mask of 0 and -inf, without a word of it."""

    def forward(self, edges: torch.Tensor) -> torch.Tensor:
        return edges.log()


class Chosen(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.one_hot(x.argmax(-1), 4).float().log()


class Gates(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sigmoid().log()


class Entropy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ByHelper()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) / 2


def causal(size: int) -> torch.Tensor:
    return torch.full((size, size), -INF).triu(1)


def scores(*, grad: bool = True) -> torch.Tensor:
    return torch.arange(16.0).view(4, 4).requires_grad_(grad)


BLOCKED = torch.ones(4, 4, dtype=torch.bool).triu(1)

MASKED = {
    "masked_fill": lambda x: x.masked_fill(BLOCKED, -INF),
    "masked_fill_": lambda x: (x * 1).masked_fill_(BLOCKED, -INF),
    "where": lambda x: torch.where(BLOCKED, -INF, x),
    "added mask": lambda x: x + causal(4),
    "added mask, scaled": lambda x: (x * 0.5 + causal(4)) / 2,
    "index assignment": lambda x: _assigned(x * 1),
    "index_fill": lambda x: x.index_fill(1, torch.tensor([1]), -INF),
    "scatter": lambda x: x.scatter(1, torch.tensor([[1]] * 4), -INF),
    "slice copied": lambda x: _copied(x * 1),
    "padding": lambda x: nn.functional.pad(x, (0, 2), value=-INF),
    "reshaped": lambda x: x.masked_fill(BLOCKED, -INF).view(2, 8).t().unsqueeze(0),
    "concatenated": lambda x: torch.cat([x, x.masked_fill(BLOCKED, -INF)]),
    "repeated": lambda x: x.masked_fill(BLOCKED, -INF).repeat(2, 1),
    "normalised": lambda x: x.masked_fill(BLOCKED, -INF).log_softmax(-1),
    "converted": lambda x: x.masked_fill(BLOCKED, -INF).to(torch.bfloat16),
}

COMPUTED = {
    "log of zero": torch.log,
    "log of zero, moved": lambda x: torch.log(x).view(2, 8).t() * 2,
    "log of zero, and a constant": lambda x: torch.log(x) + torch.ones(4),
    "linear overflow": lambda x: nn.functional.linear(x, torch.full((4, 4), -3e38)),
    "exp": lambda x: -torch.exp(x * 50),
}


def _assigned(x: Any) -> Any:
    x[BLOCKED] = -INF
    return x


def _copied(x: Any) -> Any:
    x[:, 1] = -INF
    return x


def only_neginf(x: torch.Tensor) -> bool:
    return bool(torch.isneginf(x).any()) and not bool((torch.isnan(x) | torch.isposinf(x)).any())


@pytest.mark.parametrize("how", MASKED)
def test_masked_scores_are_masked_however_it_is_written(how: str) -> None:
    made = MASKED[how](scores())
    assert only_neginf(made)
    assert is_mask(made, "hidden", nn.Linear(4, 4)) is True
    assert is_masked_output(made, User())


@pytest.mark.parametrize("how", COMPUTED)
def test_an_infinity_that_was_computed_is_no_mask(how: str) -> None:
    made = COMPUTED[how](scores())
    assert only_neginf(made)
    assert is_mask(made, "hidden", nn.Linear(4, 4)) is False
    assert not is_masked_output(made, User())


@pytest.mark.parametrize("how", [*MASKED, *COMPUTED])
def test_without_a_gradient_the_code_of_the_module_is_asked(how: str) -> None:
    with torch.no_grad():
        made = {**MASKED, **COMPUTED}[how](scores(grad=False))
    assert is_mask(made, "hidden", User()) is None
    assert is_mask(made, "hidden", nn.Linear(4, 4)) is False  # which would make a NaN of it
    assert is_masked_output(made, User())
    assert not is_masked_output(made, Surprise())
    assert is_masked_output(made, Surprise(), masked_inside=True)
    assert not is_masked_output(made.min(), User())


@pytest.mark.parametrize("kind", [User, ByHelper, ByTable, ByBuffer, ByLogarithm])
def test_code_that_speaks_of_masks_may_mask(kind: type[nn.Module]) -> None:
    assert may_mask(kind())


def test_code_that_does_not_computes() -> None:
    assert not may_mask(Surprise())


def test_a_module_without_a_forward_in_python_may_mask() -> None:
    assert may_mask(torch.jit.script(nn.Sequential(nn.ReLU())))


def test_what_a_layer_inside_masked_is_no_news_of_the_one_around() -> None:
    with armed() as agent, torch.no_grad():
        Entropy()(torch.randn(4, 4))
    assert agent.stops == []


@pytest.mark.parametrize(
    "name", ["attn_mask", "mask", "attention_mask", "bias", "batch['src_mask']"]
)
def test_a_name_says_mask(name: str) -> None:
    computed = COMPUTED["log of zero"](scores())
    assert is_mask(computed, name, nn.Linear(4, 4)) is True
    assert is_mask(computed, "mask.hidden", nn.Linear(4, 4)) is False


def test_zeros_and_neginf_are_a_mask_whoever_made_them() -> None:
    assert is_mask(causal(4), "hidden", User()) is True
    assert is_masked_output(causal(4), Neighbours())
    with torch.no_grad():
        assert is_masked_output(causal(4), Neighbours())


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("log", [torch.log, torch.log2, torch.log10])
def test_the_logarithm_of_a_saturated_softmax_is_none(grad: bool, log: Any) -> None:
    with torch.set_grad_enabled(grad):
        made = log((scores(grad=grad) * 1e3).softmax(-1))
        assert only_neginf(made) and set(made.unique().tolist()) == {0.0, -INF}
        for module in (Surprise(), Neighbours()):
            assert not is_masked_output(made, module)
            assert not is_masked_output(made.view(2, 2, 4).mT + 1.0, module)
    assert is_masked_output(made.detach(), Neighbours())  # of constants, where gradients are on
    if grad:
        assert is_mask(made, "x", User()) is False


def test_the_logarithm_of_sigmoids_is_none_in_code_that_has_them() -> None:
    with torch.no_grad():
        made = torch.cat([causal(4), causal(4)])
        assert is_masked_output(made, Neighbours())
        assert not is_masked_output(made, Gates())


def test_a_layer_whose_own_state_was_spoilt_does_not_mask() -> None:
    linear, norm = nn.Linear(4, 4), nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        linear.bias[1] = -INF
    assert norm.running_mean is not None
    norm.running_mean[2] = INF
    for layer in (linear, norm):
        made = layer(scores())
        assert only_neginf(made)
        assert not is_masked_output(made, layer)


def test_a_function_of_the_programs_may_be_called_log() -> None:
    class Log(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.log()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    assert is_masked_output(Log.apply(scores()) + torch.ones(4), User())  # type: ignore[operator]


def test_the_logarithm_of_a_choice_is_meant_in_code_that_makes_it() -> None:
    with torch.no_grad():
        made = Chosen()(scores(grad=False))
        assert is_masked_output(made, Chosen())
        assert is_masked_output(made[0], Neighbours())  # a single row may be anything
        assert not is_masked_output(made, Neighbours())


def test_nothing_but_one_number_is_no_mask_for_a_layer_that_multiplies() -> None:
    assert is_mask(causal(4), "hidden", nn.Linear(4, 4)) is False
    assert not is_masked_output(causal(4), nn.Linear(4, 4))


@pytest.mark.parametrize(
    "layer",
    [nn.ConstantPad1d(1, -INF), nn.Threshold(0.0, -INF), nn.Embedding.from_pretrained(causal(4))],
)
def test_a_layer_that_was_given_an_infinity_masks_with_it(layer: nn.Module) -> None:
    made = layer(torch.tensor([1, 0]) if isinstance(layer, nn.Embedding) else scores() - 8)
    assert only_neginf(made)
    assert is_masked_output(made, layer)


@pytest.mark.parametrize("values", [[-INF], [-INF, 1.0], [-INF, -INF, -INF]])
def test_too_few_numbers_show_no_mask(values: list[float]) -> None:
    made = torch.log(torch.tensor(values).exp().requires_grad_())
    assert is_mask(made, "x", nn.Linear(1, 1)) is False


@pytest.mark.parametrize("consumer", [nn.Softmax(-1), nn.LogSoftmax(-1), nn.Softmax2d()])
def test_a_softmax_is_made_for_masked_scores(consumer: nn.Module) -> None:
    assert is_mask(COMPUTED["log of zero"](scores()), "input", consumer) is True


@pytest.mark.parametrize("module", [nn.Linear(4, 4), nn.LogSoftmax(-1), nn.LayerNorm(4)])
def test_a_torch_layer_never_masks(module: nn.Module) -> None:
    made = torch.where(BLOCKED, -INF, scores(grad=False))
    assert not is_masked_output(made, module)


def test_a_half_next_to_its_limit_has_overflowed() -> None:
    half = torch.tensor([-6e4, 5e4, -INF, 1.0]).half()
    assert not is_masked_output(half, User())
    assert is_masked_output(half.float(), User())
    assert is_masked_output(torch.tensor([-6.0, 5.0, -INF, 1.0]).half(), User())


def test_no_mode_sees_the_question() -> None:
    class Every(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    seen: list[Any] = []
    made, user = MASKED["masked_fill"](scores()), User()
    with Every():
        said = is_mask(made, "x", user), is_masked_output(made, user)
    assert said == (True, True) and seen == []


# In a model --------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Receives a mask, adds it somewhere, and may return the scores."""

    def __init__(self, how: Any, *, weights: bool) -> None:
        super().__init__()
        self.how, self.weights = how, weights
        self.query, self.value = nn.Linear(4, 4), nn.Linear(4, 4)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Any, additive: Any = None) -> Any:
        made = self.how(self.query(x))
        if additive is not None:
            made = made + additive
        return (self.softmax(made) @ self.value(x), made if self.weights else None)


@pytest.mark.parametrize("weights", [True, False], ids=["returns scores", "keeps scores"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("how", ["masked_fill", "where", "added mask", "index assignment"])
def test_a_masked_model_does_not_stop(how: str, grad: bool, weights: bool) -> None:
    model = nn.Sequential(Attention(MASKED[how], weights=weights))
    with armed() as agent, torch.set_grad_enabled(grad):
        model(torch.randn(4, 4))
    assert agent.stops == []


@pytest.mark.parametrize("keyword", [True, False], ids=["keyword", "positional"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_a_mask_as_an_argument_of_the_root_is_no_bad_batch(grad: bool, keyword: bool) -> None:
    model, x = Attention(lambda x: x, weights=True), torch.randn(4, 4)
    with armed() as agent, torch.set_grad_enabled(grad):
        model(x, additive=causal(4)) if keyword else model(x, causal(4))
    assert agent.stops == []


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
def test_a_fully_masked_row_stops_at_the_softmax(grad: bool) -> None:
    def whole_row(x: Any) -> Any:
        return x.masked_fill(torch.tensor([[True], [False], [False], [False]]), -INF)

    model = nn.Sequential(Attention(whole_row, weights=True))
    with armed() as agent, torch.set_grad_enabled(grad):
        model(torch.randn(4, 4))
    assert agent.stops == [("nonfinite.forward", "0.softmax", 0)]


# Infinities that are handed on --------------------------------------------------------------------


class Product(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4, 4) + 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def positive(layer: Any) -> nn.Module:
    with torch.no_grad():
        layer.weight.abs_()
    return layer


@pytest.mark.parametrize(
    "consumer",
    [
        lambda: positive(nn.Linear(4, 2)),
        Product,
        lambda: nn.Sequential(nn.Unflatten(0, (1, -1)), positive(nn.Conv1d(4, 2, 1))),
    ],
    ids=["Linear", "matmul", "Conv"],
)
def test_a_product_of_nothing_but_logarithms_of_zero_is_no_mask(consumer: Any) -> None:
    """It is -inf throughout, as is what it was given."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 4), consumer()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.log(self.first(x) * 0))

    net = Net()
    with armed() as agent:
        assert bool((net(torch.randn(4, 4)) == -INF).all())
    assert agent.stops == [("nonfinite.forward", "", 0)]

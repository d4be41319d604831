"""NaN and Inf in gradients: which module is blamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.unit.agent.armed import armed
from tests.unit.agent.spoiling import INF, NAN, Does, Spoils, batch, blamed, lin, spoil, trained

# Who made it -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [NAN, INF, -INF], ids=str)
def test_the_module_whose_backward_made_it_is_named(value: float) -> None:
    model: Any = nn.Sequential(lin(), nn.Tanh(), Spoils(value), lin(), nn.Tanh(), lin())
    agent = trained(model)
    assert agent.stops == [("nonfinite.backward", "2", 0)]
    event = agent.event
    assert event.module is model[2] and event.entered is None
    assert (
        event.headline
        == (
            f"{'NaN' if value != value else 'Inf' if value > 0 else '-Inf'}"
            " in a gradient, made in the backward of"
        )
        or value == -INF
    )
    assert event.tensor is not None and event.tensor.name in ("bias.grad", "weight.grad")
    assert "of 0 (Linear)" in event.sentences[1]
    assert "the output of 1 (Tanh)" in event.sentences[2]


def test_the_innermost_module_is_named() -> None:
    model = nn.Sequential(lin(), nn.Sequential(nn.Sequential(Spoils()), lin()), lin())
    assert blamed(model) == ["1.0.0"]


def test_a_modules_own_parameter_gradient() -> None:
    def forward(self: Any, x: Any) -> Any:
        return x * self.scale.sqrt()

    model = nn.Sequential(lin(), Does(forward), lin())
    model[1].scale = nn.Parameter(torch.tensor([1.0, 0.0]))
    agent = trained(model)
    assert agent.places == ["1"]
    assert "its own backward" in agent.event.sentences[2]
    assert agent.event.tensor is not None
    assert (agent.event.tensor.name, agent.event.tensor.first_index) == ("scale.grad", (1,))


def test_an_operation_between_two_children_is_blamed_on_the_forward_around() -> None:
    inner = Does(lambda self, x: self.b(spoil(self.a(x))), a=lin(), b=lin())
    agent = trained(nn.Sequential(lin(), inner, lin()))
    assert agent.places == ["1"]
    assert "an operation in its forward, after the call of 1.a (Linear)" in agent.event.sentences[2]


def test_an_operation_before_the_first_child_is_blamed_on_that_module() -> None:
    inner = Does(lambda self, x: self.a(spoil(x)), a=lin())
    assert blamed(nn.Sequential(lin(), inner, lin())) == ["1"]


def test_an_operation_after_the_last_child_is_blamed_on_that_module() -> None:
    inner = Does(lambda self, x: spoil(self.a(x)), a=lin())
    assert blamed(nn.Sequential(lin(), inner, lin())) == ["1"]


def residual(f: Callable[[Any, Any], Any]) -> nn.Module:
    return Does(
        lambda self, x: x + self.mlp(f(self, x)), norm=nn.LayerNorm(2), mlp=lin(), s=Spoils()
    )


def test_residual_blocks() -> None:
    plain = residual(lambda self, x: self.norm(x))
    inline = residual(lambda self, x: spoil(x))
    first = residual(lambda self, x: self.s(x))
    assert blamed(nn.Sequential(plain, plain, first, plain)) == ["2.s"]
    assert blamed(nn.Sequential(plain, inline, plain)) == ["1"]
    assert blamed(nn.Sequential(first, plain)) == []  # nothing trains before it


def test_an_operation_beside_a_child_that_got_the_same_tensor() -> None:
    beside = Does(lambda self, x: self.norm(x) + spoil(x), norm=nn.LayerNorm(2))
    assert blamed(nn.Sequential(lin(), beside, lin())) == ["1"]


@pytest.mark.parametrize("culprit", ["left", "middle", "right"])
def test_branches_that_start_from_one_tensor(culprit: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        h = self.stem(x)
        return self.head(self.left(h) + self.middle(h) * self.right(h))

    children = {
        name: Spoils() if name == culprit else lin() for name in ("left", "middle", "right")
    }
    assert blamed(Does(forward, stem=lin(), head=lin(), **children)) == [culprit]


@pytest.mark.parametrize("culprit", ["a", "b"])
def test_branches_that_end_in_one_module(culprit: str) -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.join(self.a(self.stem_a(x)), self.b(self.stem_b(x)))

    children = {name: Spoils() if name == culprit else nn.Tanh() for name in ("a", "b")}
    join = Does(lambda self, a, b: a * b)
    assert blamed(Does(forward, join=join, stem_a=lin(), stem_b=lin(), **children)) == [culprit]


def test_the_second_argument_of_a_module() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.join(self.a(x), self.b(x))

    join = Does(lambda self, a, b: a * spoil(b))
    assert blamed(Does(forward, a=lin(), b=lin(), join=join)) == ["join"]


def test_a_module_that_got_what_an_operation_made() -> None:
    def forward(self: Any, x: Any) -> Any:
        h = torch.sigmoid(self.a(x)) * 2.0
        return self.outer(h) + self.b(h)

    outer = nn.Sequential(nn.Identity(), Spoils(), lin())
    assert blamed(Does(forward, a=lin(), b=lin(), outer=outer)) == ["outer.1"]
    inline = Does(lambda self, x: self.b(spoil(self.a(x)) * 2.0), a=lin(), b=lin())
    agent = trained(inline)
    assert agent.places == [""] and "after the call of a (Linear)" in agent.event.sentences[2]


def test_a_parameter_used_outside_its_module() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.a(x) + spoil(self.b.weight).sum()

    agent = trained(Does(forward, a=lin(), b=lin()))
    assert agent.places == ["b"]
    assert "the parameter is used elsewhere" in agent.event.sentences[2]


def test_a_keyword_argument() -> None:
    model = Does(lambda self, x: self.b(x=self.a(x)), a=lin(), b=Does(lambda self, *, x: spoil(x)))
    assert blamed(model) == ["b"]


def test_a_skip_over_many_modules_is_not_suspected() -> None:
    def forward(self: Any, x: Any) -> Any:
        h = self.stem(x)
        y = self.spoils(h)
        for _ in range(12):
            y = self.body(y)
        return self.head(torch.cat([h, y], -1))

    children = {"stem": lin(), "spoils": Spoils(), "body": lin(), "head": nn.Linear(4, 1)}
    assert blamed(Does(forward, **children)) == ["spoils"]


def test_a_shared_module_called_several_times() -> None:
    def forward(self: Any, x: Any) -> Any:
        x = self.shared(x)
        x = self.spoils(x)
        return self.shared(self.shared(x))

    assert blamed(Does(forward, shared=lin(), spoils=Spoils())) == ["spoils"]
    spoils = Spoils(at={1})
    model = Does(lambda self, x: self.s(self.b(self.s(self.a(x)))), a=lin(), b=lin(), s=spoils)
    agent = trained(model)
    assert agent.places == ["s"]
    assert "the output of b (Linear)" in agent.event.sentences[2]


def test_a_recurrence() -> None:
    def forward(self: Any, x: Any) -> Any:
        h = x
        for _ in range(20):
            h = self.cell(x, h)
        return h

    cell = Does(
        lambda self, x, h: torch.tanh(self.a(x) + self.s(self.b(h))), a=lin(), b=lin(), s=Spoils()
    )
    assert blamed(Does(forward, cell=cell)) == ["cell.s"]


def test_containers_that_pass_on_what_a_child_returned() -> None:
    inner = nn.Sequential(lin(), nn.Identity(), nn.Dropout(0.0), nn.Sequential(nn.Identity()))
    assert blamed(nn.Sequential(inner, Spoils(), lin())) == ["1"]
    assert blamed(nn.Sequential(nn.Sequential(nn.Sequential(lin())), Spoils())) == ["1"]


@pytest.mark.parametrize("make", [nn.ReLU, nn.ReLU6, nn.SELU, nn.LeakyReLU])
def test_activations_in_place(make: Any) -> None:
    model = nn.Sequential(lin(), make(inplace=True), lin(), make(inplace=True), Spoils(), lin())
    assert blamed(model) == ["4"]
    model = nn.Sequential(lin(), make(inplace=True), Spoils(), lin())
    assert blamed(model) == ["2"]


def test_a_tensor_that_the_forward_wrote_into_is_not_what_the_child_returned() -> None:
    def forward(self: Any, x: Any) -> Any:
        h = self.a(x)
        h[0] = spoil(h[0].clone())
        return self.b(h)

    assert blamed(nn.Sequential(lin(), Does(forward, a=lin(), b=lin()))) == ["1"]


def test_views_of_outputs() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.b(spoil(self.a(x).view(-1)).view(3, 2)[:, [1, 0]].t().t())

    assert blamed(nn.Sequential(lin(), Does(forward, a=lin(), b=lin()))) == ["1"]


def test_tuple_outputs() -> None:
    two = Does(lambda self, x: (self.a(x), [{"b": self.b(x)}]), a=lin(), b=lin())
    take_second = Does(lambda self, x: self.c(x[1][0]["b"]), c=Spoils())
    agent = trained(nn.Sequential(lin(), two, take_second, lin()))
    assert agent.places == ["2.c"]


def test_the_second_output_of_a_torch_module() -> None:
    def forward(self: Any, x: Any) -> Any:
        _, (h, _) = self.lstm(self.a(x).unsqueeze(0))
        return self.s(h[-1])

    lstm = nn.LSTM(2, 2, batch_first=True)
    assert blamed(Does(forward, a=lin(), lstm=lstm, s=Spoils())) == ["s"]
    forward_2 = lambda self, x: self.s(self.lstm(self.a(x).unsqueeze(0))[1][0])  # noqa: E731
    assert blamed(Does(forward_2, a=lin(), lstm=nn.LSTM(2, 2), s=Spoils())) == ["s"]


def test_a_loss_function_outside_any_module() -> None:
    agent = trained(nn.Sequential(lin(), nn.Tanh()), loss=lambda y: spoil(y).sum())
    assert agent.stops == [("nonfinite.backward", "", 0)]
    assert agent.event.headline == "NaN in the gradient that came into the output of"
    assert "such as a loss function" in agent.event.sentences[2]


def test_a_loss_that_is_a_module() -> None:
    class Loss(nn.Module):
        def forward(self, y: torch.Tensor) -> torch.Tensor:
            return spoil(y).sum()

    criterion = Loss()
    agent = trained(nn.Sequential(lin(), nn.Tanh()), loss=criterion)
    assert agent.event.module is criterion


def test_an_auxiliary_loss_on_a_hidden_output() -> None:
    body, head = lin(), nn.Sequential(lin(), lin())
    hidden: list[torch.Tensor] = []

    def forward(self: Any, x: Any) -> Any:
        hidden.append(self.body(x))
        return self.head(hidden[-1])

    agent = trained(
        Does(forward, body=body, head=head), loss=lambda y: y.sum() + spoil(hidden[-1]).sum()
    )
    assert agent.places == ["body"]
    assert agent.event.headline.startswith("NaN in the gradient that came into the output of")


def test_frozen_layers_far_from_the_parameter_that_shows_it() -> None:
    frozen = [lin().requires_grad_(False) for _ in range(30)]
    model = nn.Sequential(lin(), *frozen[:15], Spoils(), *frozen[15:], lin())
    assert blamed(model) == ["16"]


def test_only_a_small_adapter_is_trained() -> None:
    def adapted(self: Any, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))

    blocks = [
        Does(adapted, base=lin().requires_grad_(False), down=nn.Linear(2, 1), up=nn.Linear(1, 2))
        for _ in range(4)
    ]
    model = nn.Sequential(lin().requires_grad_(False), blocks[0], blocks[1], Spoils(), *blocks[2:])
    assert blamed(model) == ["3"]


def test_a_gradient_above_the_size_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensorpoint.agent.flows._MAX_KEPT_BYTES", 4)
    assert blamed(nn.Sequential(lin(), Spoils(), lin())) == ["1"]


def test_nothing_is_made_by_what_only_masks() -> None:
    # sqrt(0) has the gradient inf, relu's backward makes 0 of it.
    act = Does(lambda self, x: torch.sqrt(torch.relu(x)))
    model: Any = nn.Sequential(lin(), nn.ReLU(), Does(lambda self, x: x.sqrt()), lin())
    with torch.no_grad():
        model[0].bias.fill_(-10.0)
    assert blamed(model) == []
    assert blamed(nn.Sequential(lin(), act, lin())) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant: bool) -> None:
    def run(self: Any, x: Any) -> Any:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=reentrant)
        return self.head(x)

    def model(*blocks: nn.Module) -> nn.Module:
        inner = Does(run, head=lin())
        inner.blocks = nn.ModuleList(blocks)
        return nn.Sequential(lin(), inner)

    inside = nn.Sequential(lin(), Spoils(), lin())
    assert blamed(model(nn.Sequential(lin()), inside, nn.Sequential(lin()))) == ["1.blocks.1.1"]
    inline = Does(lambda self, x: spoil(self.a(x)), a=lin())
    expected = ["1"] if reentrant else ["1.blocks.1"]
    got = blamed(model(nn.Sequential(lin()), inline, nn.Sequential(lin())))
    assert got in (["1.blocks.1"], expected)


# The gradients of no parameter -------------------------------------------------------------------


def test_the_gradient_of_an_input() -> None:
    model = nn.Sequential(lin(), Spoils(), lin()).requires_grad_(False)
    with armed() as agent:
        for _ in range(3):
            x = batch().requires_grad_()
            model(x).sum().backward()
    assert agent.places == ["1"]
    assert agent.event.tensor is not None and agent.event.tensor.name == "gradient of an output"


def test_autograd_grad() -> None:
    model = nn.Sequential(nn.Tanh(), Spoils(at={0, 1, 3}), lin())
    with armed() as agent:
        for _ in range(4):
            x = batch().requires_grad_()
            torch.autograd.grad(model(x).sum(), x)
    assert agent.stops == [("nonfinite.backward", "1", 0), ("nonfinite.backward", "1", 3)]
    tensor = agent.calls[0][1].tensor
    assert tensor is not None and tensor.name == "result 0 of torch.autograd.grad"


def test_autograd_grad_outside_of_any_module() -> None:
    with armed() as agent:
        x = batch().requires_grad_()
        torch.autograd.grad(spoil(x).sum(), x)
    assert agent.stops == [("nonfinite.backward", "", None)]
    assert agent.event.module is None


def test_what_a_gradient_penalty_makes_of_it_is_no_news() -> None:
    model = nn.Sequential(lin(), Spoils(), lin())
    with armed() as agent:
        for _ in range(2):
            model.zero_grad()
            x = batch().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            ((gradient.norm(dim=1) - 1) ** 2).mean().backward()
    assert agent.places == ["1"]


def test_of_a_gradient_penalty_beside_a_loss_the_layer_is_not_said_to_have_made_it() -> None:
    def step(model: nn.Linear, root: bool) -> None:
        x = torch.randn(4, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        length = slope.square().sum(-1)
        (model(x).mean() + (length.sqrt() if root else length).mean()).backward()

    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    with armed() as agent:
        step(model, root=False)
        step(model, root=True)
    assert "made in the backward" not in agent.event.headline
    assert "or it came past the module's output" in agent.event.sentences[2]


def test_after_a_gradient_penalty_a_layer_that_made_it_is_said_to() -> None:
    penalised = nn.Linear(3, 1, bias=False)
    x = torch.randn(4, 3, requires_grad=True)

    def forward(self: Any, x: Any) -> Any:
        return x * self.scale.sqrt()

    model = nn.Sequential(lin(), Does(forward), lin())
    model[1].scale = nn.Parameter(torch.tensor([1.0, 0.0]))
    with armed() as agent:
        (slope,) = torch.autograd.grad(penalised(x).sum(), x, create_graph=True)
        slope.square().sum().backward()
        model(batch()).sum().backward()
    assert agent.places == ["1"]
    assert "its own backward made it" in agent.event.sentences[2]


def test_double_backward() -> None:
    model = nn.Sequential(lin(), nn.Tanh(), lin())
    with armed() as agent:
        x = batch().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        gradient.norm(dim=1).sum().backward()
        assert agent.stops == []
        model.zero_grad()
        (gradient,) = torch.autograd.grad(model(x).pow(2).sum(), x, create_graph=True)
        spoil(gradient).sum().backward()
    assert len(agent.stops) == 1

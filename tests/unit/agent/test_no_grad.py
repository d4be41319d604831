"""Parameters that got no gradient in a step: which, when that is told, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tensorpoint.agent.watches.no_grad import NoGrad
from tests.unit.agent.armed import Armed, armed

x = torch.ones(2, 4)
CONDITION = 'no_grad("*")'


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.enc(x))


class Detached(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.enc(x)
        h = h.detach()
        return self.head(h)


class Unused(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class Integer(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = self.enc(x).argmax(-1, keepdim=True)
        return self.head(ids.float().expand(2, 4))


class GradientsOff(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            h = self.enc(x)
        return self.head(h)


class DecoratedEncoder(nn.Linear):
    @torch.no_grad()
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input)


class Scaled(Net):
    """Has a parameter that its forward does not use."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale.data


def train(
    model: nn.Module,
    steps: int = 1,
    loss: Callable[[torch.Tensor, int], torch.Tensor] = lambda out, step: out.sum(),
    optimizer: Any = None,
    set_to_none: bool = True,
) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        loss(model(x), step).backward()
        optimizer.step()
    return optimizer


def why(model: nn.Module, **arguments: Any) -> tuple[str, str]:
    """The headline and the reasons of the one stop."""
    with armed(CONDITION) as agent:
        train(model, **arguments)
    *reasons, last = agent.event.sentences
    assert last == 'no_grad("*") = true (step 0).'
    return agent.event.headline, "\n".join(reasons)


def watch_of(agent: Armed) -> NoGrad:
    return next(watch for watch in agent.watches if isinstance(watch, NoGrad))


def line(function: Callable[..., Any], offset: int) -> str:
    return f"test_no_grad.py:{function.__code__.co_firstlineno + offset}"


# Which ------------------------------------------------------------------------------------------


def test_a_model_that_learns_is_not_stopped_at() -> None:
    with armed(CONDITION) as agent:
        train(Net(), 3)
        train(Net(), 3, set_to_none=False)
        frozen = Net()
        frozen.enc.requires_grad_(False)
        train(frozen, 3)
    assert not agent.calls


def test_one_stop_tells_of_all_parameters_of_the_step() -> None:
    with armed(CONDITION) as agent:
        net = nn.Sequential(Unused(), Unused())
        net[0].head = nn.Linear(4, 4)
        train(net, 4)
    assert [(name, path) for name, path, _ in agent.stops] == [("no_grad", "0.enc")]
    assert agent.event.headline == ("no gradient for 4 parameters, among them weight and bias of")
    assert set(agent.event.values["parameters"]) == {
        "0.enc.weight",
        "0.enc.bias",
        "1.enc.weight",
        "1.enc.bias",
    }
    assert agent.event.value == 4


def test_it_stops_again_after_there_was_one() -> None:
    class Sometimes(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            used = step not in (1, 2, 4)
            return self.head(self.enc(x) if used else x)

    with armed(CONDITION) as agent:
        net = Sometimes()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(6):  # noqa: B007 - forward reads it
            train(net, 1, optimizer=optimizer)
    assert agent.stops == [("no_grad", "enc", 1), ("no_grad", "enc", 4)]


def test_a_glob_narrows_it() -> None:
    for glob, stops in (("head", 0), ("enc", 1), ("e*", 1), ("*.enc", 0)):
        with armed(f'no_grad("{glob}")') as agent:
            train(Unused(), 2)
        assert len(agent.calls) == stops, glob


def test_it_combines_with_other_conditions() -> None:
    with armed('no_grad("*") and step >= 2') as agent:
        train(Unused(), 4)
    assert [step for _, _, step in agent.stops] == [2]
    with armed('not no_grad("*") and step >= 2') as agent:
        train(Net(), 4)
    assert {step for _, _, step in agent.stops} == {2}


def test_a_gradient_of_an_earlier_step_is_none() -> None:
    def loss(out: torch.Tensor, step: int) -> torch.Tensor:
        return out.sum() if step == 0 else net.head(x).sum()

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with armed(CONDITION) as agent:
        for step in range(2):  # zero_grad is never called
            loss(net(x), step).backward()
            optimizer.step()
    assert agent.stops == [("no_grad", "enc", 1)]
    assert "its .grad is still that of an earlier step" in agent.event.sentences[0]


def test_a_gradient_that_was_only_zeroed_is_none() -> None:
    net = Net()

    def loss(out: torch.Tensor, step: int) -> torch.Tensor:
        return out.sum() if step == 0 else net.head(x).sum()

    with armed(CONDITION) as agent:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad(set_to_none=False)
            loss(net(x), step).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
    assert agent.stops == [("no_grad", "enc", 1)]
    assert "its .grad is all zeros since zero_grad" in agent.event.sentences[0]


def test_the_other_network_of_two_is_not_missed() -> None:
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    g = torch.optim.SGD(generator.parameters(), lr=0.1)
    c = torch.optim.SGD(critic.parameters(), lr=0.1)
    with armed(CONDITION) as agent:
        for _ in range(3):
            c.zero_grad()
            critic(generator(x).detach()).sum().backward()
            c.step()
            g.zero_grad()
            critic(generator(x)).sum().backward()
            g.step()
    assert not agent.calls


def test_what_ran_before_another_optimizers_step_counts() -> None:
    """A generator whose output is made once, for the critic's step and for its own."""
    generator, critic = nn.Linear(4, 4), nn.Linear(4, 1)
    g = torch.optim.SGD(generator.parameters(), lr=0.1)
    c = torch.optim.SGD(critic.parameters(), lr=0.1)
    with armed(CONDITION) as agent:
        for step in range(3):
            fake = generator(x)
            c.zero_grad()
            critic(fake.detach()).sum().backward()
            c.step()
            g.zero_grad()
            # In the last step what is for the generator is detached, too.
            critic(fake if step < 2 else fake.detach()).sum().backward()
            assert not agent.calls
            g.step()
    reason = agent.event.sentences[0]
    assert "weight, bias: its output is in the graph, but the loss does not depend on it" in reason


def test_one_backward_pass_may_be_for_two_optimizers() -> None:
    body, head, spare = nn.Linear(4, 4), nn.Linear(4, 1), nn.Linear(4, 1)
    optimizers = [
        torch.optim.SGD(module.parameters(), lr=0.1)
        for module in (body, nn.ModuleList([head, spare]))
    ]
    with armed(CONDITION) as agent:
        head(body(x)).sum().backward()
        spare(x)
        for optimizer in optimizers:
            optimizer.step()
    assert "no backward pass" not in agent.event.sentences[0]
    assert "the loss does not depend on it" in agent.event.sentences[0]


def test_accumulation_counts_as_one_step() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList([nn.Linear(4, 1), nn.Linear(4, 1)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.experts[micro](x)

    net = Experts()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with armed(CONDITION) as agent:
        for _ in range(3):
            optimizer.zero_grad()
            for micro in range(2):  # noqa: B007
                net(x).sum().backward()
            optimizer.step()
    assert not agent.calls


def test_a_program_that_updates_by_hand_is_looked_at_in_its_next_forward(
    monkeypatch: Any,
) -> None:
    # Optimizers of other tests may not be collected yet.
    monkeypatch.setattr("gc.get_objects", list)
    net = Unused()
    with armed(CONDITION) as agent:
        for _ in range(3):
            net(x).sum().backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
    assert agent.stops == [("no_grad", "enc", 1)]


# Why --------------------------------------------------------------------------------------------


def test_detached_in_a_forward() -> None:
    headline, reasons = why(Detached())
    assert headline == "no gradient for weight and bias of"
    assert reasons == (
        "enc.weight, enc.bias: its output is in the graph, but the loss does not depend on it: it "
        "is not used afterwards, or detached. Lines there that cut it: "
        f"{line(Detached.forward, 2)}: h = h.detach()."
    )


def test_unused() -> None:
    _, reasons = why(Unused())
    assert "enc.weight, enc.bias: unused: Linear was not called by Unused, which was." in reasons


def test_through_integers() -> None:
    _, reasons = why(Integer())
    assert f"{line(Integer.forward, 1)}: ids = self.enc(x).argmax(-1, keepdim=True)" in reasons


def test_gradients_off() -> None:
    _, reasons = why(GradientsOff())
    assert "Linear ran where gradients are off" in reasons
    assert f"{line(GradientsOff.forward, 1)}: with torch.no_grad():" in reasons


def test_gradients_off_by_a_decorator() -> None:
    net = Net()
    net.enc = DecoratedEncoder(4, 4)
    _, reasons = why(net)
    assert "its output does not require a gradient" in reasons
    assert "@torch.no_grad()" in reasons


def test_gradients_off_after_it() -> None:
    class Head(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.enc(x)
            with torch.no_grad():
                y = self.head(h)
            return y + self.scale

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    net = Head()
    _, reasons = why(net)
    assert "after it head (Linear) ran with gradients off" in reasons


class Adapted(Net):
    """What learns is in front of a frozen layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        prompt = self.enc(x)
        with torch.no_grad():
            features = self.head(prompt)
        return features * self.scale

    def __init__(self) -> None:
        super().__init__()
        self.head.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))


def test_frozen_after_it() -> None:
    _, reasons = why(Adapted())
    assert reasons == (
        "enc.weight, enc.bias: its output is in the graph, but the loss does not depend on it; "
        "after it head (Linear), which is frozen, ran with gradients off. What a frozen layer is "
        "given learns if that runs with gradients on: requires_grad_(False) alone freezes it. "
        f"Lines there that cut it: {line(Adapted.forward, 2)}: with torch.no_grad():."
    )


def test_a_frozen_layer_with_gradients_on_hands_them_on() -> None:
    net = Net()
    net.head.requires_grad_(False)
    with armed(CONDITION) as agent:
        train(net, 2)
    assert not agent.calls


def test_the_forward_does_not_use_it() -> None:
    headline, reasons = why(Scaled())
    assert headline == "no gradient for scale of"
    assert "other parameters of Scaled got one: its forward does not use this one" in reasons
    assert "self.scale.data" in reasons


def test_replaced_after_the_optimizer_was_made() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net.enc = nn.Linear(4, 4)
    headline, reasons = why(net, optimizer=optimizer)
    assert headline == "no gradient for 2 parameters, among them some of no module"
    assert reasons.startswith(
        "(shape [4, 4]), (shape [4]): it is in the optimizer, but in no module"
    )


def test_without_a_backward_pass() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with armed(CONDITION) as agent:
        net(x)
        optimizer.step()
    assert "no backward pass since the last step" in agent.event.sentences[0]


# The report -------------------------------------------------------------------------------------


def test_the_report_of_the_newest_step() -> None:
    with armed(CONDITION) as agent:
        watch = watch_of(agent)
        assert "no optimizer step since" in watch.report("*")
        train(Detached(), 2)
        head, reason = watch.report("*").split("\n")
        assert head == ("at SGD.step: 2 of 4 parameters that require a gradient got none")
        assert reason.startswith("enc.weight, enc.bias: its output is in the graph")
        assert watch.report("head*") == (
            "at SGD.step: 0 of 4 parameters that require a gradient got none"
        )
        assert watch.report("enc.bias").split("\n")[1].startswith("enc.bias: ")


def test_without_the_watch_the_report_is_of_this_moment() -> None:
    with armed("nonfinite()") as agent:
        watch = watch_of(agent)
        assert "no module was called" in watch.report("*")
        net = Detached()
        net(x)
        assert "none of 4 parameters has a gradient at the moment" in watch.report("*")
        train(net)
        assert watch.report("*").split("\n") == [
            "at the moment 2 of 4 parameters that require a gradient have none",
            "enc.weight",
            "enc.bias",
            'why is not recorded: tp on no_grad("*")',
        ]

"""What is said of a sampling that torch refuses: which operand, and what made it bad."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import nn

from tensorpoint.agent.torch_errors import describe
from tensorpoint.wire.torch_error import TorchError
from tests.unit.agent.ops.test_locate import locating
from tests.unit.agent.test_torch_errors import operands, told

NAN = float("nan")


def told_recorded(function: Callable[[], object]) -> TorchError:
    """The same where a loss is recorded, as after a model's call."""
    with locating() as agent:
        try:
            function()
        except RuntimeError as error:
            names, failed = agent.names, agent.locator.failed
            found = describe(type(error), error, error.__traceback__, names, failed)
            assert found is not None
            return found.error
    raise AssertionError("did not fail")


def logits_of(model: nn.Module) -> torch.Tensor:
    return model(torch.ones(2, 3))


def negative() -> nn.Linear:
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.fill_(-1.0)
    return model


def test_a_named_operand_with_its_element() -> None:
    probs = torch.tensor([[0.5, 0.5], [0.5, NAN]])
    error = told(lambda: torch.multinomial(probs, 1))
    assert error.notes[0] == (
        "multinomial got a probability that is not finite: probs at [1, 1] is NaN."
    )
    assert error.notes[1] == 'Where it was made is known with precision "op".'


def test_by_keyword_and_as_a_method() -> None:
    weights, rates = torch.tensor([0.1, -1.0]), torch.tensor([2.0, -3.0])
    error = told(lambda: torch.multinomial(num_samples=1, input=weights))
    assert "negative: weights at [1] is -1" in error.notes[0]
    assert "weights at [1]" in told(lambda: weights.multinomial(1)).notes[0]
    assert "a rate that is negative: rates at [1]" in told(lambda: torch.poisson(rates)).notes[0]


def test_a_temporary_is_not_taken_for_a_name() -> None:
    logits, other = torch.tensor([-1.0, 1.0]), torch.tensor([0.5, NAN])
    error = told(lambda: torch.multinomial(logits.log(), int(other.numel() - 1)))
    assert ("logits.log()", "gone") in operands(error)
    assert error.notes == (
        "logits.log() is gone. logits is finite, so it became what it was in this line: precision "
        '"op" tells by which operation.',
    )


def test_a_temporary_of_a_bad_name() -> None:
    logits = torch.tensor([NAN, 1.0])
    error = told(lambda: torch.multinomial(logits.softmax(-1), 1))
    assert error.notes == ("logits.softmax(-1) is gone, but logits in it is not finite.",)


def test_a_name_that_is_part_of_another_is_not_in_the_expression() -> None:
    p, probs = torch.tensor([NAN]), torch.tensor([-1.0])
    error = told(lambda: torch.multinomial(probs.clone(), p.numel()))
    assert error.notes[0].startswith("probs.clone() is gone. probs is finite")


def test_recorded_a_temporary_is_what_it_was_and_its_origin_is_named() -> None:
    model = negative()
    probs = torch.tensor([0.5, 0.5])  # of the line as well, and not to blame

    def draw() -> torch.Tensor:
        logits = logits_of(model)
        scores = logits.log()
        return torch.multinomial(scores.softmax(-1), len(probs) - 1)

    error = told_recorded(draw)
    assert ("scores.softmax(-1)", "float32[2, 3]") in operands(error)
    lines, first = inspect.getsourcelines(draw)
    line = first + next(place for place, text in enumerate(lines) if ".log()" in text)
    assert error.notes[0].startswith(
        "multinomial got a probability that is not finite: scores.softmax(-1) at [0, 0] is NaN"
    )
    assert error.notes[1] == (
        f"It was made by log at test_sampling_errors.py:{line} in draw: log of -1 is NaN, since it "
        "is for numbers above 0: logits at [0, 0] is -1."
    )


def test_recorded_and_bad_from_before() -> None:
    model, probs = negative(), torch.tensor([0.5, NAN])

    def draw() -> torch.Tensor:
        logits_of(model)
        return probs.multinomial(1)

    error = told_recorded(draw)
    assert "probs at [1] is NaN" in error.notes[0]
    assert not any("made by" in note for note in error.notes)


def test_recorded_operands_of_other_operations_are_those_of_the_line() -> None:
    model, y = negative(), torch.ones(5, 5)
    error = told_recorded(lambda: torch.matmul(logits_of(model).relu(), y))
    assert operands(error) == [("logits_of(model).relu()", "gone"), ("y", "float32[5, 5]")]


def test_of_another_refusal_nothing_is_said() -> None:
    probs = torch.tensor([0.5, 0.5])
    assert told(lambda: torch.multinomial(probs, 3)).notes == ()
    model = negative()
    assert told_recorded(lambda: torch.multinomial(logits_of(model).abs(), 9)).notes == ()

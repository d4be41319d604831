"""What is said of exceptions that torch's operations raise, and of which nothing is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody has it
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from tensorpoint.agent.modules import Names
from tensorpoint.agent.torch_errors import Located, describe
from tensorpoint.wire.torch_error import TorchError

x = torch.ones(3, 4)
t: Any = torch.tensor([9, 1, 2])
lin = nn.Linear(5, 2)


class Block(nn.Module):
    """Hands its arguments to a module inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return self.inner(h, *rest)


class Logs(nn.Module):
    """Computes in its own forward."""

    def forward(self, h: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return h.log() + other


def located(function: Callable[[], object], names: Names | None = None) -> Located | None:
    try:
        function()
    except Exception as error:
        return describe(type(error), error, error.__traceback__, names)
    raise AssertionError("did not fail")


def told(function: Callable[[], object], names: Names | None = None) -> TorchError:
    found = located(function, names)
    assert found is not None
    return found.error


def operands(error: TorchError) -> list[tuple[str, str]]:
    """Name, and what is said of it."""
    return [
        (
            item.name,
            f"{item.dtype}{list(item.shape or ())}" if item.dtype else (item.value or "gone"),
        )
        for item in error.operands
    ]


def test_a_layer_is_named_with_what_it_was_given_and_its_weight() -> None:
    net = Block(Block(nn.Linear(5, 2)))
    found = located(lambda: net(x))
    assert found is not None
    error = found.error
    assert (error.type, error.op, error.module, error.module_type) == (
        "RuntimeError",
        "linear",
        "inner.inner",
        "Linear",
    )
    assert operands(error) == [
        ("h", "float32[3, 4]"),
        ("self.inner.weight", "float32[2, 5]"),
        ("self.inner.bias", "float32[2]"),
    ]
    assert found.frame.f_code is Block.forward.__code__
    assert (error.function, error.source) == ("forward", "self.inner(h, *rest)")
    assert error.notes == ("Linear takes 5 features; the last size of h is 4.",)
    lines = error.text.split("\n")
    assert lines[0] == "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x2)"
    assert lines[1] == (
        f"In linear of inner.inner (Linear), called at test_torch_errors.py:{error.line} in "
        "forward: self.inner(h, *rest)"
    )
    assert "  h: float32 [3, 4] on cpu" in lines


def test_a_layer_that_torch_itself_calls_is_named_with_its_own_argument() -> None:
    net = Block(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(9, 2)))
    error = told(lambda: net(x))
    assert (error.op, error.module) == ("linear", "inner.2")
    assert operands(error) == [
        ("h", "float32[3, 4]"),
        ("input of inner.2", "float32[3, 8]"),
        ("inner.2.weight", "float32[2, 9]"),
        ("inner.2.bias", "float32[2]"),
    ]
    assert error.notes == ("Linear takes 9 features; the last size of input of inner.2 is 8.",)


def test_an_operation_in_a_forward_names_that_module() -> None:
    error = told(lambda: Block(Logs())(x, t[:2]))
    assert (error.op, error.module, error.source) == ("+", "inner", "h.log() + other")
    assert "In + in the forward of inner (Logs), at test_torch_errors.py" in error.text
    assert operands(error) == [("h.log()", "gone"), ("other", "int64[2]")]


#: Failing code, the operation, the operands.
CASES: list[tuple[Callable[[], object], str, list[tuple[str, str]]]] = [
    (lambda: x @ x, "@", [("x", "float32[3, 4]")]),
    (lambda: x.reshape(t[0], 5), "reshape", [("x", "float32[3, 4]"), ("t[0]", "int64[]")]),
    (lambda: torch.cat([x, t], dim=1), "cat", [("x", "float32[3, 4]"), ("t", "int64[3]")]),
    (
        lambda: F.cross_entropy(x, t),
        "cross_entropy",
        [("x", "float32[3, 4]"), ("t", "int64[3]")],
    ),
    (
        # What is on no name is a parameter of torch's own function.
        lambda: F.cross_entropy(x.exp(), target=t.clone()),
        "cross_entropy",
        [("x.exp()", "float32[3, 4]"), ("t.clone()", "int64[3]")],
    ),
    (lambda: torch.einsum("ij,jk->ik", x, x), "einsum", [("x", "float32[3, 4]")]),
    (lambda: x[7], "indexing", [("x", "float32[3, 4]")]),
    (lambda: bool(x), "bool", [("x", "float32[3, 4]")]),
    (lambda: x.item() + 1, "item", [("x", "float32[3, 4]")]),
    (lambda: torch.log("no tensor"), "log", []),  # type: ignore[arg-type]
    (lambda: x.sum().backward(), "backward", [("x.sum()", "float32[]")]),
    (
        lambda: nn.Conv2d(3, 4, 3)(x),
        "conv2d",
        [
            ("x", "float32[3, 4]"),
            ("nn.Conv2d(3, 4, 3).weight", "float32[4, 3, 3, 3]"),
            ("nn.Conv2d(3, 4, 3).bias", "float32[4]"),
        ],
    ),
    (
        lambda: torch.ones(2) @ torch.ones(3),
        "@",
        [("torch.ones(2)", "gone"), ("torch.ones(3)", "gone")],
    ),
    (lambda: math.sqrt(x), "sqrt", [("x", "float32[3, 4]")]),  # type: ignore[arg-type]
    (
        lambda: checkpoint(lin, x, use_reentrant=False),
        "linear",
        [
            ("x", "float32[3, 4]"),
            ("input of Linear", "float32[3, 4]"),
            ("weight", "float32[2, 5]"),
            ("bias", "float32[2]"),
        ],
    ),
]


@pytest.mark.parametrize(("function", "op", "expected"), CASES, ids=lambda case: str(case)[:20])
def test_operation_and_operands(
    function: Callable[[], object], op: str, expected: list[tuple[str, str]]
) -> None:
    error = told(function)
    assert error.op == op
    assert operands(error) == expected


def test_a_condition_on_a_tensor() -> None:
    def function() -> None:
        if x > 0:
            pass

    error = told(function)
    assert (error.op, error.source, operands(error)) == (
        "bool",
        "bool(x > 0)",
        [("x", "float32[3, 4]")],
    )


def test_two_layers_in_one_line_are_told_apart() -> None:
    good = nn.Linear(4, 2)
    error = told(lambda: good(x) + lin(x))
    assert error.source == "lin(x)"
    assert ("lin.weight", "float32[2, 5]") in operands(error)


def test_an_index_outside_of_a_table_is_named() -> None:
    ids = torch.tensor([[1, 2], [9, 3]])
    error = told(lambda: Block(nn.Embedding(4, 2))(ids))
    assert error.op == "embedding"
    assert error.notes == ("h holds 9 at [1, 0]; the table has 4 rows, 0 to 3.",)
    error = told(lambda: F.embedding(ids - 3, x))
    assert error.notes == ("ids - 3 holds -2 at [0, 0]; the table has 3 rows, 0 to 2.",)


def test_an_index_outside_of_a_dimension_is_found_in_the_tensor_that_holds_it() -> None:
    edge = torch.tensor([[0, 1], [2, 7]])
    error = told(lambda: x[edge[1]])
    assert error.notes == ("edge[1] holds 7 at [1]; dimension 0 has 3 elements, 0 to 2.",)
    error = told(lambda: x.gather(1, edge))
    assert error.notes == ("edge holds 7 at [1, 1]; dimension 1 has 4 elements, 0 to 3.",)
    # The mask holds no 1 that is an index, and nothing holds the number of the line itself.
    assert told(lambda: x[torch.ones(4, dtype=torch.bool)]).notes == ()
    assert told(lambda: x[5]).notes == ()


def test_elements_out_of_the_range_that_torch_wants_are_found() -> None:
    good, bad = torch.full((2, 3), 0.5), torch.full((2, 3), 0.5)
    bad[1, 2] = 1.5
    error = told(lambda: F.binary_cross_entropy(good, bad))
    assert error.notes == ("bad holds 1.5 at [1, 2]; 1 of 6 are out of bounds.",)
    error = told(lambda: F.binary_cross_entropy(bad * math.nan, good))
    assert error.notes == ("bad * math.nan holds nan at [0, 0]; 6 of 6 are out of bounds.",)
    lengths = torch.tensor([4, 0, 2])
    padded = torch.full((3, 4, 2), -1.0)
    error = told(lambda: nn.utils.rnn.pack_padded_sequence(padded, lengths, True, False))
    assert error.notes == ("lengths holds 0 at [1]; 1 of 3 are out of bounds.",)


def test_a_label_that_is_no_class_is_found() -> None:
    labels = torch.tensor([0, 3, 5])
    error = told(lambda: F.cross_entropy(x, labels))
    assert error.notes == ("labels holds 5 at [2]; there are 4 classes, 0 to 3.",)
    # The module's: weights of classes are floating, too, and not asked.
    criterion = nn.CrossEntropyLoss(weight=torch.ones(4))
    error = told(lambda: criterion(x, labels))
    assert error.notes == ("labels holds 5 at [2]; there are 4 classes, 0 to 3.",)


def test_a_batch_that_does_not_stack_is_shown_by_its_samples() -> None:
    data: Any = [torch.ones(3), torch.ones(4)]

    def function() -> None:
        for _ in DataLoader(data, batch_size=2):
            pass

    error = told(function)
    assert (error.op, operands(error)) == (
        "stack",
        [("batch[0]", "float32[3]"), ("batch[1]", "float32[4]")],
    )
    assert error.function == "function"


# In place -----------------------------------------------------------------------------------------


def test_the_line_that_changed_a_tensor_in_place_is_found() -> None:
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        s = (w * 2).exp()
        s += 1  # this line
        s.sum().backward()

    first, second = told(function).notes
    assert first == (
        "The backward of exp needs its result as it was in the forward; it was changed in place "
        "once since."
    )
    line = function.__code__.co_firstlineno + 2
    assert second == (
        "What uses it in the graph is add. The only line found that may have changed it so: "
        f"test_torch_errors.py:{line}: s += 1."
    )


class InPlace(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        g = h.sigmoid()
        g.mul_(2)
        return g


def test_a_line_in_a_forward_that_is_over_is_found() -> None:
    net = Block(InPlace())
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        net(w).sum().backward()

    line = InPlace.forward.__code__.co_firstlineno + 2
    assert told(function).notes[1].endswith(f"test_torch_errors.py:{line}: g.mul_(2).")


def test_a_parameter_that_an_optimizer_wrote_is_named() -> None:
    net = Block(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def function() -> None:
        y = net(x)
        y.sum().backward(retain_graph=True)
        optimizer.step()
        y.mean().backward()

    notes = told(function).notes
    assert "inner.1.weight, a parameter: an optimizer step wrote it" in notes[1]


def test_of_two_parameters_of_one_shape_the_one_that_is_needed_is_named() -> None:
    class Twins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q1 = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
            self.q2 = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q1(x) + self.q2(x)

    net = Twins()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def function() -> None:
        y = net(x)
        y.sum().backward(retain_graph=True)
        optimizer.step()
        y.mean().backward()

    notes = told(function).notes
    named = re.search(
        r"It is net\.q[12]\.2\.weight, a parameter: an optimizer step wrote it", notes[1]
    )
    assert named, notes


UNKNOWN = "by what did not lead to this loss, or in no_grad or through .data."


def test_what_autograd_does_not_know_is_not_made_up() -> None:
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        s = (w * 2).exp()
        with torch.no_grad():
            s.zero_()
        s.sum().backward()

    assert told(function).notes[1] == (
        "What uses it in the graph is sum: that was in place, or it was changed " + UNKNOWN
    )


def test_an_operation_in_place_that_is_not_in_the_graph_is_not_denied() -> None:
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        h = w * 2
        s = h.sin()
        h.mul_(3)
        s.sum().backward()

    assert told(function).notes == (
        "The backward of sin needs its input as it was in the forward; it was changed in place "
        "once since.",
        "Where is not recorded: " + UNKNOWN,
    )


def test_what_changed_a_tensor_without_a_gradient_is_what_gave_it_one() -> None:
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        total = torch.zeros(3, 4)
        h = total * w
        total += h  # this line
        total.sum().backward()

    line = function.__code__.co_firstlineno + 3
    assert told(function).notes[1] == (
        "What uses it in the graph is add. The only line found that may have changed it so: "
        f"test_torch_errors.py:{line}: total += h."
    )


def test_where_a_tensor_without_a_gradient_was_changed_is_not_made_up() -> None:
    w = torch.ones(3, 4, requires_grad=True)

    def function() -> None:
        batch = torch.zeros(3, 4)
        loss = (batch * w).sum()
        batch.add_(1)
        loss.backward()

    assert told(function).notes[1] == "Where is not recorded."


def test_an_activation_that_looks_like_a_parameter_is_not_taken_for_it() -> None:
    """Its shape and version are those of a parameter that was initialised in place."""
    w = torch.ones(3, 4)
    w.mul_(2)
    w.requires_grad_()

    def function() -> None:
        s = w.sigmoid()
        s.mul_(2)
        s.sum().backward()

    assert w._version == 1
    assert not any("parameter" in note for note in told(function).notes)


def test_another_output_of_the_same_operation_is_not_what_changed_it() -> None:
    w = torch.ones(4, 4, requires_grad=True)

    def function() -> None:
        a, b = torch.var_mean(w * 2, dim=0)
        s = a.exp() + b.sin()
        with torch.no_grad():
            b.zero_()
        s.sum().backward()

    assert told(function).notes[1] == "Where is not recorded: " + UNKNOWN


# Memory -------------------------------------------------------------------------------------------


def test_memory() -> None:
    size = 10**15
    error = told(lambda: torch.empty(size))
    assert (error.op, operands(error)) == ("empty", [("size", str(size))])
    big = torch.ones(1 << 18)
    error = told(lambda: big.expand(1 << 40, 1 << 18).contiguous())
    assert "allocate" in error.message or "large" in error.message or "overflow" in error.message


# What is not torch's ------------------------------------------------------------------------------


def takes_one(_: object) -> None:
    pass


def raises() -> None:
    raise RuntimeError("a program's own")


def loads() -> None:
    data: Any = [torch.ones(3), torch.ones(4)]
    for _ in DataLoader(data, batch_size=2, num_workers=1):
        pass


class Point:
    def __init__(self, only: object) -> None:
        self.only = only


OTHERS: list[Callable[[], object]] = [
    raises,
    lambda: takes_one(x, x),  # type: ignore[call-arg]
    lambda: Point(x, x),  # type: ignore[call-arg]
    lambda: [1][x.shape[0]],
    lambda: int("a"),
    lambda: {}["key"],
    lambda: lin.nothing,
    lambda: 1 / 0,
    lambda: "a" + 1,  # type: ignore[operator]
    loads,  # a worker's own traceback is in the text
]


@pytest.mark.parametrize("function", OTHERS)
def test_nothing_is_said_of_other_exceptions(function: Callable[[], object]) -> None:
    assert located(function) is None


class Raising(nn.Module):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        raise ValueError("a model's own")


def test_nothing_is_said_of_an_exception_that_a_model_raises_itself() -> None:
    assert located(lambda: Block(Raising())(x)) is None


# Robustness ---------------------------------------------------------------------------------------


def test_nothing_is_said_of_endless_recursion() -> None:
    class Endless(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return self(h)

    assert located(lambda: Endless()(x)) is None


def test_what_cuda_tells_late_is_said_to_be_late() -> None:
    # As if torch's own code had raised it.
    scope: dict[str, Any] = {}
    code = compile(
        "def fails(): raise RuntimeError('CUDA error: device-side assert')", F.__file__, "exec"
    )
    exec(code, scope)
    error = told(scope["fails"])
    assert "CUDA_LAUNCH_BLOCKING=1" in error.notes[0]


def test_the_agents_names_and_steps_are_used_where_it_has_them() -> None:
    net = Block(nn.Linear(5, 2))
    outer = nn.ModuleDict({"part": net})
    names = Names()
    names.learn(outer)
    error = told(lambda: net(x), names)
    assert error.module == "part.inner"
    names.count_call(outer)
    assert "Step 0 (forward calls of ModuleDict, from 0)." in told(lambda: net(x), names).text


def test_code_without_source_is_described_by_its_frames() -> None:
    scope: dict[str, Any] = {"net": Block(nn.Linear(5, 2)), "x": x}
    code = compile("net.inner(x)", "<made up>", "eval")
    error = told(lambda: eval(code, scope))
    assert (error.op, error.source) == ("linear", "")
    assert operands(error)[0] == ("input of Linear", "float32[3, 4]")


def test_an_odd_tensor_does_not_spoil_the_description() -> None:
    class Odd(torch.Tensor):
        @property
        def shape(self) -> Any:  # type: ignore[override]
            raise RuntimeError("odd")

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise RuntimeError("odd")

    odd = torch.ones(3).as_subclass(Odd)
    located(lambda: torch.log(odd) + x)  # whatever is said

"""Tensors that run code of the program's, or that have no numbers: each is looked at in every way.

No look may raise, run the program's code, take long or say a wrong figure.
"""

from __future__ import annotations

import base64
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor

from tensorpoint.agent.data.targets import Target, look_at
from tensorpoint.agent.values.assign import Refusal, set_element
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.measures import Measures
from tensorpoint.agent.values.memory import read_memory
from tensorpoint.agent.values.nodes import ALL, Child, Node, Page
from tensorpoint.agent.values.pictures import NotPossible, image_of, rows_of, slice_of
from tensorpoint.agent.values.view import View
from tensorpoint.conditions.metrics import ON_VALUES

#: What of the program's ran.
calls: list[str] = []
#: torch with what it doesn't export.
PRIVATE: Any = torch


class Raises(torch.Tensor):
    """Whatever is asked of it is an error of the program's."""

    @classmethod
    def __torch_function__(cls, *args: Any, **kwargs: Any) -> Any:
        calls.append("torch function")
        raise SystemError("torch function")

    def __repr__(self, **_: Any) -> str:
        calls.append("repr")
        raise SystemError("repr")

    def __getattr__(self, name: str) -> Any:
        calls.append(name)
        raise SystemError(name)

    @property
    def device(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        calls.append("device")
        raise SystemError("device")


class Wraps(torch.Tensor):
    """A quantised tensor of the program's own, which handles all operations."""

    fake_device = "nowhere"

    @staticmethod
    def __new__(cls, data: torch.Tensor, **policy: Any) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, **policy)

    def __init__(self, data: torch.Tensor, **_: Any) -> None:
        self.data_ = data

    @classmethod
    def __torch_dispatch__(cls, function: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(str(function))
        raise SystemError(function)


class DTensor(Wraps):
    """Has the name of a class of torch's."""


def _asks_its_class() -> torch.Tensor:
    """torch asks this one for its own sizes in `__torch_dispatch__`."""
    return Wraps(
        torch.ones(2, 3),
        dispatch_sizes_strides_policy="sizes",
        dispatch_device=True,
        dispatch_layout=True,
    )


def _fake() -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.ones(3, 5), static_shapes=False)


def _escaped() -> torch.Tensor:
    kept: list[torch.Tensor] = []
    torch.vmap(lambda x: (kept.append(x), x * 2)[1])(torch.ones(3, 4))
    return kept[0]


def _freed(*shape: int) -> torch.Tensor:
    """As FSDP leaves parameters between two uses."""
    tensor = torch.ones(shape)
    tensor.untyped_storage().resize_(0)
    return tensor


def _bits(name: str) -> torch.Tensor:
    return torch.zeros(4, dtype=torch.uint8).view(getattr(torch, name))


def _extremes(name: str) -> torch.Tensor:
    limits = torch.iinfo(getattr(torch, name))
    return torch.tensor([limits.min, limits.max], dtype=getattr(torch, name))


def _nested(**options: Any) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(3, 3)], **options)


HANDLED = "the class {} handles all operations itself"
NO_MEMORY = "it has no memory: that was freed, or it is zero by definition"

#: How it is made, the text of a hover, and that of the row "values".
KINDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "raises": (
        lambda: torch.arange(3.0).as_subclass(Raises),
        "Raises f32[3] cpu | µ 1 σ 1 [0, 2]",
        "[0, 1, 2]",
    ),
    "wraps": (
        lambda: Wraps(torch.ones(2, 3)),
        "Wraps f32[2, 3] cpu",
        HANDLED.format("Wraps"),
    ),
    "asks its class": (
        _asks_its_class,
        "Wraps f32[shape untold] device untold",
        HANDLED.format("Wraps"),
    ),
    "named as torch's": (
        lambda: DTensor(torch.ones(2)),
        "DTensor f32[2] cpu",
        HANDLED.format("DTensor"),
    ),
    "two": (
        lambda: TwoTensor(torch.ones(3), torch.ones(3)),
        "TwoTensor f32[3] cpu",
        HANDLED.format("TwoTensor"),
    ),
    "fake": (_fake, "FakeTensor f32[s", ""),
    "escaped": (_escaped, "f32[4] cpu", "it is of a function transform"),
    "functional": (
        lambda: PRIVATE._to_functional_tensor(torch.ones(3)),
        "f32[3] cpu",
        "it is of a function transform",
    ),
    "freed": (lambda: _freed(4), "f32[4] cpu", NO_MEMORY),
    "freed number": (_freed, "f32[] cpu", NO_MEMORY),
    "zero": (lambda: PRIVATE._efficientzerotensor(3), "f32[3] cpu", NO_MEMORY),
    "meta": (lambda: torch.empty(1 << 40, 9, device="meta"), "f32[1099511627776, 9] meta", ""),
    "expanded": (
        lambda: torch.ones(1, 1).expand(1 << 30, 1 << 30),
        "f32[1073741824, 1073741824] cpu | ~µ 1 σ 0 [1, 1]",
        "[1073741824, 1073741824]",
    ),
    "expanded line": (
        lambda: torch.ones(()).expand(1 << 40),
        "f32[1099511627776] cpu | ~µ 1 σ 0 [1, 1]",
        "[1, 1, 1, 1, 1, 1, ...]",
    ),
    "strides": (
        lambda: torch.arange(1 << 16).float().as_strided((2, 2), (1 << 15, 1 << 14)),
        "f32[2, 2] cpu | µ 2.46e+04 σ 2.12e+04 [0, 4.92e+04]",
        "[2, 2]",
    ),
    "nothing": (lambda: torch.empty(3, 0), "f32[3, 0] cpu | it is empty", "[3, 0]"),
    "number": (lambda: torch.tensor(1 << 40), "i64[] cpu = 1099511627776", "1099511627776"),
    "u16": (
        lambda: _extremes("uint16"),
        "u16[2] cpu | µ 3.28e+04 σ 4.63e+04 [0, 6.55e+04]",
        "[0, 65535]",
    ),
    "u32": (
        lambda: _extremes("uint32"),
        "u32[2] cpu | µ 2.15e+09 σ 3.04e+09 [0, 4.29e+09]",
        "[0, 4294967295]",
    ),
    "u64": (
        lambda: _extremes("uint64"),
        "u64[2] cpu | µ 9.22e+18 σ 1.3e+19 [0, 1.84e+19]",
        "[0, 18446744073709551615]",
    ),
    "i64": (
        lambda: _extremes("int64"),
        "i64[2] cpu | µ 0 σ 1.3e+19 [-9.22e+18, 9.22e+18]",
        "[-9223372036854775808, 9223372036854775807]",
    ),
    "c32": (
        lambda: torch.tensor([3 + 4j, 0], dtype=torch.complex32),
        "c32[2] cpu | µ 2.5 σ 3.54 [0, 5] (the magnitudes)",
        "[(3+4j), 0j]",
    ),
    "conjugated": (
        lambda: torch.tensor([3 + 4j, 1j]).conj(),
        "c64[2] cpu | µ 3 σ 2.83 [1, 5] (the magnitudes)",
        "[(3-4j), -1j]",
    ),
    "negated": (
        lambda: torch.tensor([3 + 4j, 1j]).conj().imag,
        "f32[2] cpu | µ -2.5 σ 2.12 [-4, -1]",
        "[-4, -1]",
    ),
    **{
        f"f8_{kind}": (
            lambda kind=kind: torch.tensor([1.0, 2.0]).to(getattr(torch, f"float8_{kind}")),
            f"f8_{kind}[2] cpu | µ 1.5 σ 0.707 [1, 2]",
            "[1, 2]",
        )
        for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
    },
    "f4": (lambda: _bits("float4_e2m1fn_x2"), "f4_e2m1fn_x2[4] cpu | it has no values", ""),
    "bits": (lambda: _bits("bits8"), "bits8[4] cpu | ", ""),
    "bits16": (lambda: _bits("bits16"), "bits16[2] cpu | ", ""),
    "u4": (lambda: _bits("uint4"), "u4[4] cpu | ", ""),
    "quantised": (
        lambda: torch.quantize_per_tensor(torch.arange(3.0), 0.1, 3, torch.qint8),
        "qi8[3] scale 0.1 zero 3 cpu | µ 1 σ 1 [0, 2]",
        "[0, 1, 2]",
    ),
    "by channel": (
        lambda: torch.quantize_per_channel(
            torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8
        ),
        "qu8[2, 3] per_channel_affine cpu | µ 1 σ 0 [1, 1]",
        "[2, 3]",
    ),
    "coo": (
        lambda: torch.sparse_coo_tensor(
            torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3)
        ),
        "f32[2, 3] sparse_coo nnz 2 cpu | µ 1.5 σ 0.707 [1, 2] (the stored values)",
        "the elements of a torch.sparse_coo tensor are not listed",
    ),
    "csr": (
        lambda: torch.eye(2).to_sparse_csr(),
        "f32[2, 2] sparse_csr nnz 2 cpu | µ 1 σ 0 [1, 1] (the stored values)",
        "the elements of a torch.sparse_csr tensor are not listed",
    ),
    "bsr": (
        lambda: torch.eye(4).to_sparse_bsr((2, 2)),
        "f32[4, 4] sparse_bsr nnz 2 cpu | µ 0.5 σ 0.535 [0, 1] (the stored values)",
        "the elements of a torch.sparse_bsr tensor are not listed",
    ),
    "nested": (
        _nested,
        "f32[2 tensors] nested cpu | µ 1 σ 0 [1, 1]",
        "the elements of a nested tensor are not listed",
    ),
    "jagged": (lambda: _nested(layout=torch.jagged), "NestedTensor f32[2, j", ""),
    "lazy": (lambda: nn.LazyLinear(3).weight, "uninitialised f32 cpu grad | it has no shape", ""),
    "mkldnn": (lambda: torch.ones(3).to_mkldnn(), "f32[3] cpu | it has no values that can", ""),
    "masked array": (
        lambda: np.ma.array(np.array([1.0, 9.0]), mask=np.array([False, True])),
        "MaskedArray f64[2] numpy",
        "",
    ),
    "structured": (lambda: np.zeros(2, dtype=[("a", "i4")]), "[('a', '<i4')][2] numpy", ""),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Iterator[tuple[Any, str, str]]:
    make, line, values = KINDS[request.param]
    with warnings.catch_warnings():  # of layouts and dtypes that torch calls new or old
        warnings.simplefilter("ignore")
        value = make()
        calls.clear()
        yield value, line, values
    assert calls == []


def opened(view: View, value: Any, depth: int = 3) -> dict[str, str]:
    """The texts of all that is below a value, but the raw attributes, with what it shows there."""
    found: dict[str, str] = {}
    for row in view.children(value, ALL, None) or ():
        if row.name == "raw":
            continue
        found[row.name] = str(view.text(row.value, "variables"))
        if isinstance(row.value, Node) and depth:
            inner = opened(view, row.value, depth - 1)
            found.update({f"{row.name}/{name}": text for name, text in inner.items()})
            _paged(row.value)
    return found


def _paged(node: Node) -> None:
    """Whatever page a client asks for has rows that are there, and no others."""
    if not node.indexed or node.children is None:
        return
    for start, count in ((0, 2), (node.indexed - 1, 5), (node.indexed, 2), (1 << 62, 3), (-4, 2)):
        rows: list[Child] = list(node.children(Page("indexed", start, count)))
        first = max(0, start)
        names = [f"[{node.first + at}]" for at in range(first, min(first + count, node.indexed))]
        assert [row.name for row in rows] == names or [row.name for row in rows] == ["values"]


def test_a_look_says_what_it_can_and_runs_nothing_of_the_programs(kind: Any) -> None:
    value, line, values = kind
    view = View(Known())
    for context in (None, "variables", "hover", "watch"):
        text = view.text(value, context)
        assert text is not None and "Error" not in text, text
    hover = view.text(value, "hover")
    assert hover == line or (line and str(hover).startswith(line) and not values), hover
    own = view.text(value, "clipboard")  # None for torch's own
    assert (
        own
        == view.text(value, "repl")
        == (f"{line} | {NO_MEMORY}" if values == NO_MEMORY else None)
    )
    rows = opened(view, value)
    assert not values or rows["values"] == values
    assert view.hint(value, "value", None)["__vscodeVariableMenuContext"] == "tensor"


def test_pictures_memory_and_metrics_give_figures_or_the_reason(kind: Any) -> None:
    value, _, _ = kind
    if not isinstance(value, torch.Tensor):
        return
    measures = Measures(Known()).functions
    assert set(measures) == set(ON_VALUES)
    for ask in (
        lambda: slice_of(value, None, []),
        lambda: image_of(value, []),
        lambda: rows_of(value, 0),
        lambda: read_memory(value, 0, 8),
        *(lambda name=name: measures[name](value) for name in measures),
        lambda: look_at(Target("tensor", "value", value), closely=True),
    ):
        try:
            ask()
        except (NotPossible, ValueError, TypeError) as error:
            assert str(error)
    with pytest.raises(Refusal):
        set_element(value, 0, "a", "value")


def test_a_value_of_such_a_class_is_not_copied_into_a_tensor() -> None:
    target = torch.zeros(2, 3)
    with pytest.raises(Refusal, match="convert it to a plain tensor"):
        set_element(target, ..., Wraps(torch.ones(2, 3)), "target")
    with pytest.raises(Refusal, match="convert it to a plain tensor"):
        set_element(target, 0, _freed(3), "target")
    assert not target.any()


def test_inside_of_a_transform_nothing_is_read() -> None:
    seen: list[str | None] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        view = View(Known())
        seen.extend([view.text(x, "hover"), opened(view, x)["values"]])
        with pytest.raises(TypeError, match="function transform"):
            Measures(Known()).functions["norm"](x)
        return x * 2

    torch.vmap(look)(torch.ones(3, 4))
    torch.func.grad(lambda x: look(x).sum())(torch.ones(2))
    assert seen[:2] == ["f32[4] cpu", "the program is in a function transform"]
    assert seen[2:] == ["f32[2] cpu grad", "the program is in a function transform"]


@pytest.mark.parametrize(
    ("offset", "count", "read", "unreadable"),
    [
        (0, 8, (2.0, 3.0), 0),
        (-8, 8, (0.0, 1.0), 0),  # what lies before a view in its storage is there
        (16, 12, (6.0, 7.0), 4),
        (24, 8, (), 8),
        (1 << 40, 8, (), 8),
        (-12, 8, None, 4),  # the client may go on 4 bytes later
        (-(1 << 40), 8, None, 8),
        (0, 0, (), 0),
        (0, 1 << 50, tuple(map(float, range(2, 8))), (1 << 50) - 24),
    ],
)
def test_memory_beyond_its_ends_is_unreadable(
    offset: int, count: int, read: tuple[float, ...] | None, unreadable: int
) -> None:
    tensor = torch.arange(8.0)[2:4]
    body = read_memory(tensor, offset, count)
    assert body.get("unreadableBytes", 0) == unreadable
    assert ("data" in body) == (read is not None)
    data = base64.b64decode(body.get("data", ""))
    assert struct.unpack(f"<{len(data) // 4}f", data) == (read or ())
    if 0 <= tensor.storage_offset() * 4 + offset <= 32:
        assert int(body["address"], 16) == tensor.data_ptr() + offset


def test_memory_of_other_tensors() -> None:
    def data(tensor: torch.Tensor) -> bytes:
        return base64.b64decode(read_memory(tensor, 0, 4).get("data", ""))

    grid = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    assert data(grid.T[1:]) == struct.pack("<2h", 1, 2)  # as it lies in the storage
    assert data(torch.tensor([1.0, -2.0], dtype=torch.bfloat16)) == bytes.fromhex("803f00c0")
    assert data(torch.tensor([True, False])) == b"\1\0"
    assert read_memory(torch.empty(0, 3), 0, 4)["unreadableBytes"] == 4
    for tensor, reason in (
        (torch.eye(2).to_sparse(), "no memory of its own"),
        (_freed(4), "freed"),
        (_fake(), "only a shape"),
    ):
        with pytest.raises(ValueError, match=reason):
            read_memory(tensor, 0, 4)
    with pytest.raises(ValueError, match="ask for up to 1,048,576"):
        read_memory(torch.zeros(1 << 20), 0, (1 << 20) + 1)
    with pytest.raises(ValueError, match="-1 bytes"):
        read_memory(grid, 0, -1)
    assert len(base64.b64decode(read_memory(torch.zeros(1 << 20), 0, 1 << 20)["data"])) == 1 << 20

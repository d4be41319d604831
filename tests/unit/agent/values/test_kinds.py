"""Lines of values of libraries, and what of the user's stays unrun."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.utils.rnn import pack_sequence

from tensorpoint.agent.values.children import Children
from tensorpoint.agent.values.kinds import line_of
from tensorpoint.agent.values.known import Known
from tensorpoint.agent.values.nodes import ALL
from tensorpoint.agent.values.walks import parameters_in


@dataclasses.dataclass
class Batch:
    image: torch.Tensor
    name: str


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.empty(3, 4, device="cuda")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (torch.ones(2, 3, requires_grad=True), "f32[2, 3] cpu grad"),
        (torch.tensor(3), "i64[] cpu = 3"),
        (torch.tensor(2.5, requires_grad=True), "f32[] cpu grad = 2.5"),
        (torch.zeros(0, 4), "f32[0, 4] cpu"),
        (torch.zeros(2, dtype=torch.complex64), "c64[2] cpu"),
        (torch.zeros(2, dtype=torch.bool), "bool[2] cpu"),
        (torch.ones(2).to(torch.float8_e5m2), "f8_e5m2[2] cpu"),
        (nn.Parameter(torch.ones(2)), "Parameter f32[2] cpu grad"),
        (torch.eye(2).to_sparse_csr(), "f32[2, 2] sparse_csr nnz 2 cpu"),
        (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 3, torch.qint8),
            "qi8[2] scale 0.1 zero 3 cpu",
        ),
        (torch.empty(2, device="meta"), "f32[2] meta"),
        (_fake(), "FakeTensor f32[3, 4] cuda:0"),
        (nn.Linear(3, 8), "Linear(3, 8) 32 parameters f32 cpu train"),
        (nn.Dropout(0.5).eval(), "Dropout(p=0.5) eval"),
        (torch.jit.script(nn.ReLU()), "RecursiveScriptModule train"),
        (torch.jit.freeze(torch.jit.script(nn.ReLU().eval())), "RecursiveScriptModule eval"),
        (nn.Module.__new__(nn.Linear), "Linear before Module.__init__"),
        (nn.LayerNorm(4), "LayerNorm(normalized_shape=(4,)) 8 parameters f32 cpu train"),
        (nn.LazyLinear(2), "LazyLinear(0, 2) 2 uninitialised parameters f32 cpu train"),
        (np.ones((2, 3), np.float16), "f16[2, 3] numpy"),
        (np.array(["a"]), "<U1[1] numpy"),
        (np.array(2.5), "f64[] numpy = 2.5"),
        (
            pack_sequence([torch.ones(3), torch.ones(1)]),
            "PackedSequence f32[4] cpu, 3 steps, batch 2",
        ),
        (torch.zeros(3).untyped_storage(), "UntypedStorage 12 bytes cpu"),
        (Batch(torch.ones(2), "x"), "Batch {image: f32[2] cpu, name: 'x'}"),
        (Mock(spec=torch.Tensor), None),
        (torch.float32, None),
        ([torch.ones(2)], None),
    ],
)
def test_the_line_of_a_value(value: Any, line: str | None) -> None:
    assert line_of(value) == line


def test_a_jagged_nested_tensor_has_a_symbol_for_its_size() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    line = line_of(nested)
    assert line is not None and line.startswith("NestedTensor f32[2, j") and "nested cpu" in line


def test_values_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    outputs = pytest.importorskip("transformers.modeling_outputs")
    encoding = transformers.BatchEncoding({"input_ids": torch.ones(2, 3, dtype=torch.int64)})
    assert line_of(encoding) == "BatchEncoding {input_ids: i64[2, 3] cpu}"
    output = outputs.BaseModelOutput(last_hidden_state=torch.ones(2, 4))
    assert line_of(output) == "BaseModelOutput {last_hidden_state: f32[2, 4] cpu}"
    cache = transformers.DynamicCache()
    assert line_of(cache) == "DynamicCache 0 layers, empty"
    cache.update(torch.ones(1, 2, 5, 4), torch.ones(1, 2, 5, 4), 0)
    assert line_of(cache) == "DynamicCache 1 layers, each f32[1, 2, 5, 4] cpu, 320 bytes"


def test_an_image() -> None:
    image = pytest.importorskip("PIL.Image")
    assert line_of(image.new("RGB", (4, 3))) == "Image RGB 4×3"


def test_a_distributed_tensor(tmp_path: Any) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        tensor = DTensor.from_local(torch.ones(4, 2), mesh, [Shard(0)])
        line = line_of(tensor)
        assert line is not None and line.startswith("DTensor f32[4, 2] cpu")
        assert "local [4, 2]" in line
    finally:
        distributed.destroy_process_group()


class Angry:
    def __getattribute__(self, name: str) -> Any:
        raise SystemError(name)


class AngryModule(nn.Module):
    def __getattr__(self, name: str) -> Any:
        raise SystemError(name)

    def extra_repr(self) -> str:
        raise SystemError("extra_repr")


def test_no_attribute_of_the_users_is_asked_for() -> None:
    assert line_of(Angry()) is None
    assert line_of(AngryModule()) == "AngryModule train"


@dataclasses.dataclass
class Chain:
    data: torch.Tensor
    after: Any = None


@dataclasses.dataclass
class Slotted:
    __slots__ = ("unset", "x")
    x: torch.Tensor
    unset: int


def test_a_dataclass_that_holds_itself() -> None:
    chain = Chain(torch.ones(2))
    chain.after = chain
    assert line_of(chain) == "Chain {data: f32[2] cpu, after: Chain}"
    assert line_of(Chain(torch.ones(1), Chain(torch.ones(1)))) == (
        "Chain {data: f32[1] cpu, after: Chain}"
    )


def test_a_field_named_data_and_fields_in_slots_are_opened() -> None:
    children = Children(Known())
    chain, slotted = Chain(torch.ones(2)), Slotted(torch.ones(2), 3)
    assert [(row.name, row.path) for row in children.of(chain, ALL)] == [
        ("data", ".data"),
        ("after", ".after"),
    ]
    del slotted.unset
    assert line_of(slotted) == "Slotted {x: f32[2] cpu}"
    assert [row.name for row in children.of(slotted, ALL)] == ["x"]


def test_a_dataclass_of_python_3_13() -> None:
    names: dict[str, Any] = {}
    exec("def __repr__(self):\n    return 'all numbers'", names)  # as dataclasses makes it
    guarded = reprlib.recursive_repr()(names["__repr__"])
    kind: Any = dataclasses.dataclass(repr=False)(
        type("New", (), {"__annotations__": {"x": Any}, "__repr__": guarded})
    )
    assert line_of(kind(torch.ones(2))) == "New {x: f32[2] cpu}"

    @dataclasses.dataclass(repr=False)
    class Own:
        x: Any

        @reprlib.recursive_repr()
        def __repr__(self) -> str:
            return "mine"

    assert line_of(Own(torch.ones(2))) is None


class OwnWalks(nn.Linear):
    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemError("named_modules")

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        raise SystemError("named_parameters")

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__" and object.__getattribute__(self, "__dict__").get("done"):
            raise SystemError(name)
        return super().__getattribute__(name)


def test_walks_are_ours() -> None:
    module = OwnWalks(2, 2)
    vars(module)["done"] = True
    assert len(list(parameters_in(module))) == 2
    assert line_of(module) == "OwnWalks 6 parameters f32 cpu train"
    assert Children(Known()).of(module, ALL)


def test_a_dataclass_with_a_repr_of_its_own_is_left_to_it() -> None:
    @dataclasses.dataclass(repr=False)
    class Own:
        x: torch.Tensor

        def __repr__(self) -> str:
            return "mine"

    assert line_of(Own(torch.ones(2))) is None

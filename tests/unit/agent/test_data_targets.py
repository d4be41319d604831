"""How a data breakpoint sees that its target is another one now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tensorpoint.agent.data.lookup import NotWatchable, find_expression
from tensorpoint.agent.data.targets import Target, look_at
from tensorpoint.agent.values.owners import Owners


def test_a_write_past_autograd_to_a_shard_of_a_distributed_tensor(tmp_path: Any) -> None:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    store = f"file://{tmp_path / 'store'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        shard = torch.ones(4, 2)
        tensor = DTensor.from_local(shard, init_device_mesh("cpu", (1,)), [Shard(0)])
        target = Target("tensor", "x", tensor)
        before = look_at(target, closely=True)
        assert before.fingerprint is not None
        tensor._local_tensor.data[1, 1] = 5
        assert look_at(target, closely=True).fingerprint != before.fingerprint
    finally:
        distributed.destroy_process_group()


def test_what_has_no_bits_has_no_fingerprint() -> None:
    for tensor in (torch.empty(3, device="meta"), torch.eye(2).to_sparse(), torch.zeros(0)):
        assert look_at(Target("tensor", "x", tensor), closely=True).fingerprint is None


def test_an_index_made_while_the_program_runs_keeps_nothing() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    owners = Owners(lambda: [model])
    assert owners.find("0.weight") == (model[0], "weight")
    owners.answered()
    model[0] = torch.nn.Linear(3, 3)
    assert owners.find("0.weight") == (model[0], "weight")


def found(text: str, owners: Owners | None = None, **names: Any) -> Target:
    frame: Any = SimpleNamespace(f_globals={}, f_locals=names)
    return find_expression(text, frame, owners or Owners(list))


def test_an_element_is_watched_by_itself_and_keeps_nothing_alive() -> None:
    model = torch.nn.Linear(3, 3)
    places = ("w[1, 2]", "w.data[1][2]", "w.detach()[1, 2]", "w.view(-1)[5]")
    for text in places:
        target = found(text, w=model.weight)
        assert target.kind == "part" and target.is_same_place(found(places[0], w=model.weight))
        before = look_at(target, closely=False)
        with torch.no_grad():
            model.weight[0, 0] += 1
            assert look_at(target, closely=False) == before
            model.weight[1, 2] += 1
        assert look_at(target, closely=False) != before
    target = found("w[1]", w=model.weight)
    del model
    assert target.is_gone and target.tensor() is None


def test_what_is_made_anew_is_told_by_what_stays_or_refused() -> None:
    model = torch.nn.Linear(3, 3)
    owners = Owners(lambda: [model])
    assert found("w.data", owners, w=model.weight).kind == "attribute"
    assert found("u.detach()", u=(u := torch.ones(2))).owner is u
    for text in ("w + 1", "w[[0, 1]]", "w.detach().clone()"):
        with pytest.raises(NotWatchable, match="is made anew each time"):
            found(text, w=model.weight)

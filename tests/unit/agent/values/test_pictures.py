"""Slices, images and rows as they are made small: right numbers, few enough, nothing vanishes."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import pytest
import torch

from tensorpoint.agent.values import devices, pictures
from tensorpoint.agent.values.figures import all_figures_of
from tensorpoint.agent.values.pictures import NotPossible, image_of, rows_of, slice_of


def cells(body: dict[str, Any]) -> list[list[float]]:
    rows, columns = body["cells"]
    numbers = struct.unpack(f"{rows * columns}f", base64.b64decode(body["values"]))
    return [list(numbers[row * columns : (row + 1) * columns]) for row in range(rows)]


def test_each_cell_is_the_mean_of_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_CELLS", 3)
    body = slice_of(torch.arange(35.0).reshape(5, 7), None, [])
    assert (body["size"], body["cells"], body["step"]) == ([5, 7], [3, 3], [2, 3])
    assert cells(body) == [[4.5, 7.5, 9.5], [18.5, 21.5, 23.5], [29, 32, 34]]


def test_what_is_not_finite_does_not_vanish() -> None:
    tensor = torch.zeros(1000, 1000)
    tensor[501, 7], tensor[3, 999] = math.nan, -math.inf
    found = cells(slice_of(tensor, None, []))
    bad = {(r, c): v for r, row in enumerate(found) for c, v in enumerate(row) if v != 0}
    assert (
        [*bad] == [(0, 249), (125, 1)] and bad[0, 249] == -math.inf and bad[125, 1] != bad[125, 1]
    )


@pytest.mark.parametrize("shape", [(1 << 25, 1), (1, 1 << 25), (1 << 13, 1 << 13)])
def test_a_slice_is_made_small_where_it_is(shape: tuple[int, int]) -> None:
    tensor = torch.ones(1).expand(shape)
    body = slice_of(tensor, None, [])
    assert max(body["cells"]) <= 256
    for size, count, step in zip(body["size"], body["cells"], body["step"], strict=True):
        assert (count - 1) * step < size <= count * step
    assert cells(body)[0][0] == 1


def test_rows_of_a_large_tensor_are_of_every_so_many_elements() -> None:
    tensor = torch.tensor([[2.0], [5.0]]).expand(2, 1 << 25)
    body = rows_of(tensor, 0)
    assert (body["rows"], body["mean"], body["nonfinite"]) == (2, [2, 5], [0, 0])


def test_only_what_is_drawn_comes_from_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made small where the tensor is: a viewer that copies it runs out of the host's memory."""
    fetch, came = devices.fetch, []

    def counted(tensor: Any, work: Any) -> Any:
        found = fetch(tensor, work)
        came.append(found.numel())
        return found

    monkeypatch.setattr(devices, "fetch", counted)
    tensor = torch.ones(3, 1).expand(3, 6_000_000).view(3, 2000, 3000)
    slice_of(tensor, None, [])
    image_of(tensor, [])
    rows_of(tensor, 1)
    all_figures_of(tensor)
    assert came == [250 * 250, 334 * 500 * 4, 5 * 512, 11 + 7 + 32]


def test_an_image_in_its_channels() -> None:
    body = image_of(torch.tensor([[[0.0, 1.0], [math.nan, 0.5]]]), [])
    assert body["pixels"] == [2, 2]
    pixels = base64.b64decode(body["rgba"])
    assert [tuple(pixels[at : at + 4]) for at in (0, 4, 8)] == [
        (0, 0, 0, 255),
        (255, 255, 255, 255),
        (255, 0, 255, 255),
    ]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda x: slice_of(x, [0, 3], []), "dims"),
        (lambda x: slice_of(x, [1, 2], [9]), "index: 9 is not in dimension 0"),
        (lambda x: image_of(x, []), "is no image"),
        (lambda x: rows_of(x, 3), "dim: 3"),
        (lambda x: slice_of(x[:0], None, []), "empty"),
        (lambda x: slice_of(x.to_sparse(), None, []), "no place in a picture"),
    ],
)
def test_a_picture_that_cannot_be_says_why(call: Any, reason: str) -> None:
    with pytest.raises(NotPossible, match=reason):
        call(torch.ones(2, 3, 4))

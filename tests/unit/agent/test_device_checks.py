"""What is checked on a device: sums as zlib has them, conversions that differ in a bit."""

from __future__ import annotations

import zlib

import pytest
import torch

from tensorpoint.agent.device_checks import adler32, converts_alike
from tensorpoint.wire.lending import BLOCK


@pytest.mark.parametrize("size", [1, 5, 2047, 2048, 2049, 100_000, BLOCK - 1, BLOCK])
@pytest.mark.parametrize("kind", ["random", "highest"])
def test_the_sum_is_that_of_zlib(size: int, kind: str) -> None:
    generator = torch.Generator().manual_seed(size)
    lowest = 0 if kind == "random" else 255
    data = torch.randint(lowest, 256, (size,), dtype=torch.uint8, generator=generator)
    assert adler32(data).item() == zlib.adler32(data.numpy().tobytes())


PAIRS = [
    (torch.bfloat16, torch.float32),
    (torch.float16, torch.float64),
    (torch.float8_e4m3fn, torch.bfloat16),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float16),
]


@pytest.mark.parametrize(("given", "wanted"), PAIRS)
def test_a_conversion_is_like_itself_and_unlike_one_that_differs(
    given: torch.dtype, wanted: torch.dtype
) -> None:
    assert converts_alike(given, wanted, lambda values: values.to(wanted))

    def without_nans(values: torch.Tensor) -> torch.Tensor:
        return values.to(wanted).nan_to_num(nan=0.0, posinf=torch.inf, neginf=-torch.inf)

    def without_signs_of_zero(values: torch.Tensor) -> torch.Tensor:
        return values.to(wanted) + 0.0

    assert not converts_alike(given, wanted, without_nans)
    assert not converts_alike(given, wanted, without_signs_of_zero)


def test_what_is_rounded_otherwise_is_seen_and_another_nan_is_none() -> None:
    def cut_off(values: torch.Tensor) -> torch.Tensor:
        return (values.view(torch.int32) >> 16).to(torch.int16).view(torch.bfloat16)

    def half_away(values: torch.Tensor) -> torch.Tensor:
        high = (values.view(torch.int32).to(torch.int64) + 0x8000) >> 16
        made = high.to(torch.int16).view(torch.bfloat16)
        return torch.where(values.isnan(), torch.tensor(torch.nan, dtype=torch.bfloat16), made)

    def flushing(values: torch.Tensor) -> torch.Tensor:
        made = values.to(torch.float16)
        return torch.where(made.abs() < torch.finfo(torch.float16).tiny, made * 0.0, made)

    def negative_nans(values: torch.Tensor) -> torch.Tensor:
        made = values.to(torch.bfloat16)
        other = torch.tensor(-64, dtype=torch.int16).view(torch.bfloat16)
        return torch.where(made.isnan(), other, made)

    assert not converts_alike(torch.float32, torch.bfloat16, cut_off)
    assert not converts_alike(torch.float32, torch.bfloat16, half_away)
    assert not converts_alike(torch.float32, torch.float16, flushing)
    assert converts_alike(torch.float32, torch.bfloat16, negative_nans)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (torch.float64, torch.float32),
        (torch.int8, torch.float32),
        (torch.float32, torch.float8_e5m2),
        (torch.float32, torch.int32),
    ],
)
def test_what_is_not_tried_is_not_trusted(given: torch.dtype, wanted: torch.dtype) -> None:
    assert not converts_alike(given, wanted, lambda values: values.to(wanted))

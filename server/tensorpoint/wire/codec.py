"""Encodes and validates wire messages in our own processes; the debuggee uses plain JSON."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


def encode(message: object) -> str:
    """`message` as JSON text."""
    return msgspec.json.encode(message).decode()


def convert(value: object, kind: type[T]) -> T:
    """A decoded JSON value as the dataclass `kind`; raises `msgspec.ValidationError`."""
    return msgspec.convert(value, kind)

"""Messages of the Debug Adapter Protocol on a byte stream, and nothing about what they mean.

A message is a block of `Name: value` header lines, an empty line and `Content-Length` bytes of
JSON. Everything else is refused with a `FramingError` that shows what was seen instead: after
garbage there is no way to find the next message, so the stream is lost and the reason has to reach
a person.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec

MAX_HEADER_BYTES = 64 * 1024
MAX_BODY_BYTES = 256 * 1024 * 1024

_SHOWN_BYTES = 60

_decoder = msgspec.json.Decoder(dict[str, Any])
_encoder = msgspec.json.Encoder()


class FramingError(ValueError):
    """The stream does not hold a message where one should begin."""


async def read_message(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message, or None where the stream ends between two messages."""
    length = await _read_headers(reader)
    if length is None:
        return None
    try:
        body = await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise FramingError(
            f"the stream ended inside a message, {len(error.partial)} of {length} bytes in"
        ) from None
    return _decode(body)


def encode_message(message: dict[str, Any]) -> bytes:
    """Header and body of one message, to be written in one piece."""
    try:
        body = _encoder.encode(message)
    except (UnicodeEncodeError, msgspec.ValidationError, OverflowError):
        # Names of files on disk reach us as surrogate escapes, which UTF-8 can't hold; and
        # msgspec refuses integers beyond 64 bits. JSON escapes carry both.
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


async def _read_headers(reader: asyncio.StreamReader) -> int | None:
    length: int | None = None
    seen = 0
    while True:
        line = await _read_line(reader)
        if not line.endswith(b"\n"):
            if not line and not seen:
                return None
            raise FramingError(f"the stream ended inside the headers of a message{_after(line)}")
        seen += len(line)
        if seen > MAX_HEADER_BYTES:
            raise FramingError(f"the headers of a message exceed {MAX_HEADER_BYTES} bytes")
        text = line.strip()
        if not text:
            break
        name, colon, value = text.partition(b":")
        if not colon:
            raise FramingError(f"expected 'Content-Length: ...' but got {_excerpt(line)}")
        if name.strip().lower() == b"content-length":
            length = _content_length(value.strip(), previous=length)
    if length is None:
        raise FramingError("the headers of a message lack Content-Length")
    return length


async def _read_line(reader: asyncio.StreamReader) -> bytes:
    """One line with its end, or what there is of it where the stream ends."""
    try:
        return await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        start = await reader.read(min(max(error.consumed, 1), _SHOWN_BYTES + 1))
        raise FramingError(
            f"expected 'Content-Length: ...' but got a line without end: {_excerpt(start)}"
        ) from None


def _content_length(value: bytes, previous: int | None) -> int:
    # isdigit() of bytes is ASCII only; int() alone would take "1_0", "+1" and " 1".
    if not value.isdigit() or len(value) > 20:
        raise FramingError(f"Content-Length is not a number: {_excerpt(value)}")
    length = int(value)
    if length > MAX_BODY_BYTES:
        raise FramingError(f"a message of {length} bytes exceeds the limit of {MAX_BODY_BYTES}")
    if previous is not None and previous != length:
        raise FramingError(f"two different Content-Length headers: {previous} and {length}")
    return length


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError:
        raise FramingError(f"a message is not a JSON object: {_excerpt(body)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # The debuggee's side writes with Python's json: NaN, Infinity and lone surrogates come
    # through there, which the standard forbids and msgspec refuses.
    try:
        message: object = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FramingError(f"a message is not JSON ({error}): {_excerpt(body)}") from None
    if not isinstance(message, dict):
        raise FramingError(f"a message is not a JSON object: {_excerpt(body)}")
    return message  # pyright: ignore[reportUnknownVariableType]


def _excerpt(data: bytes) -> str:
    shown = repr(data[:_SHOWN_BYTES])[1:]
    return shown + ("..." if len(data) > _SHOWN_BYTES else "")


def _after(line: bytes) -> str:
    return f", after {_excerpt(line)}" if line else ""

"""What the framing promises for any split of the stream and for any garbage on it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpoint.dap.framing import (
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    FramingError,
    encode_message,
    read_message,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(min_value=-(2**80), max_value=2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
messages = st.dictionaries(st.text(), json_values, max_size=6)


async def _read_all(chunks: list[bytes]) -> list[dict[str, Any]]:
    """The messages of a stream that arrives in these chunks, each when the last was looked at."""
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for chunk in chunks:
            reader.feed_data(chunk)
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    received: list[dict[str, Any]] = []
    try:
        while (message := await read_message(reader)) is not None:
            received.append(message)
    finally:
        await feeding
    return received


def read_all(*chunks: bytes) -> list[dict[str, Any]]:
    return asyncio.run(_read_all(list(chunks)))


def _cut(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[a:b] for a, b in zip(places, places[1:], strict=False) if a < b]


@settings(max_examples=200, deadline=None)
@given(st.lists(messages, max_size=4), st.lists(st.integers(min_value=0), max_size=12))
def test_messages_survive_any_split(sent: list[dict[str, Any]], cuts: list[int]) -> None:
    stream = b"".join(encode_message(message) for message in sent)
    assert read_all(*_cut(stream, cuts)) == sent


@settings(max_examples=20, deadline=None)
@given(messages)
def test_messages_survive_a_byte_at_a_time(sent: dict[str, Any]) -> None:
    stream = encode_message(sent) * 2
    assert read_all(*(stream[i : i + 1] for i in range(len(stream)))) == [sent, sent]


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_an_error_and_nothing_worse(garbage: bytes) -> None:
    try:
        received = read_all(garbage)
    except FramingError as error:
        assert str(error)
    else:
        assert not garbage or received


@settings(max_examples=100, deadline=None)
@given(messages, st.integers(min_value=1))
def test_half_a_message_is_an_error(sent: dict[str, Any], cut: int) -> None:
    stream = encode_message(sent)
    half = stream[: 1 + cut % (len(stream) - 1)]
    with pytest.raises(FramingError, match="ended inside"):
        read_all(half)


def test_other_headers_and_spellings_are_tolerated() -> None:
    body = b'{"a":1}'
    stream = (
        b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\n"
        b"content-length:%d\r\nX-Odd: \xff\xfe\r\n\r\n" % len(body)
    ) + body
    bare_newlines = b"Content-Length: %d\n\n" % len(body) + body
    assert read_all(stream + bare_newlines) == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "'GET / HTTP/1.1"),
        (b"\x16\x03\x01\x02\x00\n", r"\\x16\\x03\\x01"),
        (b"X-Other: 1\r\n\r\n", "lack Content-Length"),
        (b"\r\n{}", "lack Content-Length"),
        (b"Content-Length: -1\r\n\r\n", "not a number: '-1'"),
        (b"Content-Length: 1_0\r\n\r\n", "not a number"),
        (b"Content-Length: 99999999999999999999999\r\n\r\n", "not a number"),
        (b"Content-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1), "exceeds the limit"),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "2 and 3"),
        (b"Content-Length: 4\r\n\r\n[{}]", "not a JSON object"),
        (b"Content-Length: 4\r\n\r\n{1:}", "not JSON"),
        (b"Content-Length: 2\r\n\r\n\xff\xff", "not JSON"),
        (b"Content-Length: 0\r\n\r\n", "not JSON"),
        (b"x" * (MAX_HEADER_BYTES * 2), "line without end: 'xxx"),
        (b"X: y\r\n" * MAX_HEADER_BYTES, "exceed"),
        (b"Content-Length: 10\r\n\r\n{}", "2 of 10 bytes"),
        (b"Content-Le", "after 'Content-Le'"),
    ],
)
def test_what_was_seen_is_in_the_error(stream: bytes, expected: str) -> None:
    with pytest.raises(FramingError, match=expected):
        read_all(stream)


def test_a_body_far_beyond_the_reader_limit_arrives() -> None:
    sent = {"text": "x" * 3_000_000}
    assert read_all(encode_message(sent)) == [sent]


def test_nan_from_pythons_json_is_read() -> None:
    body = b'{"value": NaN, "min": -Infinity, "name": "\\udcff"}'
    (received,) = read_all(b"Content-Length: %d\r\n\r\n" % len(body) + body)
    assert math.isnan(received["value"])
    assert received["min"] == -math.inf
    assert received["name"] == "\udcff"


def test_undecodable_file_names_are_written() -> None:
    sent = {"path": "/tmp/\udcff.py", "big": 2**70}
    assert read_all(encode_message(sent)) == [sent]

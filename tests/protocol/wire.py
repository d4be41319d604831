"""Messages of DAP on a pair of streams, without any of our code."""

from __future__ import annotations

import json
from typing import Any, BinaryIO

Message = dict[str, Any]


class Wire:
    """Bytes to and from an adapter, by its standard streams or a socket."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self.source, self.sink = source, sink

    def write(self, message: Message) -> None:
        body = json.dumps(message).encode()
        self.sink.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.sink.flush()

    def read(self) -> Message | None:
        length = None
        while True:
            line = self.source.readline()
            if not line:
                return None
            if not line.strip():
                break
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length is not None
        body = self.source.read(length)
        return json.loads(body) if len(body) == length else None

"""`tensorpoint dap`: sessions over stdio (one) or TCP (one per connection)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from .. import serving
from .peer import Peer
from .session import Session


def serve(listen: tuple[str, int] | None, allow_remote: bool, log_dir: Path | None) -> int:
    """Run the adapter until its clients are gone; returns the exit status."""
    log_dir = serving.start_log("dap", log_dir)

    async def converse(reader: asyncio.StreamReader, writer: serving.Writer) -> int:
        await Session(Peer("client", reader, writer), log_dir).run()
        return 0

    return serving.serve("dap", listen, allow_remote, converse)

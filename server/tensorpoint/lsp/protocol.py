"""What of pygls's protocol is done otherwise."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, cast

from lsprotocol import types
from pygls.protocol import LanguageServerProtocol
from pygls.protocol.language_server import lsp_method


class Protocol(LanguageServerProtocol):
    """pygls's, but that `exit` ends this client's server, not the process with all the others.

    And that a request which it doesn't know is answered also if it has no parameters.
    """

    def structure_message(self, data: dict[str, Any]) -> Any:
        """A message as an object, from JSON."""
        if "jsonrpc" in data and "method" in data:
            data.setdefault("params", None)
        return cast("Any", super().structure_message(data))

    @lsp_method(types.EXIT)
    def lsp_exit(self, *args: Any) -> Generator[Any, Any, None]:
        """Leave the loop that reads messages."""
        cast("Any", self._server).leave(0 if self._shutdown else 1)
        yield from ()  # pygls's handlers are generators, which hand over to ours

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    async def lsp_workspace__execute_command(  # pyright: ignore[reportIncompatibleMethodOverride]: pygls's is a generator
        self, params: types.ExecuteCommandParams
    ) -> Any:
        """As a task, which ends with a cancelled request; of pygls's own only the answer does."""
        command, args, kwargs = next(super().lsp_workspace__execute_command(params))
        return await command(*args, **kwargs)

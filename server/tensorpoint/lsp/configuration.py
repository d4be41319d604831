"""The settings of each workspace folder, asked from the client or taken from what it sends."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from lsprotocol import types
from pygls.lsp.server import LanguageServer

from .. import shapes
from ..resident.messages import Environment
from .settings import SECTION, Settings, read

_log = logging.getLogger(__name__)
#: A client that does not answer must not keep shapes away.
_ANSWER_S = 5.0


class Configuration:
    """What is set for a document; asked once for each folder, until the client says it changed."""

    def __init__(self, server: LanguageServer, complain: Callable[[str], None]) -> None:
        self._server = server
        self._complain = complain
        self._complained: set[str] = set()
        self._initial = Settings()
        self._base = Settings()
        self._by_folder: dict[str, asyncio.Task[Settings]] = {}

    def begin(self, options: Any) -> None:
        """Take `initializationOptions`: the section itself, or an object that has it."""
        self._initial = self._base = self._read(_section(options), Settings())

    def changed(self, settings: Any) -> None:
        """Take what came with `didChangeConfiguration`, and ask anew where the client answers."""
        self._by_folder.clear()
        if settings is not None:
            self._base = self._read(_section(settings), self._initial)

    async def of(self, folder: str | None) -> Settings:
        """The settings of a folder, by URI; of the client as a whole if None."""
        key = folder or ""
        if key not in self._by_folder:
            self._by_folder[key] = asyncio.ensure_future(self._ask(folder))
        # Shared: one request that is cancelled must not take the settings from the others.
        return await asyncio.shield(self._by_folder[key])

    def close(self) -> None:
        """Wait for no answer any more."""
        for task in self._by_folder.values():
            task.cancel()

    async def _ask(self, folder: str | None) -> Settings:
        workspace = self._server.client_capabilities.workspace
        if workspace is None or not workspace.configuration:
            return self._base
        item = types.ConfigurationItem(scope_uri=folder, section=SECTION)
        try:
            answer = await asyncio.wait_for(
                self._server.workspace_configuration_async(types.ConfigurationParams([item])),
                _ANSWER_S,
            )
        except Exception as error:  # whatever the client answers, it is not fatal
            _log.warning("workspace/configuration: %r", error)
            return self._base
        return self._read(answer[0] if answer else None, self._base)

    def _read(self, sent: Any, base: Settings) -> Settings:
        settings, errors = read(sent, base)
        for error in errors:
            if error not in self._complained:
                self._complained.add(error)
                self._complain(f"Tensorpoint: the setting {error}")
        # A workspace can't call itself trusted: that is set from outside of it.
        return replace(settings, trusted=settings.trusted and self._initial.trusted)


def environment_of(settings: Settings, folder: Path | None) -> Environment:
    """Where the code of a folder runs: the interpreter that is set, or the one that is found."""
    python = _interpreter(settings.python.strip(), folder)
    return replace(shapes.environment_of(), python=(python,))


def _interpreter(python: str, folder: Path | None) -> str:
    if python:
        path = Path(python).expanduser()
        if path.parent == Path():
            return shutil.which(python) or python
        return str(path if folder is None else folder / path)
    program = Path("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    active = os.environ.get("VIRTUAL_ENV")
    places = [Path(active)] if active else []
    if folder is not None:
        places += [folder / ".venv", folder / "venv"]
    for place in places:
        if (place / program).exists():
            return str(place / program)
    return sys.executable


def _section(sent: Any) -> Any:
    if not isinstance(sent, dict):
        return sent
    fields = cast("dict[str, Any]", sent)
    return fields[SECTION] if isinstance(fields.get(SECTION), dict) else fields

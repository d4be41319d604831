"""Clients that say of themselves what real editors do, and a session of one with a real server."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import pytest_lsp
from cattrs import Converter
from lsprotocol import types
from lsprotocol.converters import get_converter
from pygls.protocol import default_converter
from pytest_lsp import LanguageClient
from pytest_lsp.client import register_lsp_features

T = TypeVar("T")

COMMAND = [sys.executable, "-m", "tensorpoint", "lsp"]
#: Two tracers and the tests share two cores.
_PATIENCE = 120.0

#: What vscode-languageclient 9 and newer say, as far as it concerns us.
_VSCODE: dict[str, Any] = {
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "didChangeConfiguration": {"dynamicRegistration": True},
        "didChangeWatchedFiles": {"dynamicRegistration": True, "relativePatternSupport": True},
        "workspaceEdit": {"documentChanges": True},
        "codeLens": {"refreshSupport": True},
        "inlayHint": {"refreshSupport": True},
        "inlineValue": {"refreshSupport": True},
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {
        "synchronization": {"dynamicRegistration": True, "didSave": True},
        "publishDiagnostics": {"relatedInformation": True, "versionSupport": False},
        "diagnostic": {"dynamicRegistration": True, "relatedDocumentSupport": False},
        "hover": {"contentFormat": ["markdown", "plaintext"]},
        "inlayHint": {
            "dynamicRegistration": True,
            "resolveSupport": {"properties": ["tooltip", "textEdits", "label.tooltip"]},
        },
        "inlineValue": {"dynamicRegistration": True},
        "codeLens": {"dynamicRegistration": True},
        "codeAction": {
            "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["", "refactor"]}}
        },
    },
    "notebookDocument": {"synchronization": {"dynamicRegistration": True}},
    "window": {"workDoneProgress": True},
    "general": {"positionEncodings": ["utf-16"]},
}

#: What helix-lsp 25 says: no lenses, no inline values, hints without resolve.
_HELIX: dict[str, Any] = {
    "workspace": {
        "configuration": True,
        "workspaceFolders": True,
        "didChangeConfiguration": {"dynamicRegistration": False},
        "didChangeWatchedFiles": {"dynamicRegistration": True},
        "workspaceEdit": {"documentChanges": True},
        "inlayHint": {"refreshSupport": False},
        "diagnostics": {"refreshSupport": True},
    },
    "textDocument": {
        "publishDiagnostics": {"versionSupport": True},
        "diagnostic": {"dynamicRegistration": False, "relatedDocumentSupport": True},
        "hover": {"contentFormat": ["markdown"]},
        "inlayHint": {"dynamicRegistration": False},
        "codeAction": {
            "codeActionLiteralSupport": {"codeActionKind": {"valueSet": ["", "refactor"]}}
        },
    },
    "window": {"workDoneProgress": True},
    "general": {"positionEncodings": ["utf-8", "utf-32", "utf-16"]},
}


def _structured(capabilities: dict[str, Any]) -> types.ClientCapabilities:
    return get_converter().structure(capabilities, types.ClientCapabilities)


#: By name; Neovim's and Emacs' (eglot) were recorded from those editors by pytest-lsp's authors.
EDITORS: dict[str, Callable[[], types.ClientCapabilities]] = {
    "vscode": lambda: _structured(_VSCODE),
    "neovim": lambda: pytest_lsp.client_capabilities("neovim@v0.11.0"),
    "emacs": lambda: pytest_lsp.client_capabilities("emacs@v29.1"),
    "helix": lambda: _structured(_HELIX),
    "nothing": types.ClientCapabilities,
}


def _converter() -> Converter:
    """pygls's, which can't read one type that servers send (lsprotocol 2025.0.0)."""
    converter = default_converter()
    filters = attrs.fields(types.NotebookDocumentFilterWithCells).notebook.type
    converter.register_structure_hook(filters, lambda value, _: value)
    return converter


class Session:
    """One editor on one folder."""

    def __init__(self, client: LanguageClient, folder: Path) -> None:
        self.client = client
        self.folder = folder
        #: How often it was told to ask for hints again.
        self.refreshed = 0
        self.server: types.InitializeResult | None = None
        self._version = 1

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str | None = None) -> str:
        """Open a file, or a text that is not (yet) what the file has; returns its URI."""
        path = self.folder / name
        item = types.TextDocumentItem(
            self.uri(name), "python", 1, path.read_text(encoding="utf-8") if text is None else text
        )
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return item.uri

    def open_notebook(self, name: str, cells: Sequence[str]) -> types.NotebookDocument:
        """Open a notebook; a cell that begins with `# ` is text."""
        documents = [
            types.TextDocumentItem(f"{self.uri(name)}#{number}", "python", 1, text)
            for number, text in enumerate(cells)
        ]
        kinds = types.NotebookCellKind
        notebook = types.NotebookDocument(
            self.uri(name),
            "jupyter-notebook",
            1,
            [
                types.NotebookCell(
                    kinds.Markup if each.text.startswith("# ") else kinds.Code, each.uri
                )
                for each in documents
            ],
        )
        self.client.notebook_document_did_open(
            types.DidOpenNotebookDocumentParams(notebook, documents)
        )
        return notebook

    def change(self, uri: str, text: str) -> None:
        self._version += 1
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._version, uri),
                [types.TextDocumentContentChangeWholeDocument(text)],
            )
        )

    async def hints(self, uri: str) -> list[types.InlayHint]:
        everything = types.Range(types.Position(0, 0), types.Position(10_000, 0))
        params = types.InlayHintParams(types.TextDocumentIdentifier(uri), everything)
        return [*(await self.client.text_document_inlay_hint_async(params) or [])]

    async def labels(self, uri: str) -> list[tuple[int, str]]:
        """Lines (from 1) and labels of the hints."""
        return [(hint.position.line + 1, str(hint.label)) for hint in await self.hints(uri)]

    async def diagnostics(self, uri: str) -> list[types.Diagnostic]:
        """As this editor gets them."""
        capabilities = self.client.capabilities
        assert capabilities is not None
        if capabilities.text_document and capabilities.text_document.diagnostic:
            params = types.DocumentDiagnosticParams(types.TextDocumentIdentifier(uri))
            report = await self.client.text_document_diagnostic_async(params)
            assert isinstance(report, types.RelatedFullDocumentDiagnosticReport)
            return [*report.items]
        return [*self.client.diagnostics.get(uri, ())]

    async def hover(self, uri: str, line: int, col: int) -> str:
        params = types.HoverParams(types.TextDocumentIdentifier(uri), types.Position(line - 1, col))
        found = await self.client.text_document_hover_async(params)
        if found is None:
            return ""
        assert isinstance(found.contents, types.MarkupContent)
        return found.contents.value


async def eventually(ask: Callable[[], Awaitable[T]], wanted: Callable[[T], object]) -> T:
    """What is answered when it is as wanted: what is known grows, and says so in its own time."""
    end = time.monotonic() + _PATIENCE
    while True:
        answer = await ask()
        if wanted(answer):
            return answer
        assert time.monotonic() < end, answer
        await asyncio.sleep(0.1)


@contextlib.asynccontextmanager
async def editing(
    folder: Path,
    editor: str = "vscode",
    options: Any = None,
    settings: Any = None,
    connect: tuple[str, int] | None = None,
    others: tuple[Path, ...] = (),
) -> AsyncGenerator[Session]:
    """An editor on a folder, with a server of its own or one that listens."""
    client = LanguageClient(converter_factory=_converter)
    register_lsp_features(client)
    session = Session(client, folder)

    @client.feature(types.WORKSPACE_INLAY_HINT_REFRESH)
    def _(params: Any) -> None:
        session.refreshed += 1

    @client.feature(types.WORKSPACE_CODE_LENS_REFRESH)
    @client.feature(types.CLIENT_REGISTER_CAPABILITY)
    def _(params: Any) -> None:
        """Agreed to."""

    if settings is not None:
        client.set_configuration(settings, section="tensorpoint")
    if connect is None:
        await client.start_io(*COMMAND)
    else:
        await client.start_tcp(*connect)
    folders = [types.WorkspaceFolder(each.as_uri(), each.name) for each in (folder, *others)]
    try:
        session.server = await client.initialize_session(
            types.InitializeParams(
                capabilities=EDITORS[editor](),
                root_uri=folder.as_uri(),
                workspace_folders=folders,
                initialization_options=options,
            )
        )
        yield session
        await client.shutdown_session()
    finally:
        server = client._server
        if server is not None and server.returncode is None:
            server.kill()
        await client.stop()

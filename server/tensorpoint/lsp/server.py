"""`tensorpoint lsp`: who answers what. One server for each client, over stdio or a port."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import uuid
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from lsprotocol import types
from pygls.io_ import run_async
from pygls.lsp.server import LanguageServer
from pygls.uris import to_fs_path

from .. import __version__, serving
from ..resident.runs import stamp as runs_stamp
from ..shapes.measured import calls_in_last_run, with_measured
from ..shapes.project import BadProject, calls_in_project
from ..wire.shapes import KnownCall
from . import words
from .capabilities import Capabilities
from .configuration import Configuration, environment_of
from .features import completion
from .features.code_actions import KIND, code_actions
from .features.code_lens import code_lenses
from .features.diagnostics import SOURCE, diagnostics
from .features.hover import hover
from .features.inlay_hints import find, inlay_hints, tooltip
from .features.inline_values import inline_values
from .measured import MeasuredHints, measured_at
from .protocol import Protocol
from .sources import Source, is_open, source_of
from .tracing import Trace, Traces
from .view import View
from .warm import Warm

_log = logging.getLogger(__name__)

#: The command that asks torch.compile about a document, by URI: it takes seconds.
GRAPH_BREAKS = "tensorpoint.graphBreaks"
_NOTEBOOKS = types.NotebookDocumentSyncOptions(
    notebook_selector=[
        types.NotebookDocumentFilterWithCells(cells=[types.NotebookCellLanguage(language="python")])
    ]
)
#: Files whose change can make a table stale.
_WATCHED = ("**/*.py", "**/pyproject.toml")
#: A client that can't be told to ask again waits so long for what is being traced.
_WAIT_S = 20.0
#: Times that graph breaks are looked for, as long as what is traced has changed meanwhile.
_TRIES = 5
#: How often it is looked whether a debug run has ended: the time of one folder.
_RUNS_S = 2.0


def serve(listen: tuple[str, int] | None, allow_remote: bool, log_dir: Path | None) -> int:
    """Run the server until its clients are gone; returns the exit status."""
    from ..shapes import trace

    serving.start_log("lsp", log_dir)

    async def converse(reader: asyncio.StreamReader, writer: serving.Writer) -> int:
        server = Server(trace)
        server.protocol.set_writer(cast("Any", writer))
        try:
            await run_async(
                stop_event=server.left,
                reader=reader,
                protocol=server.protocol,
                error_handler=server.report_server_error,
            )
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            _log.info("the client is gone: %r", error)
        finally:
            await server.close()
            writer.close()
        return server.exit_status

    return serving.serve("lsp", listen, allow_remote, converse)


class Server(LanguageServer):
    """The features, on the tables of what one client has open."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]: pygls passes arguments on
            "tensorpoint",
            __version__,
            types.TextDocumentSyncKind.Incremental,
            _NOTEBOOKS,
            protocol_cls=Protocol,
        )
        self.left = threading.Event()
        self.exit_status = 0
        self._capabilities = Capabilities(types.ClientCapabilities())
        self._configuration = Configuration(self, self._complain)
        self._traces = Traces(trace, self._changed, self._progress, self._say_why_cold)
        self._warm = Warm()
        self._measured = MeasuredHints()
        #: Keys of the sources that are open.
        self._open: set[str] = set()
        #: What was said of a project: once is enough.
        self._complained: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        #: Those that find out what is known of a source before it is traced.
        self._updates: set[asyncio.Task[None]] = set()
        self._register()

    def _register(self) -> None:
        for method, handler, options in (
            (types.INITIALIZE, self._initialize, None),
            (types.INITIALIZED, self._initialized, None),
            (types.TEXT_DOCUMENT_DID_OPEN, self._did_open, None),
            (types.TEXT_DOCUMENT_DID_CHANGE, self._did_change, None),
            (types.TEXT_DOCUMENT_DID_SAVE, self._did_save, None),
            (types.TEXT_DOCUMENT_DID_CLOSE, self._did_close, None),
            (types.NOTEBOOK_DOCUMENT_DID_OPEN, self._notebook_did_open, None),
            (types.NOTEBOOK_DOCUMENT_DID_CHANGE, self._notebook_did_change, None),
            (types.NOTEBOOK_DOCUMENT_DID_CLOSE, self._notebook_did_close, None),
            (types.WORKSPACE_DID_CHANGE_CONFIGURATION, self._did_change_configuration, None),
            (types.WORKSPACE_DID_CHANGE_WATCHED_FILES, self._did_change_watched_files, None),
            (types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS, self._did_change_folders, None),
            (types.TEXT_DOCUMENT_INLAY_HINT, self._inlay_hint, None),
            (types.INLAY_HINT_RESOLVE, self._inlay_hint_resolve, None),
            (types.TEXT_DOCUMENT_HOVER, self._hover, None),
            (types.TEXT_DOCUMENT_CODE_LENS, self._code_lens, None),
            (types.TEXT_DOCUMENT_INLINE_VALUE, self._inline_value, None),
            (
                types.TEXT_DOCUMENT_DIAGNOSTIC,
                self._diagnostic,
                types.DiagnosticOptions(
                    inter_file_dependencies=True, workspace_diagnostics=False, identifier=SOURCE
                ),
            ),
            (
                types.TEXT_DOCUMENT_CODE_ACTION,
                self._code_action,
                types.CodeActionOptions(code_action_kinds=[KIND]),
            ),
            (
                types.TEXT_DOCUMENT_COMPLETION,
                self._completion,
                types.CompletionOptions(trigger_characters=[*completion.TRIGGERS]),
            ),
        ):
            # A partial, since pygls marks what it is given, and methods can not be marked.
            self.feature(method, options)(functools.partial(cast("Any", handler)))
        self.command(GRAPH_BREAKS)(functools.partial(self._graph_breaks))

    def leave(self, status: int) -> None:
        """End the conversation."""
        self.exit_status = status
        self.left.set()

    async def close(self) -> None:
        """End what is being done for this client."""
        await self._traces.close()
        self._configuration.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- life

    def _initialize(self, params: types.InitializeParams) -> None:
        self._capabilities = Capabilities(params.capabilities)
        self._configuration.begin(params.initialization_options)

    async def _initialized(self, _: types.InitializedParams) -> None:
        self._later(self._watch_runs())
        registrations: list[types.Registration] = []
        if self._capabilities.registers_configuration:
            registrations.append(
                types.Registration(
                    str(uuid.uuid4()), types.WORKSPACE_DID_CHANGE_CONFIGURATION, None
                )
            )
        if self._capabilities.registers_watched_files:
            options = types.DidChangeWatchedFilesRegistrationOptions(
                [types.FileSystemWatcher(glob) for glob in _WATCHED]
            )
            registrations.append(
                types.Registration(
                    str(uuid.uuid4()), types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options
                )
            )
        if registrations:
            try:
                await self.client_register_capability_async(types.RegistrationParams(registrations))
            except Exception as error:  # a client that promised what it does not do
                _log.warning("client/registerCapability: %r", error)

    def _complain(self, message: str) -> None:
        self.window_show_message(types.ShowMessageParams(types.MessageType.Warning, message))

    def _say_why_cold(self, why: str) -> None:
        if why not in self._complained:
            self._complained.add(why)
            text = f"Each trace starts a process, without the resident one, and takes longer: {why}"
            self.window_log_message(types.LogMessageParams(types.MessageType.Warning, text))

    # -- documents

    def _did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        self._update(params.text_document.uri, at_once=True)

    def _did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        self._update(params.text_document.uri)

    def _did_save(self, params: types.DidSaveTextDocumentParams) -> None:
        # What is open can depend on what is saved; a client that watches files says so itself.
        if not self._capabilities.registers_watched_files:
            self._files_changed([params.text_document.uri])

    def _did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._closed(params.text_document.uri, [params.text_document.uri])

    def _notebook_did_open(self, params: types.DidOpenNotebookDocumentParams) -> None:
        self._update(params.notebook_document.uri, at_once=True)

    def _notebook_did_change(self, params: types.DidChangeNotebookDocumentParams) -> None:
        self._update(params.notebook_document.uri)

    def _notebook_did_close(self, params: types.DidCloseNotebookDocumentParams) -> None:
        cells = [document.uri for document in params.cell_text_documents]
        self._closed(params.notebook_document.uri, cells)

    def _closed(self, key: str, documents: list[str]) -> None:
        self._open.discard(key)
        self._traces.forget(key)
        if not self._capabilities.pulls_diagnostics:
            for uri in documents:
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    def _did_change_configuration(self, params: types.DidChangeConfigurationParams) -> None:
        self._configuration.changed(params.settings)
        self._update_all()

    def _did_change_folders(self, _: types.DidChangeWorkspaceFoldersParams) -> None:
        self._configuration.changed(None)
        self._update_all()

    def _did_change_watched_files(self, params: types.DidChangeWatchedFilesParams) -> None:
        self._files_changed([change.uri for change in params.changes])

    def _files_changed(self, uris: list[str]) -> None:
        paths = [path for uri in uris if (path := to_fs_path(uri))]
        if any(path.endswith("pyproject.toml") for path in paths):
            self._traces.forget_all()
            self._update_all()
            return
        for key in self._traces.stale(paths):
            self._update(key)

    def _update_all(self) -> None:
        for key in self._open:
            self._update(key)
        # What is shown depends on settings, even where the table stays.
        self._changed(*self._open)

    def _update(self, uri: str, at_once: bool = False) -> None:
        task = self._later(self._trace(uri, at_once))
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)

    async def _trace(self, uri: str, at_once: bool) -> None:
        source = source_of(self.workspace, uri)
        if source is None:
            return
        self._open.add(source.key)
        folder = self._folder(source)
        settings = await self._configuration.of(folder)
        # While the client answered there may have been an edit, or the end.
        source = source_of(self.workspace, uri)
        if source is None:
            return
        if not settings.traces:
            self._traces.forget(source.key)
            return
        path = None if folder is None else to_fs_path(folder)
        environment = environment_of(settings, Path(path) if path else None)
        self._warm.begin(environment)
        known, problem = await asyncio.to_thread(_known, source.path)
        if problem and problem not in self._complained:
            self._complained.add(problem)
            self._complain(f"Tensorpoint: {problem}")
        delay = 0 if at_once else settings.shapes.delay / 1000
        source = source_of(self.workspace, uri)
        if source is not None:
            self._traces.update(source, settings.shapes, known, environment, delay)

    async def _watch_runs(self) -> None:
        """Have what a debug run has measured shown when it is there."""
        last = runs_stamp()
        while True:
            await asyncio.sleep(_RUNS_S)
            now = runs_stamp()
            if now != last:
                last = now
                self._update_all()

    def _folder(self, source: Source) -> str | None:
        """The innermost workspace folder that a source is in."""
        key = unquote(source.key)
        folders = [
            folder
            for plain, folder in self.workspace.folders.items()  # by their unquoted URIs
            if key.startswith(plain.rstrip("/") + "/")
        ]
        if folders:
            return max(folders, key=lambda folder: len(unquote(folder.uri))).uri
        return self.workspace.root_uri

    def _later(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a fault of ours", exc_info=error)

    # -- telling

    def _changed(self, *keys: str) -> None:
        """There is something new to show of these sources."""
        shown = self._open.intersection(keys)
        if not shown:
            return
        for refresh in self._capabilities.refreshes:
            refresh(self)(None)
        if not self._capabilities.pulls_diagnostics:
            for key in shown:
                self._later(self._push(key))

    async def _push(self, key: str) -> None:
        source = source_of(self.workspace, key)
        for part in source.parts if source is not None else ():
            view = await self._view(part.uri, wait=False)
            if not is_open(self.workspace, part.uri):  # closed while the client answered
                continue
            related = self._capabilities.shows_related
            found = [] if view is None else diagnostics(view, related)
            version = (part if view is None else view.part).version
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(part.uri, found, version)
            )

    @contextlib.asynccontextmanager
    async def _progress(self, title: str) -> AsyncGenerator[None]:
        """A progress bar of the client, if it has them."""
        if not self._capabilities.shows_progress:
            yield
            return
        token = str(uuid.uuid4())
        try:
            await self.window_work_done_progress_create_async(
                types.WorkDoneProgressCreateParams(token)
            )
        except Exception as error:  # a client that promised what it does not do
            _log.warning("window/workDoneProgress/create: %r", error)
            yield
            return
        begin = types.WorkDoneProgressBegin(title, cancellable=False)
        self.work_done_progress.begin(token, begin)
        try:
            yield
        finally:
            self.work_done_progress.end(token, types.WorkDoneProgressEnd())

    # -- features

    async def _view(self, uri: str, wait: bool) -> View | None:
        """What is known of a document; with `wait`, when it has been traced as it is."""
        source = source_of(self.workspace, uri)
        if source is None:
            return None
        settings = await self._configuration.of(self._folder(source))
        if not settings.traces:
            return None
        if wait:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._settled(source.key), _WAIT_S)
        source = source_of(self.workspace, uri)
        part = None if source is None else source.part(uri)
        if source is None or part is None:
            return None
        table, problem = self._traces.table(source)
        table = with_measured(table, await asyncio.to_thread(self._measured.hints, source))
        codec = self.workspace.position_codec
        return View(source, part, table, settings.shapes, codec, problem)

    async def _settled(self, key: str) -> None:
        """Wait until a source has been traced as it is."""
        # The trace of an edit begins a moment after it.
        await asyncio.sleep(0)
        if self._updates:
            await asyncio.wait(self._updates)
        await self._traces.settled(key)

    async def _inlay_hint(self, params: types.InlayHintParams) -> list[types.InlayHint] | None:
        wait = not self._capabilities.refreshes_hints
        view = await self._view(params.text_document.uri, wait)
        if view is None:
            return None
        lazy = self._capabilities.resolves_tooltips
        return inlay_hints(view, params.range, self._capabilities.formats, lazy)

    async def _inlay_hint_resolve(self, hint: types.InlayHint) -> types.InlayHint:
        data = cast("dict[str, Any]", hint.data or {})
        view = await self._view(str(data.get("uri", "")), wait=False)
        found = None if view is None else find(view, data)
        if view is not None and found is not None:
            hint.tooltip = tooltip(view, found, self._capabilities.formats)
        return hint

    async def _hover(self, params: types.HoverParams) -> types.Hover | None:
        view = await self._view(params.text_document.uri, wait=False)
        if view is None:
            return None
        line, _ = view.place(params.position)
        found = await asyncio.to_thread(measured_at, view.source, line)
        return hover(view, params.position, self._capabilities.formats, found)

    async def _code_lens(self, params: types.CodeLensParams) -> list[types.CodeLens] | None:
        wait = not self._capabilities.refreshes_lenses
        view = await self._view(params.text_document.uri, wait)
        return None if view is None else code_lenses(view)

    async def _inline_value(
        self, params: types.InlineValueParams
    ) -> list[types.InlineValue] | None:
        view = await self._view(params.text_document.uri, wait=False)
        return None if view is None else inline_values(view, params.range, params.context)

    async def _diagnostic(
        self, params: types.DocumentDiagnosticParams
    ) -> types.RelatedFullDocumentDiagnosticReport:
        wait = not self._capabilities.refreshes_diagnostics
        view = await self._view(params.text_document.uri, wait)
        found = [] if view is None else diagnostics(view, self._capabilities.shows_related)
        return types.RelatedFullDocumentDiagnosticReport(found)

    async def _code_action(
        self, params: types.CodeActionParams
    ) -> list[types.CodeAction | types.Command] | None:
        view = await self._view(params.text_document.uri, wait=False)
        if view is None:
            return None
        versioned = self._capabilities.changes_documents
        return [*code_actions(view, params.range, params.context.only, versioned)]

    async def _completion(self, params: types.CompletionParams) -> types.CompletionList | None:
        view = await self._view(params.text_document.uri, wait=False)
        if view is None:
            return None
        return types.CompletionList(False, completion.completions(view, params.position))

    async def _graph_breaks(self, uri: str) -> str:
        """The command: diagnostics at each line where torch.compile would break the graph."""
        said = await self._find_breaks(uri)
        text = f"Graph breaks of {uri.rpartition('/')[2]}: {said}"
        self.window_show_message(types.ShowMessageParams(types.MessageType.Info, text))
        return said

    async def _find_breaks(self, uri: str) -> str:
        # The end of a debug run, a saved file or an edit can change meanwhile what is traced.
        for _ in range(_TRIES):
            source = source_of(self.workspace, uri)
            if source is not None:
                await self._settled(source.key)
                source = source_of(self.workspace, uri)
            if source is None:
                return "it is not open here."
            found = await self._traces.find_breaks(source)
            if found is not None:
                return words.graph_breaks(source, found)
        return "what is traced changes all the time; ask again."


def _known(path: str) -> tuple[tuple[KnownCall, ...], str]:
    """What the project and the last debug run say of a file's calls, and what is wrong with it."""
    project, problem = (), ""
    try:
        project = calls_in_project(Path(path))
    except BadProject as error:
        problem = str(error)
    return (*project, *calls_in_last_run(path)), problem

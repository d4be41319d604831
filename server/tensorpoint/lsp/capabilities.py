"""What a client can do, as far as it makes a difference here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.lsp.server import LanguageServer

Refresh = Callable[[LanguageServer], Callable[[None], object]]


class Capabilities:
    """Questions about one client; decided by what it says, never by its name."""

    def __init__(self, sent: types.ClientCapabilities) -> None:
        def has(name: str) -> bool:
            return bool(get_capability(sent, name, False))

        #: Asks for diagnostics; then none are pushed, or it would show all of them twice.
        self.pulls_diagnostics = get_capability(sent, "text_document.diagnostic") is not None
        #: Shows places that belong to a diagnostic.
        self.shows_related = has("text_document.publish_diagnostics.related_information") or has(
            "text_document.diagnostic.related_information"
        )
        #: Asks for these again when it is told to.
        self.refreshes_hints = has("workspace.inlay_hint.refresh_support")
        self.refreshes_lenses = has("workspace.code_lens.refresh_support")
        self.refreshes_diagnostics = has("workspace.diagnostics.refresh_support")
        resolved: Sequence[str] | None = get_capability(
            sent, "text_document.inlay_hint.resolve_support.properties"
        )
        #: Asks for the tooltip of a hint when it is needed.
        self.resolves_tooltips = "tooltip" in (resolved or ())
        formats: Any = get_capability(sent, "text_document.hover.content_format")
        #: The formats of a hover; None if it doesn't say, which means Markdown in practice.
        self.formats: list[types.MarkupKind] | None = None if formats is None else [*formats]
        #: Takes edits that name a document's version.
        self.changes_documents = has("workspace.workspace_edit.document_changes")
        #: Shows progress bars.
        self.shows_progress = has("window.work_done_progress")
        #: Wants to be asked before it tells about changed settings.
        self.registers_configuration = has(
            "workspace.did_change_configuration.dynamic_registration"
        )
        #: Watches files when it is asked to.
        self.registers_watched_files = has(
            "workspace.did_change_watched_files.dynamic_registration"
        )

    @property
    def refreshes(self) -> list[Refresh]:
        """How it is told to ask again."""
        table: tuple[tuple[bool, Refresh], ...] = (
            (self.refreshes_hints, lambda server: server.workspace_inlay_hint_refresh),
            (self.refreshes_lenses, lambda server: server.workspace_code_lens_refresh),
            (self.refreshes_diagnostics, lambda server: server.workspace_diagnostic_refresh),
        )
        return [refresh for can, refresh in table if can]

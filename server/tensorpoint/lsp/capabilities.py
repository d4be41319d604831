"""What a client can do, as far as it makes a difference here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from lsprotocol import types
from pygls.capabilities import get_capability
from pygls.lsp.server import LanguageServer

Refresh = Callable[[LanguageServer], Callable[[None], object]]

_REFRESHES: tuple[tuple[str, Refresh], ...] = (
    ("workspace.inlay_hint.refresh_support", lambda server: server.workspace_inlay_hint_refresh),
    ("workspace.code_lens.refresh_support", lambda server: server.workspace_code_lens_refresh),
    ("workspace.diagnostics.refresh_support", lambda server: server.workspace_diagnostic_refresh),
)


class Capabilities:
    """Questions about one client; decided by what it says, never by its name."""

    def __init__(self, sent: types.ClientCapabilities) -> None:
        self._sent = sent

    def _has(self, name: str) -> bool:
        return bool(get_capability(self._sent, name, False))

    @cached_property
    def pulls_diagnostics(self) -> bool:
        """Asks for diagnostics; then none are pushed, or it would show all of them twice."""
        return get_capability(self._sent, "text_document.diagnostic") is not None

    @cached_property
    def shows_related(self) -> bool:
        """Shows places that belong to a diagnostic."""
        return self._has("text_document.publish_diagnostics.related_information") or self._has(
            "text_document.diagnostic.related_information"
        )

    @cached_property
    def refreshes(self) -> list[Refresh]:
        """How it is told to ask again."""
        return [refresh for name, refresh in _REFRESHES if self._has(name)]

    @cached_property
    def refreshes_hints(self) -> bool:
        """Asks for hints again when it is told to."""
        return self._has("workspace.inlay_hint.refresh_support")

    @cached_property
    def refreshes_lenses(self) -> bool:
        """Asks for code lenses again when it is told to."""
        return self._has("workspace.code_lens.refresh_support")

    @cached_property
    def refreshes_diagnostics(self) -> bool:
        """Asks for diagnostics again when it is told to."""
        return self._has("workspace.diagnostics.refresh_support")

    @cached_property
    def resolves_tooltips(self) -> bool:
        """Asks for the tooltip of a hint when it is needed."""
        properties: Sequence[str] | None = get_capability(
            self._sent, "text_document.inlay_hint.resolve_support.properties"
        )
        return "tooltip" in (properties or ())

    @cached_property
    def formats(self) -> list[types.MarkupKind] | None:
        """The formats of a hover; None if it doesn't say, which means Markdown in practice."""
        formats: Any = get_capability(self._sent, "text_document.hover.content_format")
        return None if formats is None else list(formats)

    @cached_property
    def changes_documents(self) -> bool:
        """Takes edits that name a document's version."""
        return self._has("workspace.workspace_edit.document_changes")

    @cached_property
    def shows_progress(self) -> bool:
        """Shows progress bars."""
        return self._has("window.work_done_progress")

    @cached_property
    def registers_configuration(self) -> bool:
        """Wants to be asked before it tells about changed settings."""
        return self._has("workspace.did_change_configuration.dynamic_registration")

    @cached_property
    def registers_watched_files(self) -> bool:
        """Watches files when it is asked to."""
        return self._has("workspace.did_change_watched_files.dynamic_registration")

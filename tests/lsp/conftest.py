"""Fixtures of the tests of the language server: real servers, the real tracer."""

from __future__ import annotations

from tests.protocol.resident import resident_host, resident_process

__all__ = ["resident_host", "resident_process"]

"""Fixtures of the protocol tests."""

from __future__ import annotations

from tests.protocol.resident import cold, forked, resident_host, resident_process

__all__ = ["cold", "forked", "resident_host", "resident_process"]

"""Fixtures of the protocol tests."""

from __future__ import annotations

from tests.protocol.resident import both_ways, cold, resident_host, resident_process

__all__ = ["both_ways", "cold", "resident_host", "resident_process"]

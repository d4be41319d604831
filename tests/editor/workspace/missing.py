"""Needs what is not installed."""

import not_installed_anywhere  # type: ignore[import-not-found] # noqa: F401

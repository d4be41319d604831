"""Loads the agent into the debugged process. The adapter evaluates this file's text there.

The package is loaded from its folder under a private name, so nothing of ours has to be installed
in the debuggee's environment, its `sys.path` is untouched, and a program that itself imports
`tensorpoint` gets its own copy.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys

PRIVATE_NAME = "_tensorpoint"


def boot(package_folder: str, options: str) -> str:
    """Load the package at `package_folder` and start the agent; returns its greeting as JSON.

    Calling it again in the same process (a forked child, a second attach) is harmless. A failure
    is returned as `{"error": ...}`, never raised: the debuggee must not die of us.
    """
    try:
        if PRIVATE_NAME not in sys.modules:
            spec = importlib.util.spec_from_file_location(
                PRIVATE_NAME,
                f"{package_folder}/__init__.py",
                submodule_search_locations=[package_folder],
            )
            if spec is None or spec.loader is None:
                return json.dumps({"error": f"cannot load the agent from {package_folder}"})
            package = importlib.util.module_from_spec(spec)
            sys.modules[PRIVATE_NAME] = package
            try:
                spec.loader.exec_module(package)
            except BaseException:
                del sys.modules[PRIVATE_NAME]
                raise
        session = importlib.import_module(f"{PRIVATE_NAME}.agent.session")
        greeting: str = session.start(options)
        return greeting
    except Exception as error:
        return json.dumps({"error": f"{type(error).__name__}: {error}"})

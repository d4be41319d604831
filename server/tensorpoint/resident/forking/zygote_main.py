"""What a zygote is started with: `python FLAGS zygote_main.py`, in the program's interpreter.

Loads this folder as a package under a private name, so that `sys.path` has nothing of ours.
"""

import importlib.util
import os
import sys

NAME = "_tensorpoint_forking"


def _load() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    spec = importlib.util.spec_from_file_location(
        NAME, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = package
    spec.loader.exec_module(package)


if __name__ == "__main__":
    _load()
    importlib.import_module(f"{NAME}.zygote").main()

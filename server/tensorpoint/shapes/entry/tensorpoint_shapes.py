"""The door for jobs: loads the tracer by its location, under a private name.

The folder of this file alone is put before the user's packages, so that nothing else of ours, nor
of the environment that it is installed in, can be imported in the place of theirs. A zygote asks
for `tracer` ahead: its 40 modules and what else is prepared take 0.1 s, in each trace otherwise.
"""

import importlib
import sys
import types
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[2]
#: Not the agent's: a zygote has both, and the agent's package is more than a folder.
_PRIVATE_NAME = "_tensorpoint_tracer"


def trace(payload, ask):
    """See `shapes.tracing.main.trace`."""
    return _tracer().trace(payload, ask)


def __getattr__(name):
    if name != "tracer":
        raise AttributeError(f"there is no {name} here")
    tracer = _tracer()
    tracer.prepare()
    return tracer


def _tracer():
    shapes = f"{_PRIVATE_NAME}.shapes"
    for name, folder in ((_PRIVATE_NAME, _PACKAGE), (shapes, _PACKAGE / "shapes")):
        if name not in sys.modules:
            package = types.ModuleType(name)
            package.__path__ = [str(folder)]
            sys.modules[name] = package
    return importlib.import_module(f"{shapes}.tracing.main")

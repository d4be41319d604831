"""Tensorpoint: breakpoints on tensors, for any editor that speaks the Debug Adapter Protocol.

The programs are `tensorpoint dap`, `run`, `demo` and `doctor` (`cli`). A program that is debugged
may also use it itself: `watch`, `listen`, `wait_for_client`, `breakpoint` (`docs/python.md`).

In the debuggee this package is loaded by file location under another name, so importing it costs
nothing and needs nothing: only the standard library here, and that only on request.
"""

TYPE_CHECKING = False  # type checkers take it for typing's, which is not worth an import here

if TYPE_CHECKING:
    from debugpy import breakpoint as breakpoint
    from debugpy import wait_for_client as wait_for_client

    from .agent.hit import TensorpointHit as TensorpointHit
    from .agent.hit import TensorpointWarning as TensorpointWarning
    from .api import listen as listen
    from .api import watch as watch
    from .wire import Stop as Stop

    __version__: str
else:

    def __getattr__(name):
        # Looked up when asked for: importlib.metadata alone takes longer than all of this package.
        if name == "__version__":
            from importlib.metadata import PackageNotFoundError, version

            try:
                return version("tensorpoint")
            except PackageNotFoundError:  # run from a source tree
                return "0+unknown"
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"{__name__}.api"), name)
        globals()[name] = found
        return found


__all__ = [
    "Stop",
    "TensorpointHit",
    "TensorpointWarning",
    "__version__",
    "breakpoint",
    "listen",
    "wait_for_client",
    "watch",
]

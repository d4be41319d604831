"""Tensorpoint: breakpoints on tensors, for any editor that speaks the Debug Adapter Protocol.

The programs are `tensorpoint dap`, `run`, `demo` and `doctor` (`cli`). In the debuggee this package
is loaded by file location under another name, so importing it costs nothing and needs nothing: only
the standard library here, and that only on request.
"""

TYPE_CHECKING = False  # type checkers take it for typing's, which is not worth an import here

if TYPE_CHECKING:
    __version__: str
else:

    def __getattr__(name):
        # Looked up when asked for: importlib.metadata alone takes longer than all of this package.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tensorpoint")
        except PackageNotFoundError:  # run from a source tree
            return "0+unknown"


__all__ = ["__version__"]

"""Runs a program as `python` would, in an interpreter that has started already, and ends it.

The end is Python's own up to the point where the interpreter would be torn down (half a second for
torch's 2,600 modules): threads are waited for, exit functions run, the program's own modules let go
of what they hold, the streams are flushed. Then the process ends.
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from importlib.machinery import BuiltinImporter, SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from .command import Command
from .debugger import Debugger

#: Modules that a fresh interpreter has imported before it looks into the program's folder.
OF_THE_START = frozenset(
    {
        *sys.builtin_module_names,
        *("abc", "codecs", "encodings", "io", "os", "posixpath", "site", "stat", "zipimport"),
        *("_collections_abc", "_sitebuiltins", "genericpath"),
    }
)
#: Exit statuses of Python's own.
_STATUS_ERROR, _STATUS_NO_FILE, _STATUS_UNFLUSHED = 1, 2, 120


def first_on_path(command: Command, debugger: Debugger | None = None) -> str | None:
    """What Python would put in front of `sys.path`; None in safe mode.

    For a program under the debugger it is what the debugger will put there.
    """
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return None
    if command.kind != "file":
        return os.getcwd()
    if is_debugger(command, debugger):
        target = _debugged_file(command.args)
        return os.getcwd() if target is None else os.path.dirname(os.path.abspath(target))
    if os.path.isdir(command.target):
        return command.target
    return os.path.dirname(os.path.realpath(command.target))


def is_debugger(command: Command, debugger: Debugger | None) -> bool:
    """Whether what is run is the debugger that was imported."""
    target = os.path.abspath(command.target)
    return debugger is not None and command.kind == "file" and target == debugger.folder


def _debugged_file(args: tuple[str, ...]) -> str | None:
    """The program file in `debugpy --connect ... PROGRAM ARGS`; None for -m and -c."""
    words = list(args)
    while words:
        word = words.pop(0)
        if word in ("-m", "-c"):
            return None
        if not word.startswith("-"):
            return word
        if word not in ("--wait-for-client", "--log-to-stderr"):
            words[:] = words[2:] if word.startswith("--configure-") and "=" in word else words[1:]
    return None


def run(
    command: Command,
    debugger: Debugger | None,
    before: frozenset[str],
    tell_imported: Callable[[list[str]], None],
) -> int:
    """Run it to its end; returns the exit status. May die of SIGINT, as Python does.

    `before` has the modules that were there: a look at all of them takes a fork 8 ms, since each
    name that is looked at is on a page that is copied then.
    """
    status = 0
    died: BaseException | None = None
    try:
        if debugger is not None and is_debugger(command, debugger):
            sys.argv[:] = [command.target, *command.args]
            _new_main()
            debugger.run()
        elif command.kind == "file":
            _run_file(command)
        elif command.kind == "module":
            _run_module(command)
        else:
            _run_code(command)
    except SystemExit as error:
        status = _status_of(error)
    except BaseException as error:
        died = error
    if died is not None:  # here, where it is no longer the context of what a hook may raise
        status = _STATUS_ERROR
        _print_exception(died)
    interrupted = isinstance(died, KeyboardInterrupt)
    del died
    if names := _imported(before, debugger):
        tell_imported(names)
    status = _finish(status, before)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status


# -- what is run


def _new_main() -> ModuleType:
    main = ModuleType("__main__")
    main.__dict__.update(
        __builtins__=sys.modules["builtins"], __annotations__={}, __package__=None, __spec__=None
    )
    sys.modules["__main__"] = main
    return main


def _run_file(command: Command) -> None:
    sys.argv[:] = [command.target, *command.args]
    if os.path.isdir(command.target):
        _new_main()
        sys.path.insert(0, command.target)
        _run_as_main("__main__", alter_argv=False)
        return
    path = os.path.join(os.getcwd(), command.target)  # as Python, not normalised
    main = _new_main()
    if (folder := first_on_path(command)) is not None:
        sys.path.insert(0, folder)
    try:
        with open(command.target, "rb") as stream:
            source = stream.read()
    except OSError as error:
        print(
            f"{sys.executable}: can't open file {path!r}: [Errno {error.errno}] {error.strerror}",
            file=sys.stderr,
        )
        raise SystemExit(_STATUS_NO_FILE) from None
    compiled = source.startswith(MAGIC_NUMBER)
    loader = (SourcelessFileLoader if compiled else SourceFileLoader)("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    if compiled:
        exec(loader.get_code("__main__"), main.__dict__)  # type: ignore[arg-type]
        return
    # An archive, or what Python's tokenizer of files treats otherwise than `compile`.
    if b"\0" in source or source.startswith(b"PK\3\4"):
        os.execv(sys.executable, sys.orig_argv)
    exec(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _run_module(command: Command) -> None:
    sys.argv[:] = ["-m", *command.args]
    _new_main()
    if (folder := first_on_path(command)) is not None:
        sys.path.insert(0, folder)
    _run_as_main(command.target)


def _run_as_main(name: str, alter_argv: bool = True) -> None:
    if sys.version_info >= (3, 11) and "frozen_modules" not in sys._xoptions:
        _freeze(runpy)
    runpy._run_module_as_main(name, alter_argv)  # type: ignore[attr-defined]


def _freeze(module: ModuleType) -> None:
    """Have tracebacks show the functions of a module as those of a frozen one."""
    for function in vars(module).values():
        if isinstance(function, FunctionType) and function.__module__ == module.__name__:
            name = f"<frozen {module.__name__}>"
            function.__code__ = function.__code__.replace(co_filename=name)


def _run_code(command: Command) -> None:
    sys.argv[:] = ["-c", *command.args]
    main = _new_main()
    main.__dict__["__loader__"] = BuiltinImporter
    if first_on_path(command) is not None:
        sys.path.insert(0, "")
    exec(compile(command.target, "<string>", "exec", dont_inherit=True), main.__dict__)


# -- how it ends


def _status_of(exit_: SystemExit) -> int:
    code = exit_.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    _flush(sys.stdout)
    print(code, file=sys.stderr)
    return _STATUS_ERROR


def _print_exception(error: BaseException) -> None:
    """As for an exception that nobody caught, without our frames at its root."""
    trace = error.__traceback__ = _without_ours(error.__traceback__)
    kind = type(error)
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    _flush(sys.stdout)
    try:
        sys.excepthook(kind, error, trace)
    except SystemExit as exit_:
        os._exit(_status_of(exit_))
    except BaseException as second:
        second.__traceback__ = _without_ours(second.__traceback__)
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(kind, error, trace)


#: How our code is called: see `tensorpoint_zygote`.
_OURS = f"<frozen {__package__}."


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) or os.path.basename(file) == "tensorpoint_zygote.py"


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def _finish(status: int, before: frozenset[str]) -> int:
    for finish in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            finish()
        except BaseException as error:
            _print_exception(error)
    if len(threading.enumerate()) == 1 or _only_the_debuggers():
        _let_go(before)
    if not _flush(sys.stdout):
        status = _STATUS_UNFLUSHED
    _flush(sys.stderr)
    return status


def _only_the_debuggers() -> bool:
    """A daemon thread of the program's would run into modules that are empty."""
    main = threading.main_thread()
    return all(
        thread is main or getattr(thread, "is_pydev_daemon_thread", False)
        for thread in threading.enumerate()
    )


def _imported(before: frozenset[str], debugger: Debugger | None) -> list[str]:
    """What the program has imported of what is installed, in that order."""
    found: list[str] = []
    for name, module in list(sys.modules.items()):
        if name in before or (debugger is not None and name in debugger.modules):
            continue
        scope = getattr(module, "__dict__", {})
        spec, file = scope.get("__spec__"), scope.get("__file__")
        if "-packages" in (file or "") and getattr(spec, "name", "") == name:
            found.append(name)
    return found


def _let_go(before: frozenset[str]) -> None:
    """Empty the program's own modules, so that finalizers run as at the end of an interpreter."""
    site = tuple(entry for entry in sys.path if entry.endswith("-packages"))
    library = os.path.dirname(os.__file__)
    names = [name for name in sys.modules if name not in before]
    for name in [*reversed(names), "__main__"]:
        module = sys.modules.get(name)
        origin = getattr(module, "__file__", None) or ""
        if name != "__main__" and (not origin or origin.startswith((*site, library))):
            continue
        if isinstance(module, ModuleType):
            _empty(module.__dict__)
    gc.collect()


def _empty(scope: dict[str, Any]) -> None:
    """The order of `_PyModule_Clear`: names with one underscore first."""
    names = [str(name) for name in scope if name != "__builtins__"]
    for name in sorted(names, key=lambda name: not (name[:1] == "_" and name[1:2] != "_")):
        try:
            scope[name] = None
        except BaseException:
            pass


def _flush(stream: Any) -> bool:
    if stream is None or getattr(stream, "closed", False):
        return True
    try:
        stream.flush()
    except BaseException as error:
        hook: Any = sys.stderr
        if stream is sys.stdout and hook is not None:
            try:
                print(
                    f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}", file=hook
                )
            except OSError:
                pass
        return False
    return True

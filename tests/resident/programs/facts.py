"""A program that says in JSON what a program can observe of how it was started."""

import builtins
import inspect
import json
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings

facts = {}


def stream(file):
    if file is None:
        return None
    return {
        "text": repr(file).replace(f"fd={file.fileno()}", "fd"),
        "buffer": type(file.buffer).__name__,
        "raw": type(getattr(file.buffer, "raw", file.buffer)).__name__,
        "raw_name": file.buffer.name,
        "fileno": file.fileno(),
        "errors": file.errors,
        "encoding": file.encoding,
        "newlines": file.newlines,
        "line_buffering": file.line_buffering,
        "write_through": file.write_through,
        "isatty": file.isatty(),
        "mode": getattr(file, "mode", None),
    }


def where(error):
    return traceback.format_exception(error)


main = sys.modules["__main__"]
table = {
    "argv": lambda: sys.argv,
    "orig_argv": lambda: sys.orig_argv,
    "name": lambda: __name__,
    "file": lambda: __file__,
    "package": lambda: __package__,
    "spec": lambda: repr(__spec__),
    "loader": lambda: type(__loader__).__name__ + repr(getattr(__loader__, "path", "")),
    "cached": lambda: __cached__,
    "doc": lambda: __doc__,
    "annotations": lambda: __annotations__,
    "builtins_is_module": lambda: __builtins__ is builtins,
    "main_is_this": lambda: main.__dict__ is globals(),
    "main_names": lambda: sorted(name for name in vars(main) if name.startswith("__")),
    "path": lambda: sys.path,
    "executable": lambda: sys.executable,
    "prefix": lambda: [sys.prefix, sys.base_prefix, sys.exec_prefix],
    "flags": lambda: str(sys.flags),
    "xoptions": lambda: sys._xoptions,
    "warnoptions": lambda: sys.warnoptions,
    "optimised": lambda: [__debug__, sys.flags.optimize],
    "stdin": lambda: stream(sys.stdin),
    "stdout": lambda: stream(sys.stdout),
    "stderr": lambda: stream(sys.stderr),
    "original_streams": lambda: [sys.__stdin__ is sys.stdin, sys.__stdout__ is sys.stdout],
    "cwd": os.getcwd,
    "environment": lambda: dict(sorted(os.environ.items())),
    "environment_of_c": lambda: subprocess.check_output("env | grep ^TP_", shell=True),
    "umask": lambda: _umask(),
    "nice": lambda: os.nice(0),
    "affinity": lambda: sorted(os.sched_getaffinity(0)),
    "limits": lambda: {
        name: resource.getrlimit(getattr(resource, name))
        for name in sorted(dir(resource))
        if name.startswith("RLIMIT_")
    },
    "signals": lambda: {str(n): str(signal.getsignal(n)) for n in sorted(signal.valid_signals())},
    "signal_mask": lambda: sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
    "wakeup_fd": lambda: _wakeup(),
    "open_files": lambda: _open_files(),
    "threads": lambda: [t.name for t in threading.enumerate()],
    "os_threads": lambda: len(os.listdir("/proc/self/task")),
    "main_thread": lambda: [
        threading.main_thread() is threading.current_thread(),
        threading.main_thread().ident == threading.get_ident(),
        threading.get_native_id() == os.getpid(),
    ],
    "process_name": lambda: open("/proc/self/comm").read().strip(),
    "in_process_list": lambda: __file__ in open("/proc/self/cmdline").read(),
    "trace_functions": lambda: [sys.gettrace(), sys.getprofile(), threading.gettrace()],
    "hooks": lambda: [
        sys.excepthook is sys.__excepthook__,
        sys.displayhook is sys.__displayhook__,
        sys.breakpointhook is sys.__breakpointhook__,
        sys.unraisablehook is sys.__unraisablehook__,
        threading.excepthook is threading.__excepthook__,
    ],
    "importers": lambda: [getattr(f, "__name__", repr(f)) for f in sys.meta_path],
    "recursion_limit": sys.getrecursionlimit,
    "switch_interval": sys.getswitchinterval,
    "encodings": lambda: [sys.getdefaultencoding(), sys.getfilesystemencoding()],
    "locale": lambda: [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False)],
    "warning_filters": lambda: [str(item) for item in warnings.filters],
    "warning": lambda: _warned(),
    "traceback": lambda: _raised(),
    "syntax_error": lambda: _syntax_error(),
    "logging": lambda: [logging.root.level, len(logging.root.handlers)],
    "log_clock": lambda: logging.makeLogRecord({}).relativeCreated < 60_000,
    "start_method": lambda: multiprocessing.get_start_method(),
    "start_methods": multiprocessing.get_all_start_methods,
    "process": lambda: [
        multiprocessing.current_process().name,
        multiprocessing.parent_process(),
        len(multiprocessing.current_process().authkey),
        multiprocessing.active_children(),
    ],
    "time_zone": lambda: time.tzname,
    "cpu_time_starts_at_nothing": lambda: time.process_time() < 30,
    "group_leader_of_something": lambda: os.getpgrp() > 0,
    "source": lambda: inspect.getsource(_raised).splitlines()[0],
    "child": lambda: _child(),
    "debugger_is_here": lambda: [n for n in sys.modules if n.startswith(("debugpy", "pydev"))],
    "ours_is_importable": lambda: _importable("zygote") or _importable("child"),
}


def _importable(name):
    import importlib.util

    return importlib.util.find_spec(name) is not None


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _wakeup():
    was = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(was)
    return was


def _open_files():
    found = {}
    for name in sorted(os.listdir("/proc/self/fd"), key=int):
        try:
            found[name] = os.readlink(f"/proc/self/fd/{name}").split(":")[0]
        except OSError:
            pass
    return {number: kind for number, kind in found.items() if not kind.endswith("/fd")}


def _warned():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    (warning,) = caught
    return [str(warning.message), warning.filename, warning.lineno]


def _raised():
    try:
        json.loads("{")
    except ValueError as error:
        return where(error)


def _syntax_error():
    try:
        compile("1 +", "there.py", "exec")
    except SyntaxError as error:
        return where(error)


def _child():
    code = "import sys, os; print(sys.executable, os.getcwd(), os.environ['TP_ONE'])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout


for name, function in table.items():
    try:
        facts[name] = function()
    except Exception as error:
        facts[name] = f"{type(error).__name__}: {error}"
differing = {
    "random": random.random(),
    "pid": os.getpid(),
    "authkey": multiprocessing.current_process().authkey.hex(),
}
if "--torch" in sys.argv:
    import numpy
    import torch

    differing["torch"] = torch.rand(1).item()
    differing["torch_seed"] = torch.initial_seed()
    differing["numpy"] = float(numpy.random.rand())
    facts["deterministic"] = [
        torch.manual_seed(1).seed() != 1,
        torch.are_deterministic_algorithms_enabled(),
    ]
    facts["grad"] = torch.is_grad_enabled()
    facts["dtype"] = str(torch.get_default_dtype())
    facts["torch_threads"] = [torch.get_num_threads(), torch.get_num_interop_threads()]
    facts["cuda"] = torch.cuda.is_initialized()
print(json.dumps({"facts": facts, "differing": differing}, default=repr))

"""Returns of frames that run already, on every CPython found here: two mechanisms tell of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensorpoint.agent.stepping import returns
from tests.protocol.pythons import other_pythons

PYTHONS = {"this": sys.executable, **other_pythons()}

#: A debugger traces the thread, as pydevd does where `sys.monitoring` is not used.
PROGRAM = """\
import contextlib
import runpy
import sys
import threading

Returns = runpy.run_path(sys.argv[1])["Returns"]
sys.settrace(lambda frame, event, value: lambda *_: None)
told = []
returns = Returns()


def note(frame, value):
    told.append((frame.f_code.co_name, frame.f_locals["n"], value))


def inner(n, wanted):
    if n in wanted:
        returns.wait_for(sys._getframe(), note)
    if n == 0:
        return "end"
    return inner(n - 1, wanted), n


def raises(n):
    returns.wait_for(sys._getframe(), note)
    raise KeyError(n)


def around(n):
    returns.wait_for(sys._getframe(), note)
    try:
        raises(n)
    except KeyError:
        pass
    return "caught"


def again(n):
    try:
        raise ValueError
    except ValueError:
        # As torch does with what a forward raises: the frame ends by an exception from a handler.
        returns.wait_for(sys._getframe(), note)
        raise


# Only the frame that was asked for, of several of one function; each once.
inner(3, {1})
assert told == [("inner", 1, ("end", 1))], told
told.clear()
inner(2, {0, 2})
assert told == [("inner", 0, "end"), ("inner", 2, (("end", 1), 2))], told
told.clear()
inner(1, set())
assert told == [] and not returns.is_waiting

# An exception is no return; the frame that catches it does return.
around(7)
assert told == [("around", 7, "caught")], told
told.clear()
try:
    again(8)
except ValueError:
    pass
assert told == [], told
returns.clear()


# The same from a `with` that ends by what was raised in it.
def after_with(n):
    returns.wait_for(sys._getframe(), note)
    with contextlib.suppress(KeyError):
        raise KeyError(n)
    return "on"


after_with(9)
assert told == [("after_with", 9, "on")], told
told.clear()


# Two threads in the same function.
def work(n):
    inner(n, {n})


threads = [threading.Thread(target=work, args=(n,)) for n in (4, 5)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(n for _, n, _ in told) == ([4, 5] if HEARS_THREADS else []), told
told.clear()

# One that is forgotten, and all that are: nothing of ours is left in the interpreter.
def forgotten(n):
    returns.wait_for(sys._getframe(), note)
    returns.forget(sys._getframe())


def cleared(n):
    returns.wait_for(sys._getframe(), note)
    returns.clear()


forgotten(1)
cleared(2)
assert told == [] and not returns.is_waiting
if sys.version_info >= (3, 12):
    assert all(sys.monitoring.get_tool(number) is None for number in range(6))
inner(1, {1})  # and it begins anew
assert told == [("inner", 1, ("end", 1))], told
"""


@pytest.mark.parametrize("python", PYTHONS.values(), ids=PYTHONS)
def test_the_return_of_a_running_frame_is_heard_of(python: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    # A trace function is per thread; threads of this program have none.
    monitored = "HEARS_THREADS = sys.version_info >= (3, 12)\n"
    program.write_text(PROGRAM.replace("told = []\n", f"told = []\n{monitored}", 1))
    command = [python, str(program), returns.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

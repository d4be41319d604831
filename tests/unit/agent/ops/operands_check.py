"""What `operands` finds in a program of its own; run by every Python there is, so without torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# The folder as a package of its own: what is above it needs more than the standard library.
sys.path.append(str(Path(__file__).parents[4] / "server" / "tensorpoint" / "agent"))
operands = importlib.import_module("ops.operands")


class Wrong(Exception):
    pass


class Thing:
    """Fails at whatever is done with it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _fail(self, *_: object, **__: object) -> Any:
        raise Wrong

    __add__ = __radd__ = __truediv__ = __rtruediv__ = __matmul__ = __iadd__ = __neg__ = _fail
    __getitem__ = __setitem__ = __lt__ = __iter__ = __bool__ = __len__ = _fail

    @property
    def touchy(self) -> object:
        ran.append("property")
        return "never"

    def __getattr__(self, name: str) -> object:
        ran.append("__getattr__")
        raise AttributeError(name)


def fail(*_: object, **__: object) -> Any:
    raise Wrong


def fine(*_: object) -> object:
    return "computed"


ran: list[str] = []
x, y, z = Thing("x"), Thing("y"), Thing("z")
holder = SimpleNamespace(inner=SimpleNamespace(a=x), items=[y, z], table={"k": z}, fail=fail)
n = 3
xs = [x, y]
kw = {"weight": z}


def cases() -> Any:
    yield lambda: x / y, "/", ["x", "y"], [x, y]
    yield lambda: 3 + x, "+", ["x"], [x]
    yield lambda: fine(x) + y, "+", ["fine(x)", "y"], [operands.UNKNOWN, y]
    yield lambda: holder.inner.a @ holder.items[-1], "@", None, [x, z]
    yield lambda: fail(holder.table["k"], n), "fail", ['holder.table["k"]', "n"], [z, 3]
    yield lambda: fine(1) and fail(x), "fail", ["x"], [x]
    yield lambda: (fine(x), fine(y), fail(z), fine(x)), "fail", ["z"], [z]
    yield lambda: holder.fail(x, 2, dim=n, keep=True), "holder.fail", ["x", "n"], [x, 3]
    yield lambda: fail([x, y], dim=-1), "fail", ["x", "y"], [x, y]
    yield lambda: fail(*xs, **kw), "fail", ["xs[0]", "xs[1]", "kw['weight']"], [x, y, z]
    yield lambda: fail(x.touchy, n), "fail", ["x.touchy", "n"], [operands.UNKNOWN, 3]
    yield lambda: -x, "-", ["x"], [x]
    yield lambda: x[0, n:], "[]", ["x", "n"], [x, 3]
    yield lambda: x < y, "<", ["x", "y"], [x, y]
    yield lambda: fail(fail(z), x), "fail", ["z"], [z]


def in_place() -> None:
    k = x
    k += y


def store() -> None:
    x[n] = y


# fmt: off
def chain() -> None:
    (holder
        .fail(
            y,
            z,
        ))
# fmt: on


def truth() -> None:
    if x:
        pass


def iteration() -> None:
    for _ in x:
        pass


def nested() -> None:
    w = y

    def inner() -> None:
        fail(w)

    inner()


def umlauts() -> None:
    größe = x
    _ = fine("äöü", größe), fail("äöü", größe)


def found(function: Any) -> Any:
    try:
        function()
    except Wrong as error:
        trace: Any = error.__traceback__
        while trace.tb_next is not None and trace.tb_next.tb_frame.f_code not in OURS:
            trace = trace.tb_next
        frame = trace.tb_frame
        where = frame.f_code, trace.tb_lasti, trace.tb_lineno, frame.f_locals, frame.f_globals
        return operands.site(*where), operands.operands(*where)
    raise AssertionError("did not fail")


OURS = {Thing._fail.__code__, fail.__code__}


def check(function: Any, name: str, expressions: list[str] | None, values: list[Any]) -> str:
    site, pairs = found(function)
    if site is None:
        return "nothing found"
    if site.name != name:
        return f"{site.name}, not {name}"
    if [value for _, value in pairs] != values:
        return f"{pairs}, not {values}"
    if expressions is not None and [text for text, _ in pairs] != expressions:
        return f"{pairs}, not {expressions}"
    return ""


def main() -> None:
    modern = sys.version_info >= (3, 11)
    wrong = []
    functions: list[Any] = [
        (in_place, "+=", ["k", "y"], [x, y]),
        (store, "[]=", ["x", "n", "y"], [x, 3, y]),
        (chain, "holder .fail", ["y", "z"], [y, z]),
        (nested, "fail", ["w"], [y]),
        (umlauts, "fail", ["größe"], [x]),
    ]
    if modern:
        functions += [(truth, "bool", ["x"], [x]), (iteration, "iter", ["x"], [x])]
        functions += cases()
    for function, name, expressions, values in functions:
        said = check(function, name, expressions, values)
        if said:
            wrong.append(f"line {function.__code__.co_firstlineno}: {said}")
    if ran != ["property"] * modern:  # as often as the program itself
        wrong.append(f"ran {ran}")
    print("\n".join(wrong) or "ok")


main()

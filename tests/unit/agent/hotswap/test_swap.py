"""Swapping edited functions: what gets new code, what is refused, and that each is said."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from tensorpoint.agent.hotswap.swap import HotSwap, Report

Edit = Callable[[str, str], tuple[ModuleType, Callable[[], Report]]]
_numbers = itertools.count()


@pytest.fixture(scope="module")
def hot_swap() -> HotSwap:
    """One for all: it reads each module that pytest has loaded, once, which takes seconds."""
    return HotSwap()


@pytest.fixture
def edit(tmp_path: Path, hot_swap: HotSwap) -> Iterator[Edit]:
    """Load the first text as a module, put the second into its file, and swap when asked to."""
    made: list[str] = []

    def make(before: str, after: str) -> tuple[ModuleType, Callable[[], Report]]:
        name = f"swapped_{next(_numbers)}"
        path = tmp_path / f"{name}.py"
        path.write_text(dedent(before), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        made.append(name)
        spec.loader.exec_module(module)
        assert str(path) in hot_swap.files()
        path.write_text(dedent(after), encoding="utf-8")
        return module, lambda: hot_swap.swap(str(path))

    yield make
    for name in made:
        del sys.modules[name]


NET = """\
class Net:
    def __init__(self):
        self.scale = 2

    def forward(self, x):
        return x * self.scale

    def other(self):
        return 1
"""


def test_instances_that_live_have_the_new_code_and_only_what_changed_is_said(edit: Edit) -> None:
    module, swap = edit(
        NET, NET.replace("x * self.scale", "x + self.scale\n").replace("Net:", "Net:\n")
    )
    net = module.Net()
    held, line = net.forward, module.Net.other.__code__.co_firstlineno
    report = swap()
    assert (net.forward(3), held(3)) == (5, 5)
    assert report.swapped == ["Net.forward"] and report.notes == []
    assert module.Net.other.__code__.co_firstlineno == line + 2  # moved: breakpoints are by line


def test_a_blank_line_inside_a_function_moves_its_lines(edit: Edit) -> None:
    module, swap = edit("def f():\n    return 1\n", "def f():\n\n    return 1\n")
    report = swap()
    assert report.swapped == [] and report.notes == []
    assert [line for _, _, line in module.f.__code__.co_lines()][-1] == 3


def test_functions_behind_decorators_properties_and_registries(edit: Edit) -> None:
    before = """\
    import functools
    def logged(f):
        @functools.wraps(f)
        def wrapper(*a):
            return ("logged", f(*a))
        return wrapper
    class A:
        @property
        def p(self): return 1
        @p.setter
        def p(self, value): self.set = value
        @staticmethod
        def s(): return 1
        @classmethod
        def c(cls): return 1
        @logged
        def d(self): return 1
    hooks = [lambda: 1]
    async def coroutine(): return 1
    """
    module, swap = edit(
        before,
        before.replace("return 1", "return 2")
        .replace("lambda: 1", "lambda: 2")
        .replace("= value", "= -value"),
    )
    a = module.A()
    report = swap()
    a.p = 5
    assert (a.p, a.set, a.s(), a.c(), a.d(), module.hooks[0]()) == (2, -5, 2, 2, ("logged", 2), 2)
    assert {"A.p", "A.s", "A.c", "A.d", "<lambda>", "coroutine"} == {*report.swapped}
    # The line `hooks = [...]` has run; what it made was swapped all the same.
    assert [note for note in report.notes if "hooks" not in note] == []


def test_closures_that_live_and_those_to_come(edit: Edit) -> None:
    before = """\
    def make(n):
        def add(x):
            return x + n
        return add
    """
    module, swap = edit(before, before.replace("x + n", "x * n"))
    add = module.make(3)
    report = swap()
    assert (add(2), module.make(5)(2)) == (6, 10)
    assert {*report.swapped} == {"make", "make.<locals>.add"}


def test_a_closure_over_other_variables_is_refused_but_its_maker_is_swapped(edit: Edit) -> None:
    before = """\
    def make(n, m):
        def add(x):
            return x + n
        return add
    """
    module, swap = edit(before, before.replace("x + n", "x + n + m"))
    add = module.make(3, 10)
    report = swap()
    assert (add(2), module.make(3, 10)(2)) == (5, 15)
    assert report.swapped == ["make"]
    assert report.notes == [
        "make.<locals>.add: it uses other variables of the function around it (m): right from "
        "the next time that one runs"
    ]


def test_super_needs_a_new_class(edit: Edit) -> None:
    before = "class A(dict):\n    def get(self, k):\n        return 1\n"
    module, swap = edit(before, before.replace("return 1", "return super().get(k)"))
    report = swap()
    assert module.A().get(0) == 1 and report.swapped == []
    assert "A.get: it uses super() or __class__ now" in report.notes[0]


def test_defaults_are_those_of_the_new_signature(edit: Edit) -> None:
    module, swap = edit(
        "def f(x, y=1):\n    return x, y\ndef g(*, k=1):\n    return k\n",
        "def f(x, y=5, z=[7]):\n    return x, y, z\ndef g(*, k=2, j=3):\n    return k, j\n",
    )
    report = swap()
    assert module.f(0) == (0, 5, [7]) and module.g() == (2, 3)
    assert {*report.swapped} == {"f", "g"}


def test_a_parameter_that_becomes_one_by_name_takes_its_default_along(edit: Edit) -> None:
    module, swap = edit("def f(x, y=1):\n    return x, y\n", "def f(x, *, y=1):\n    return y, x\n")
    swap()
    assert module.f(0) == (1, 0) and module.f.__defaults__ is None


def test_what_was_refused_is_compared_with_what_still_runs(edit: Edit) -> None:
    before = "def f(x, y=1):\n    return x\n"
    module, swap = edit(before, "N = 2\ndef f(x, y=1, z=N):\n    return x\n")
    file = Path(module.__file__ or "")
    refusal = "f: its defaults are made where it is defined, which has run"
    assert refusal in swap().notes
    file.write_text("N = 2\ndef f(x, y=1, z=N):\n    return z\n", encoding="utf-8")
    assert swap().notes == [refusal] and module.f(5) == 5
    file.write_text(before.replace("return x", "return -x"), encoding="utf-8")
    assert swap().swapped == ["f"] and module.f(5) == -5


def test_defaults_that_have_to_be_made_are_refused(edit: Edit) -> None:
    module, swap = edit("def f(x=1):\n    return x\n", "def f(x=len('ab')):\n    return x * 10\n")
    report = swap()
    assert module.f() == 1 and report.swapped == []
    assert report.notes == ["f: its defaults are made where it is defined, which has run"]


def test_defaults_that_stay_need_not_be_literals(edit: Edit) -> None:
    module, swap = edit(
        "def f(x=len('ab')):\n    return x\n", "def f(x=len('ab')):\n    return -x\n"
    )
    assert (swap().swapped, module.f()) == (["f"], -2)


def test_new_functions_and_methods_are_there(edit: Edit) -> None:
    after = NET.replace("x * self.scale", "double(self.twice(x))") + (
        "\n    def twice(self, x, by=2):\n        return x * by\n"
        "\n\ndef double(x):\n    return 2 * x\n"
    )
    module, swap = edit(NET, after)
    net = module.Net()
    report = swap()
    assert net.forward(3) == 12 and report.notes == []
    assert {*report.swapped} == {"Net.forward", "Net.twice", "double"}
    assert module.double.__module__ == module.__name__


def test_what_has_run_is_said(edit: Edit) -> None:
    before = "import os\nSIZE = 1\n" + NET
    after = (
        before.replace("SIZE = 1", "SIZE = 2")
        .replace("self.scale = 2", "self.scale = 2\n        self.bias = 1")
        .replace("class Net:", "class Net:\n    limit = 3")
    )
    module, swap = edit(before, after)
    report = swap()
    assert module.SIZE == 1 and not hasattr(module.Net, "limit")
    assert report.swapped == ["Net.__init__"] and len(report.notes) == 3
    assert "the module's own lines (SIZE = 2): they have run" in report.notes[0]
    assert "the body of class Net (limit = 3): they have run" in report.notes[1]
    assert "Net.__init__ sets self.bias: objects that exist don't have that" in report.notes[2]


def test_a_function_that_is_gone_stays_for_who_holds_it(edit: Edit) -> None:
    module, swap = edit(
        "def f():\n    return 1\ndef g():\n    return 2\n", "def g():\n    return 3\n"
    )
    report = swap()
    assert (module.f(), module.g()) == (1, 3)
    assert report.notes == ["f: it is gone from the file; who holds it still calls it"]
    Path(report.file).write_text("def g():\n    return 4\n", encoding="utf-8")
    assert swap().notes == []  # it was said
    # As after a comment, or a save that was caught half-way.
    Path(report.file).write_text("def f():\n    return 5\ndef g():\n    return 4\n", "utf-8")
    assert swap().swapped == ["f"] and module.f() == 5


def test_a_running_call_goes_on_as_it_was(edit: Edit) -> None:
    before = "def f(entered, go):\n    entered.set()\n    go.wait()\n    return 1\n"
    module, swap = edit(before, before.replace("return 1", "return 2"))
    entered, go, results = threading.Event(), threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: results.append(module.f(entered, go)))
    thread.start()
    entered.wait()
    report = swap()
    go.set()
    thread.join()
    assert results == [1] and module.f(entered, go) == 2
    assert report.notes == ["f is running: that call goes on with the old code"]


@pytest.mark.parametrize("text", ["def f(:\n", "\0", "x = '\n"])
def test_a_file_that_can_not_be_compiled_changes_nothing(edit: Edit, text: str) -> None:
    module, swap = edit("def f():\n    return 1\n", text)
    report = swap()
    assert module.f() == 1 and report.swapped == []
    assert len(report.notes) == 1 and "all stays as it was" in report.notes[0]


def test_saved_again_and_again(edit: Edit) -> None:
    module, swap = edit("def f():\n    return 0\n", "def f():\n    return 1\n")
    file = Path(module.__file__ or "")
    assert swap().swapped == ["f"] and swap().swapped == []
    for number in range(2, 5):
        file.write_text("\n" * number + f"def f():\n    return {number}\n", encoding="utf-8")
        assert (swap().swapped, module.f()) == (["f"], number)


def test_a_file_that_was_edited_before_it_was_read(edit: Edit) -> None:
    before = "def f(x, y=1):\n    return x\n\n\ndef g(x, y=1):\n    return x\n"
    module, _ = edit(before, "\n\n" + before.replace("return x", "return x + y"))
    late = HotSwap()
    assert module.__file__ in late.files()
    report = late.swap(module.__file__)
    assert ({*report.swapped}, report.notes) == ({"f", "g"}, [])
    assert (module.f(1), module.g(1)) == (2, 2)


def test_a_generator_that_waits_and_a_body_that_runs(edit: Edit) -> None:
    before = """\
    def endless():
        while True:
            yield 1
    def each(act):
        return [act() for _ in range(1)]
    """
    module, swap = edit(before, before.replace("yield 1", "yield 2\n"))
    items = module.endless()
    assert next(items) == 1
    (report,) = module.each(swap)
    assert (next(items), next(module.endless())) == (1, 2)
    assert report.notes == [
        "endless is running: that call goes on with the old code",
        "each is running: breakpoints stop that call at the lines that it had",
    ]

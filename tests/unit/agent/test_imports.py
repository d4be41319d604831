"""The agent waits for torch without importing it, however the program imports it."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tensorpoint.agent.imports import load_untraced, when_imported

NAME = "a_module_to_wait_for"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on sys.path; the finders of this process are put back afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    finders = list(sys.meta_path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.meta_path[:] = finders
    sys.modules.pop(NAME, None)


class Acts:
    def __init__(self) -> None:
        self.modules: list[ModuleType | None] = []
        self.threads: list[threading.Thread] = []
        self.acted = threading.Event()

    def __call__(self) -> None:
        self.modules.append(sys.modules.get(NAME))
        self.threads.append(threading.current_thread())
        self.acted.set()


def write(folder: Path, text: str = "x = 1") -> None:
    (folder / f"{NAME}.py").write_text(text + "\n")
    importlib.invalidate_caches()


def test_it_acts_at_once_if_the_module_is_there(folder: Path) -> None:
    write(folder)
    module = importlib.import_module(NAME)
    finders = list(sys.meta_path)
    when_imported(NAME, act := Acts())
    assert act.modules == [module] and sys.meta_path == finders


def test_it_acts_once_after_the_import(folder: Path) -> None:
    write(folder)
    finders = list(sys.meta_path)
    when_imported(NAME, act := Acts())
    assert act.modules == []
    module = importlib.import_module(NAME)
    assert act.modules == [module] and module.x == 1
    assert sys.meta_path == finders
    importlib.reload(module)
    assert len(act.modules) == 1


def test_other_imports_are_left_alone(folder: Path) -> None:
    (folder / "another_module.py").write_text("")
    when_imported(NAME, act := Acts())
    try:
        importlib.import_module("another_module")
    finally:
        sys.modules.pop("another_module", None)
    assert act.modules == []


def test_the_program_may_first_ask_whether_the_module_is_installed(folder: Path) -> None:
    write(folder)
    when_imported(NAME, act := Acts())
    assert importlib.util.find_spec(NAME) is not None
    assert act.modules == []
    importlib.import_module(NAME)
    assert len(act.modules) == 1


def test_it_waits_for_a_module_that_is_installed_later(folder: Path) -> None:
    when_imported(NAME, act := Acts())
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(NAME)
    assert importlib.util.find_spec(NAME) is None
    write(folder)
    importlib.import_module(NAME)
    assert len(act.modules) == 1


def test_a_failing_import_fails_as_without_us_and_the_next_one_counts(folder: Path) -> None:
    write(folder, "raise RuntimeError('mine')")
    when_imported(NAME, act := Acts())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mine"):
            importlib.import_module(NAME)
    assert act.modules == [] and NAME not in sys.modules
    write(folder, "x = 12345")
    assert importlib.import_module(NAME).x == 12345
    assert len(act.modules) == 1


def test_the_module_keeps_its_loader_and_spec(folder: Path) -> None:
    write(folder)
    when_imported(NAME, Acts())
    module = importlib.import_module(NAME)
    assert module.__spec__ is not None and module.__spec__.origin == str(folder / f"{NAME}.py")
    assert type(module.__loader__).__name__ == "SourceFileLoader"


def importing(folder: Path, ending: str) -> tuple[threading.Thread, ModuleType]:
    """A thread in the middle of importing the module; `go` lets it end."""
    write(folder, f"import threading\nbegun.set()\ngo.wait(20)\n{ending}".replace(
        "begun", f"threading.{NAME}[0]").replace("go.", f"threading.{NAME}[1]."))  # fmt: skip
    events = (threading.Event(), threading.Event())
    setattr(threading, NAME, events)

    def load() -> None:
        try:
            importlib.import_module(NAME)
        except RuntimeError:
            pass

    thread = threading.Thread(target=load)
    thread.start()
    assert events[0].wait(20)
    module = ModuleType("events")
    module.go = events[1]  # type: ignore[attr-defined]
    return thread, module


def test_it_waits_for_an_import_on_another_thread(folder: Path) -> None:
    thread, events = importing(folder, "x = 1")
    when_imported(NAME, act := Acts())
    assert not act.acted.wait(0.1)
    events.go.set()
    thread.join(20)
    assert act.acted.wait(20)
    assert act.modules == [sys.modules[NAME]]
    assert act.threads[0].daemon


def test_if_the_import_on_another_thread_fails_the_next_one_counts(folder: Path) -> None:
    thread, events = importing(folder, "raise RuntimeError('mine')")
    finders = list(sys.meta_path)
    when_imported(NAME, act := Acts())
    events.go.set()
    thread.join(20)
    waited = threading.Event()
    for _ in range(1000):
        if sys.meta_path != finders:
            break
        waited.wait(0.01)
    assert act.modules == []
    write(folder, "x = 123456")
    importlib.import_module(NAME)
    assert act.acted.wait(20) and len(act.modules) == 1


class Holding:
    """A finder that lets no import of the module go on until we wait for that."""

    def __init__(self) -> None:
        sys.meta_path.insert(0, self)  # type: ignore[arg-type]
        self._finders = list(sys.meta_path)

    def find_spec(self, name: str, *_: object) -> None:
        for _try in range(2000 if name == NAME else 0):
            if sys.meta_path != self._finders:
                break
            threading.Event().wait(0.01)


def test_the_next_one_may_have_begun_before_it_is_waited_for(folder: Path) -> None:
    once = f"if not hasattr(begun, '{NAME}'):\n    begun.{NAME} = 1\n    raise RuntimeError('mine')"
    thread, events = importing(folder, once.replace("begun", f"threading.{NAME}[0]"))
    finders = list(sys.meta_path)
    holding = Holding()
    when_imported(NAME, act := Acts())
    again = threading.Thread(target=importlib.import_module, args=(NAME,))
    again.start()  # waits for the first, as for a lock
    events.go.set()
    thread.join(20)
    again.join(20)
    assert act.acted.wait(20)
    assert act.modules == [sys.modules[NAME]]
    sys.meta_path.remove(holding)  # type: ignore[arg-type]
    assert sys.meta_path == finders


def test_imported_on_two_threads_at_once_it_acts_once(folder: Path) -> None:
    write(folder, "import time\ntime.sleep(0.05)")
    when_imported(NAME, act := Acts())
    threads = [threading.Thread(target=importlib.import_module, args=(NAME,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(act.modules) == 1


# Without the trace function -----------------------------------------------------------------------


@pytest.fixture
def modules(folder: Path) -> Iterator[dict[str, list[str]]]:
    """A library that imports another and a module of the project; how each was loaded."""
    (folder / "a_library.py").write_text("import another_library, the_project\n")
    (folder / "another_library.py").write_text("")
    (folder / "the_project.py").write_text("import a_third_library\n")
    (folder / "a_third_library.py").write_text("")
    importlib.invalidate_caches()
    switches: dict[str, list[str]] = {"made": []}

    def switching(name: str) -> Any:
        @contextmanager
        def switched() -> Iterator[None]:
            switches["made"].append(name)
            yield
            switches["made"].append(f"end of {name}")

        return switched

    load_untraced(
        lambda file: Path(file).name.startswith("the_project"),
        switching("untraced"),
        switching("traced"),
    )
    yield switches
    for name in ("a_library", "another_library", "the_project", "a_third_library"):
        sys.modules.pop(name, None)


def test_libraries_are_loaded_untraced_and_what_is_stepped_into_traced(
    modules: dict[str, list[str]],
) -> None:
    library: Any = importlib.import_module("a_library")
    assert library.the_project.a_third_library
    assert modules["made"] == [
        *("untraced", "traced", "untraced"),
        *("end of untraced", "end of traced", "end of untraced"),
    ]
    importlib.reload(library)
    assert modules["made"][6:] == ["untraced", "end of untraced"]


def test_the_projects_own_imports_are_left_alone(modules: dict[str, list[str]]) -> None:
    own: Any = importlib.import_module("the_project")
    assert own.a_third_library and modules["made"] == ["untraced", "end of untraced"]


def test_a_module_that_is_not_there_and_one_that_fails(
    folder: Path, modules: dict[str, list[str]]
) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        importlib.import_module("no_such_library")
    (folder / "a_library.py").write_text("raise RuntimeError('broken')\n")
    importlib.invalidate_caches()
    with pytest.raises(RuntimeError, match="broken"):
        importlib.import_module("a_library")
    (folder / "a_library.py").write_text("import another_library\n")
    importlib.invalidate_caches()
    importlib.import_module("a_library")
    assert modules["made"].count("untraced") == 2

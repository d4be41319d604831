"""Puts the difference between two states of a file into the program that runs.

A function keeps its identity and gets another `__code__`, so that instances, decorators, hooks and
registries that hold it have the new one. Found are all functions that live and whose code is of the
file, by their place in the source as it was: closures, too, and those that no name leads to.

A call that runs goes on with the code it began with.
"""

from __future__ import annotations

import ast
import gc
import os
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from types import (
    AsyncGeneratorType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    ModuleType,
)
from typing import Any

from .source import Definition, Name, Source, read

_LONGEST = 60
#: The name of a module's own code.
_BODY = "<module>"


@dataclass
class Report:
    """What became of one file."""

    file: str
    #: The functions that have new code, and those that are new.
    swapped: list[str] = field(default_factory=list[str])
    #: What could not be, and why; in the user's words.
    notes: list[str] = field(default_factory=list[str])

    def as_message(self) -> dict[str, Any]:
        return asdict(self)


class HotSwap:
    """The program's own files, as they are in it."""

    def __init__(self) -> None:
        self._sources: dict[str, Source] = {}
        #: By file: what was said to run on at the lines that it had.
        self._moved: dict[str, set[str]] = {}

    def files(self) -> list[str]:
        """The files of the program's own modules; new ones are read, to know them later."""
        for file in _own_files():
            if file not in self._sources:
                try:
                    self._sources[file] = read(_text(file), file)
                except (OSError, SyntaxError, ValueError):
                    continue  # gone, or edited since: with nothing to compare to
        return [*self._sources]

    def swap(self, file: str) -> Report:
        """Give the functions of `file` the code that is in it now."""
        report = Report(file)
        old = self._sources.get(file)
        if old is None:
            return report
        try:
            new = read(_text(file), file)
        except SyntaxError as error:
            where = "" if error.lineno is None else f"line {error.lineno}: "
            report.notes.append(f"{where}{error.msg}; all stays as it was")
            return report
        except (OSError, ValueError) as error:
            report.notes.append(f"it can't be read: {error}; all stays as it was")
            return report
        self._sources[file] = new
        found, running = _living(file)
        refused: dict[str, str] = {}
        swapped: dict[str, bool] = {}
        kept: dict[Name, Definition] = {}
        moved = [_BODY] if _BODY in running and old.length != new.length else []
        for function in found:
            place = function.__code__.co_name, function.__code__.co_firstlineno
            name = old.places.get(place) or (_qualified_name(function.__code__), 0)
            definition = new.functions.get(name)
            if definition is None:
                if name not in old.gone:
                    refused[name[0]] = "it is gone from the file; who holds it still calls it"
                new.gone.add(name)
                if name in old.functions:  # it may come back
                    kept[name] = old.functions[name]
                continue
            before = function.__code__
            why_not = _swap(function, old.functions.get(name), definition)
            if why_not:
                refused[name[0]] = why_not
                if name in old.functions:  # what it still is, for the next edit
                    kept[name] = old.functions[name]
            elif not _does_the_same(before, function.__code__):
                is_running = _qualified_name(before) in running
                swapped[name[0]] = swapped.get(name[0], False) or is_running
            elif before is not function.__code__ and _qualified_name(before) in running:
                moved.append(name[0])
        report.swapped += _add(file, old, new, refused)
        report.swapped += swapped
        for name, definition in _outermost(new).items():
            known = old.functions.get(name)
            is_met = name[0] in swapped or name[0] in refused
            if known is not None and known.text != definition.text and not is_met:
                refused[name[0]] = "it isn't to be found in the program"
        report.notes += [f"{name}: {why}" for name, why in refused.items()]
        report.notes += [
            f"{name} is running: that call goes on with the old code"
            for name, is_running in swapped.items()
            if is_running
        ]
        report.notes += [
            f"{name} is running: breakpoints stop that call at the lines that it had"
            for name in self._moved_first(file, moved)
        ]
        report.notes += _around(old, new)
        new.functions.update(kept)
        return report

    def _moved_first(self, file: str, names: list[str]) -> list[str]:
        """Those for which it was not said yet."""
        told = self._moved.setdefault(file, set())
        fresh = [name for name in dict.fromkeys(names) if name not in told]
        told.update(fresh)
        return ["the module" if name == _BODY else name for name in fresh]


# -- one function


def _qualified_name(code: CodeType) -> str:
    """The name in its source, where the file was edited before we have read it.

    Not that of the function: a decorator's wrapper has the name of what it wraps. Before Python
    3.11 the code has the last part only.
    """
    return getattr(code, "co_qualname", code.co_name)


def _swap(function: FunctionType, old: Definition | None, new: Definition) -> str:
    """Give a function its new code; "" or why not. `old` is None if it was not read in time."""
    if new.code is None or (old is not None and old.code is None):
        same = old is not None and old.text == new.text
        return "" if same else "there are several on its line"
    before, code = function.__code__, new.code
    if code.co_freevars != before.co_freevars:
        return _of_other_variables(before, code)
    defaults = None
    if _parameters(before) != _parameters(code) if old is None else _dump(old) != _dump(new):
        try:
            defaults = _defaults(new)
        except ValueError:
            return "its defaults are made where it is defined, which has run"
    if old is not None and old.decorators != new.decorators:
        return "its decorators have run"
    if defaults is not None:
        function.__defaults__, function.__kwdefaults__ = defaults
    if not _alike(before, code):
        function.__code__ = code
    return ""


def _of_other_variables(before: CodeType, code: CodeType) -> str:
    differ = sorted({*before.co_freevars} ^ {*code.co_freevars})
    if differ == ["__class__"]:
        return "it uses super() or __class__ now, or no longer: only a new class can have that"
    return (
        f"it uses other variables of the function around it ({', '.join(differ)}): "
        "right from the next time that one runs"
    )


def _alike(one: CodeType, other: CodeType) -> bool:
    """Whether both do the same on the same lines, which `==` doesn't look at."""
    if one != other or one.co_linetable != other.co_linetable:
        return False
    pairs = zip(one.co_consts, other.co_consts)
    return all(_alike(*pair) for pair in pairs if isinstance(pair[0], CodeType))


def _does_the_same(one: CodeType, other: CodeType) -> bool:
    """Whether both do the same, on whatever lines."""
    if (one.co_code, one.co_names, one.co_varnames, one.co_flags) != (
        *(other.co_code, other.co_names, other.co_varnames, other.co_flags),
    ) or len(one.co_consts) != len(other.co_consts):
        return False
    return all(
        _does_the_same(mine, theirs)
        if isinstance(mine, CodeType) and isinstance(theirs, CodeType)
        else type(mine) is type(theirs) and repr(mine) == repr(theirs)
        for mine, theirs in zip(one.co_consts, other.co_consts)
    )


def _parameters(code: CodeType) -> tuple[int, tuple[str, ...]]:
    count = code.co_argcount + code.co_kwonlyargcount
    return code.co_kwonlyargcount, code.co_varnames[:count]


def _dump(definition: Definition) -> tuple[int, list[str], list[str]]:
    names, defaults = definition.parameters
    by_name = len(definition.node.args.kwonlyargs)
    return by_name, names, ["" if item is None else ast.dump(item) for item in defaults]


def _defaults(definition: Definition) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """The defaults, as values. Raises ValueError where one isn't a literal."""
    given = definition.node.args
    by_place = tuple(ast.literal_eval(item) for item in given.defaults)
    by_name = {
        argument.arg: ast.literal_eval(item)
        for argument, item in zip(given.kwonlyargs, given.kw_defaults)
        if item is not None
    }
    return by_place or None, by_name or None


# -- new functions, and what is around them


def _add(file: str, old: Source, new: Source, refused: dict[str, str]) -> list[str]:
    """Make the functions that are new, where nothing has to run for that."""
    added: list[str] = []
    for name in _outermost(new).keys() - _outermost(old).keys():
        definition = new.functions[name]
        code = definition.code
        if code is None or "<lambda>" in definition.name:
            continue
        scope: Any = _module_of(file)
        for part in definition.owner.split(".") if definition.owner else ():
            scope = getattr(scope, part, None)
        if scope is None:
            continue  # its class is new, which is said below
        try:
            by_place, by_name = _defaults(definition)
        except ValueError:
            refused[definition.name] = "its defaults would have to be made: restart"
            continue
        if code.co_freevars or definition.decorators:
            what = "decorators" if definition.decorators else "class variable"
            refused[definition.name] = f"it is new, and its {what} would have to be made: restart"
            continue
        module = _module_of(file)
        assert module is not None
        function = FunctionType(code, module.__dict__, code.co_name, by_place)
        function.__kwdefaults__ = by_name
        function.__qualname__, function.__module__ = definition.name, module.__name__
        setattr(scope, code.co_name, function)
        added.append(definition.name)
    return added


def _outermost(source: Source) -> dict[Name, Definition]:
    return {name: item for name, item in source.functions.items() if item.is_outermost}


def _around(old: Source, new: Source) -> list[str]:
    """What has changed outside of functions, and has run already."""
    notes: list[str] = []
    for name in {**old.statements, **new.statements}:
        before, after = old.statements.get(name), new.statements.get(name)
        if before is None or after is None:
            continue  # a class that is new or gone: a line of what is around it says so
        differ = [line for line in after if line not in before]
        differ += [line for line in before if line not in after]
        if differ:
            where = f"the body of class {name}" if name else "the module's own lines"
            notes.append(f"{where} ({_short(differ[0])}): they have run; restart to run them anew")
    for name, definition in new.functions.items():
        known = old.functions.get(name)
        if known is not None and definition.owner and definition.name.endswith(".__init__"):
            fresh = sorted(_attributes(definition) - _attributes(known))
            if fresh:
                notes.append(
                    f"{definition.name} sets {', '.join(fresh)}: objects that exist don't have that"
                )
    return notes


def _attributes(definition: Definition) -> set[str]:
    """What an `__init__` sets on its first argument."""
    names, _ = definition.parameters
    return {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(definition.node)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id in names[:1]
    }


def _short(line: str) -> str:
    line = line.partition("\n")[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


# -- the program


def _own_files() -> Iterator[str]:
    """The source files of modules that aren't installed packages."""
    library = os.path.dirname(os.__file__)
    for module in list(sys.modules.values()):
        file = getattr(module, "__dict__", {}).get("__file__")
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        file = os.path.abspath(file)
        is_installed = file.startswith(library) or "-packages" in file
        if not is_installed and not getattr(module, "__name__", "").startswith("_tensorpoint"):
            yield file


def _module_of(file: str) -> ModuleType | None:
    for module in list(sys.modules.values()):
        own = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(own, str) and os.path.abspath(own) == file:
            return module
    return None


def _living(file: str) -> tuple[list[FunctionType], set[str]]:
    """The functions of a file that exist, and the qualified names of those of which a call runs.

    0.1 s for a million objects.
    """
    names: dict[str, bool] = {}

    def is_of_file(code: CodeType) -> bool:
        name = code.co_filename
        if name not in names:
            names[name] = os.path.abspath(name) == file
        return names[name]

    functions: list[FunctionType] = []
    running = [frame.f_code for frame in _frames()]
    for item in gc.get_objects():
        kind = type(item)
        if kind is FunctionType:
            if is_of_file(item.__code__) and not _is_body(item.__code__):
                functions.append(item)
        elif kind in _SUSPENDED:
            running.append(getattr(item, _SUSPENDED[kind]))
    return functions, {_qualified_name(code) for code in running if is_of_file(code)}


#: What a function may leave that goes on later, and where its code is.
_SUSPENDED: dict[type, str] = {
    GeneratorType: "gi_code",
    CoroutineType: "cr_code",
    AsyncGeneratorType: "ag_code",
}


def _is_body(code: CodeType) -> bool:
    """Whether it is that of a module or a comprehension, while that runs, and no function."""
    return code.co_name.startswith("<") and code.co_name != "<lambda>"


def _frames() -> Iterator[FrameType]:
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            yield frame
            frame = frame.f_back


def _text(file: str) -> str:
    with tokenize.open(file) as stream:
        return stream.read()

"""A file as a module of which only what is needed runs: definitions at once, the rest on demand.

A training script has to be importable without training. Imports, classes and functions run at the
start; any other top-level statement runs when a name that it binds is looked up, which Python lets
us see: where a module's builtins aren't a plain dict, a name that isn't found goes through
`__missing__`. So `device`, `config` and `vocab_size = len(chars)` are there when asked for, and a
loop that trains never is. A statement that fails is remembered as the reason why its name is
missing.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import importlib.abc
import importlib.machinery
import inspect
import linecache
import os
import sys
import sysconfig
import types
from collections.abc import Sequence
from typing import Any

import torch

from .recorder import Recorder
from .rewriting import NOTE, Rewriter, Source

#: The class that Lightning's modules are derived from.
LIGHTNING = "LightningModule"
#: The name under which the file is a module.
MODULE = "__tensorpoint_traced__"

_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class FileModule:
    """The file at work: `namespace` has its names, `sites` its recorded places."""

    def __init__(
        self, source: Source, name: str = MODULE, package: str = "", *, rewritten: bool = True
    ) -> None:
        self.source = source
        self._rewritten = rewritten
        self.recorder = Recorder(source.path)
        #: Why classes are not there.
        self.problems: list[str] = []
        self._rewriter = Rewriter(source)
        self._statements = ast.parse(source.text, source.path).body
        self._binders = _binders(self._statements)
        self._run: set[int] = set()
        self.module = types.ModuleType(name)
        self.module.__file__ = source.path
        self._is_library = bool(package)
        if package:
            self.module.__package__ = package
        self.namespace = self.module.__dict__
        self.namespace["__builtins__"] = _Demanded(self)
        self.namespace[NOTE] = self.recorder.note
        lines = [line + "\n" for line in source.lines]
        linecache.cache[source.path] = (len(source.text), None, lines, source.path)

    @property
    def sites(self) -> list[Any]:
        return self._rewriter.sites

    def told(self, statements: Sequence[ast.stmt], owners: Sequence[str] = ()) -> list[ast.stmt]:
        """Copies of statements that tell their values, as those of a function do."""
        return self._rewriter.told(statements, owners)

    def compiled(self, tree: ast.Module) -> types.CodeType:
        """The code of a tree that was made of the file's."""
        return self._rewriter.compiled(tree)

    def load(self) -> None:
        """Run the definitions."""
        sys.modules[self.module.__name__] = self.module
        folder, package = _package(self.source.path, self._statements)
        if package:
            self.module.__package__ = package
        for place in (os.getcwd(), folder):
            if place not in sys.path:
                sys.path.insert(0, place)
        sys.argv = [self.source.path]
        for statement in self._statements:
            if defines(statement):
                failure = self._try(statement)
                if failure and isinstance(statement, ast.ClassDef):
                    self.problems.append(f"{statement.name}: {failure}")

    def load_all(self) -> None:
        """Run the whole file: a library's, which is made to be imported."""
        sys.modules[self.module.__name__] = self.module
        for index, statement in enumerate(self._statements):
            try:
                self._execute(statement)
            except Exception:
                if not getattr(statement, "decorator_list", ()):
                    raise
                self._execute_undecorated(index)

    def _execute_undecorated(self, index: int) -> None:
        """A definition without its first decorator: that of torchvision's models is a registry,
        which takes no name twice."""
        # Parsed again, for rewriting has changed it.
        statement = ast.parse(self.source.text, self.source.path).body[index]
        assert isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        del statement.decorator_list[0]
        self._execute(statement)

    def as_it_is(self) -> FileModule:
        """The same file once more, not rewritten; as a script or as a library, as this one."""
        package = self.module.__package__ or ""
        plain = FileModule(
            self.source,
            self.module.__name__,
            package if self._is_library else "",
            rewritten=False,
        )
        if self._is_library:
            plain.namespace["__builtins__"] = vars(builtins)
            plain.module.__spec__ = self.module.__spec__
            plain.load_all()
        else:
            plain.load()
        return plain

    def _plain(self, statement: ast.stmt) -> types.CodeType:
        return compile(ast.Module([statement], []), self.source.path, "exec", dont_inherit=True)

    def demand(self, name: str) -> Any:
        """Run the statement that binds `name`. Raises NameError, with the reason."""
        if name in self.namespace:  # asked for by an expression with names of its own
            return self.namespace[name]
        for statement in self._binders.get(name, ()):
            if id(statement) in self._run:
                continue
            failure = self._try(statement)
            if failure:
                raise NameError(f"name {name!r} is not defined, since {failure}")
            if name in self.namespace:
                value = self.namespace[name]
                if isinstance(value, argparse.ArgumentParser):
                    self._fill_parser(name)
                return value
        raise NameError(f"name {name!r} is not defined", name=name)

    def _fill_parser(self, name: str) -> None:
        for statement in ast.walk(ast.Module(self._statements, [])):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
                called = statement.value.func
                if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
                    if called.value.id == name and called.attr.startswith(("add_", "set_")):
                        self._try(statement)

    def _try(self, statement: ast.stmt) -> str:
        """What hindered the statement, as a sentence, or ""."""
        try:
            self._execute(statement)
        except RecursionError:
            return f"line {statement.lineno} needs itself"
        except BaseException as error:  # SystemExit too: the file is a script
            return f"line {statement.lineno} failed: {type(error).__name__}: {error}"
        return ""

    def _execute(self, statement: ast.stmt) -> None:
        if id(statement) in self._run:
            return
        self._run.add(id(statement))
        code = self._rewriter.rewrite(statement) if self._rewritten else self._plain(statement)
        while True:
            try:
                exec(code, self.namespace)
                return
            except ModuleNotFoundError as error:
                if not error.name or not _STUBS.add(error.name):
                    raise
            finally:
                _STUBS.withdraw()


class _Demanded(dict[str, Any]):
    """Builtins that know where the file's other names come from."""

    def __init__(self, module: FileModule) -> None:
        super().__init__(vars(builtins))
        self._module = module

    def __missing__(self, name: str) -> Any:
        try:
            return self._module.demand(name)
        except NameError as error:
            # The interpreter takes a KeyError for "not there" and forgets the reason.
            if str(error) == f"name {name!r} is not defined":
                raise KeyError(name) from None
            raise


def _package(path: str, statements: Sequence[ast.stmt]) -> tuple[str, str]:
    """Where the imports of a file start: a folder, and the package that the file is in.

    A file without relative imports is a script, which is in none and imports what is beside it.
    """
    folder = os.path.dirname(os.path.abspath(path))
    levels = [
        node.level
        for node in ast.walk(ast.Module(list(statements), []))
        if isinstance(node, ast.ImportFrom)
    ]
    needed = max(levels, default=0)
    names: list[str] = []
    while needed and (len(names) < needed or os.path.exists(os.path.join(folder, "__init__.py"))):
        folder, name = os.path.split(folder)
        if not name:
            return os.path.dirname(os.path.abspath(path)), ""
        names.insert(0, name)
    return folder, ".".join(names)


def defines(statement: ast.stmt) -> bool:
    """Whether a top-level statement is an import or a definition, which run at the start."""
    if isinstance(statement, _DEFINITIONS):
        return True
    if isinstance(statement, ast.Try):
        return all(defines(each) or isinstance(each, ast.Assign) for each in statement.body)
    if isinstance(statement, ast.If):
        return "__name__" not in ast.dump(statement.test) and all(
            isinstance(each, (*_DEFINITIONS, ast.Pass)) for each in statement.body
        )
    return False


def _binders(statements: Sequence[ast.stmt]) -> dict[str, list[ast.stmt]]:
    """The statements that bind a name, the outermost first; those within loops are left out."""
    found: dict[str, list[ast.stmt]] = {}
    inner: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, (ast.If, ast.Try, ast.With)):
            inner += statement.body
        for name in _bound(statement):
            found.setdefault(name, []).append(statement)
    if inner:
        for name, more in _binders(inner).items():
            found.setdefault(name, []).extend(more)
    return found


def _bound(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).split(".")[0] for alias in statement.names]
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return []
    return [
        node.id
        for target in targets
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for packages that aren't installed: what they have are classes without effect."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def add(self, name: str) -> bool:
        """Whether it can stand for this one now."""
        root = name.split(".")[0]
        if root in self.names or root in sys.modules or root == "torch":
            return False
        self.names.add(root)
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        return True

    def withdraw(self) -> None:
        """Leave no module behind: a library asks for its options by looking whether they are there.

        `import transformers` fails if it finds torchvision and that has nothing in it.
        """
        if self.names:  # 1 ms, after each statement
            for name in [name for name in sys.modules if name.split(".")[0] in self.names]:
                del sys.modules[name]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.split(".")[0] in self.names and _asked_by_user():
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Stub(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _asked_by_user() -> bool:
    """Whether what imports is not an installed library."""
    frame = sys._getframe(2)
    while frame is not None and "importlib" in frame.f_code.co_filename:
        frame = frame.f_back
    name = frame.f_code.co_filename if frame is not None else ""
    return not name.startswith(_INSTALLED)


_INSTALLED = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)


class _Stub(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == LIGHTNING:
            return LightningModule
        return type(name, (_Nothing,), {"__module__": self.__name__})


class LightningModule(torch.nn.Module):
    """Stands for Lightning's, with what its modules use while they are made and in their steps."""

    device = torch.device("meta")
    current_epoch = global_step = 0
    logger = trainer = None

    def save_hyperparameters(self, *names: Any, **_: Any) -> None:
        """Keep the arguments of the constructor that calls it."""
        given = inspect.getargvalues(sys._getframe(1))
        found = {name: given.locals[name] for name in given.args[1:]}
        found.update(given.locals.get(given.keywords or "", {}))
        chosen = [name for name in names if isinstance(name, str)]
        self.hparams.update({name: found[name] for name in chosen} if chosen else found)

    @property
    def hparams(self) -> _Options:
        return self.__dict__.setdefault("_hparams", _Options())

    def log(self, *_: Any, **__: Any) -> None:
        """Nothing is logged."""

    log_dict = print = log

    def optimizers(self) -> Any:
        return _Nothing()

    lr_schedulers = optimizers


class _Options(dict[str, Any]):
    """A dict whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    __setattr__ = dict.__setitem__


class _Nothing:
    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __call__(self, *arguments: Any, **__: object) -> Any:
        # As a decorator it leaves what it decorates.
        return arguments[0] if len(arguments) == 1 and callable(arguments[0]) else _Nothing()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Nothing()


def is_stub(value: Any) -> bool:
    """Whether it stands for something of a package that is not installed."""
    return isinstance(value, _Nothing) or (isinstance(value, type) and issubclass(value, _Nothing))


_STUBS = _Stubs()

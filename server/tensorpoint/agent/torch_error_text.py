"""The description of an exception of torch's: the operation, its operands, and what may help."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from ..wire.torch_error import ErrorOperand, TorchError
from . import debugger_files, explain
from .frames import short_file
from .modules import Names, forward_of
from .ops import modified
from .ops.operands import Operand, Site, argument_in, tensors_in
from .ops.peek import UNKNOWN, is_module, is_tensor
from .ops.recorder import Failed
from .torch_error_index import index_note
from .torch_error_sampling import SAMPLING, drawn_from, sampling_notes
from .torch_places import Place, is_call, torch_folder

_MOST_OPERANDS = 12
_LONGEST_VALUE = 60
#: Below torch: where an innermost frame is the code of an operation, and its call has the name.
_OPERATIONS = (
    *("nn", "functional.py", "_tensor.py", "autograd", "optim", "linalg", "fft", "special"),
    *("_VF.py", "signal", "_refs", "distributions", "sparse", "nested"),
    os.path.join("utils", "data", "_utils", "collate.py"),
)
#: Torch's side of a dispatch mode, where one is on: its arguments are not those of the line.
_DISPATCH = frozenset({"_compile.py", "_ops.py"})
#: Names of what only passes a call on.
_PLUMBING = frozenset(
    {
        *("_call_impl", "_wrapped_call_impl", "forward_call", "inner", "wrapped", "wrapper"),
        *("decorate_context", "fn", "_fn", "func", "f", "run_backward", "handle_torch_function"),
        "boolean_dispatch",
    }
)


class Description:
    """One exception: the parts of its description."""

    def __init__(
        self,
        error_type: type[BaseException],
        value: Any,
        outer: list[Place],
        call: Place,
        inside: list[Place],
        called: Site | None,
        modules: list[Any],
        names: Names | None,
        failed: Failed | None = None,
    ) -> None:
        self._type = error_type.__name__
        self._message = _text_of(value)
        self._outer, self._call, self._inside, self._called = outer, call, inside, called
        self._names = names = names or Names()
        self._failed = failed
        self._module = modules[-1] if modules else None
        if modules:
            names.learn(modules[0])
            self._root = modules[0]
        self._op = self._operation()
        self._given = self._operands()

    # The operation

    def _operation(self) -> str | None:
        if any(place.name == "_engine_run_backward" for place in self._inside):
            return "backward"
        own = self._module is not None and self._is_inside(self._module)
        if not self._inside or (self._says_what() and not own):
            return _name_of(self._called)
        last = self._inside[-1]
        below = last.file.removeprefix(torch_folder())
        if below.startswith(_OPERATIONS):
            if not last.raises:
                found = last.site()
                name = _name_of(found) if found is not None and found.kind == "call" else None
                if name and name not in _PLUMBING:
                    return name
            for place in reversed(self._inside):
                if place.name == "forward" or is_call(place):
                    return None  # said by the module
                if not place.name.startswith(("_", "check_", "<")) and place.name not in _PLUMBING:
                    return place.name
        return None if self._called_module() is not None else _name_of(self._called)

    def _says_what(self) -> bool:
        """Whether the line itself has the operation, as `for batch in loader` has not."""
        return self._called is not None and self._called.kind in ("call", "operator")

    def _called_module(self) -> Any:
        """The module that the line calls, if it calls one."""
        callee = None if self._called is None else self._called.callee
        if is_module(callee):
            return callee
        first = next((place for place in self._inside if "self" in place.frame.f_locals), None)
        if first is not None and first is self._inside[0] and first.name == "_wrapped_call_impl":
            return first.frame.f_locals["self"]
        return None

    # The operands

    def _operands(self) -> list[tuple[str, Any]]:
        """Names and values: of the call, then of the module that failed inside it."""
        given: list[tuple[str, Any]] = []
        called = self._called
        for item in called.operands if called is not None else ():
            value = item.value if item.value is not UNKNOWN else self._passed(item)
            given.append((item.expression, value))
        if called is not None and not any(tensors_in(*item) for item in given):
            given += called.tensors
        module, outer = self._module, self._called_module()
        own = module if module is not outer else None
        if own is not None and _is_torchs_class(own) and self._is_inside(own):
            given += self._arguments_of(own)
        elif called is None and outer is not None:
            given += self._arguments_of(outer)
        elif not any(tensors_in(*item) for item in given) and self._inside and outer is None:
            # torch's own code has the tensors: torch.stack(batch) for a line that asks a loader.
            found = self._inside[-1].site()
            given += found.tensors if found is not None else ()
            for item in found.operands if found is not None else ():
                given += tensors_in(item.expression, item.value)
        if module is not None and _is_torchs_class(module) and self._is_inside(module):
            name = called.name if called is not None and module is outer else self._path(module)
            given += [
                (f"{name}.{key}" if name else key, parameter)
                for key, parameter in module._parameters.items()
                if parameter is not None
            ]
        return given

    def _is_inside(self, module: Any) -> bool:
        """Whether the module is called below the line, not around it."""
        return any(
            is_call(place) and place.frame.f_locals["self"] is module for place in self._inside
        )

    def _passed(self, item: Operand) -> Any:
        if self._failed is not None and self._is_drawn_from(item):
            return self._failed.operation.arguments["self"]
        below = self._inside[0].file.removeprefix(torch_folder()) if self._inside else ""
        if not self._inside or below in _DISPATCH:
            return UNKNOWN
        frame = self._inside[0].frame
        return argument_in(frame.f_code, frame.f_locals, item)

    def _arguments_of(self, module: Any) -> list[tuple[str, Any]]:
        """The arguments of a module's call, by the names that its forward gives them."""
        place = next(
            (
                place
                for place in reversed(self._inside)
                if is_call(place) and place.frame.f_locals["self"] is module
            ),
            None,
        )
        if place is None:
            return []
        code = getattr(forward_of(module), "__code__", None)
        names = list(code.co_varnames[1 : code.co_argcount]) if code is not None else []
        args: Any = place.frame.f_locals.get("args") or ()
        kwargs: Any = place.frame.f_locals.get("kwargs") or {}
        names += [f"argument {index}" for index in range(len(names), len(args))]
        owner = self._path(module) or type(module).__name__
        pairs = [*zip(names, args, strict=False), *kwargs.items()]
        return [
            (text, tensor)
            for name, value in pairs
            for text, tensor in tensors_in(f"{name} of {owner}", value)
        ]

    def _path(self, module: Any) -> str:
        return self._names.path(module, self._root)

    # In words

    def error(self) -> TorchError:
        """All of it."""
        call, module = self._call, self._module
        path = None if module is None else self._path(module)
        where = "" if module is None or path is None else explain.place(module, path)
        inside = module is not None and self._is_inside(module)
        if self._op is None:
            said = f"In {where}" if where else ""
        elif not where:
            said = f"In {self._op}"
        else:
            said = (
                f"In {self._op} of {where}"
                if inside
                else f"In {self._op} in the forward of {where}"
            )
        file, function = debugger_files.client_path(call.frame), call.name
        source = self._called.text if self._called is not None else ""
        called = "called at" if self._called is None or self._called.kind == "call" else "at"
        line = f"{called} {short_file(file)}:{call.line} in {function}"
        operands = _shown(self._given)
        notes = self._notes()
        step = None if module is None else self._names.step(module)
        sentences = [
            self._message,
            f"{said}, {line}" if said else line[0].upper() + line[1:],
            *(f"  {_in_words(item)}" for item in operands),
            *notes,
        ]
        sentences[1] += f": {source}" if source else "."
        if step is not None:
            root = self._names.root_of(module)
            sentences.append(f"Step {step} (forward calls of {type(root).__name__}, from 0).")
        if not debugger_files.in_project(call.frame):
            users = [place for place in self._outer if debugger_files.in_project(place.frame)]
            sentences += [
                f"Your code: {debugger_files.client_path(user.frame)}:{user.line}."
                for user in users[-1:]
            ]
        return TorchError(
            type=self._type,
            message=self._message,
            op=self._op,
            module=path,
            module_type=None if module is None else type(module).__name__,
            file=file,
            line=call.line,
            function=function,
            source=source,
            operands=tuple(operands),
            notes=tuple(notes),
            step=step,
            description=f"{self._type} {said[0].lower()}{said[1:]}" if said else self._type,
            text="\n".join(sentences),
        )

    def _notes(self) -> list[str]:
        notes: list[str] = []
        every = (self._features, self._index, self._late, self._memory, self._modified)
        for add in (*every, self._sampling):
            try:
                notes += add()
            except Exception as error:  # a note is not worth the description
                notes.append(f"A note could not be made: {type(error).__name__}: {error}.")
        return notes

    def _features(self) -> list[str]:
        """A linear layer that gets another number of features than it takes."""
        module = self._module
        if module is None or not self._is_inside(module) or self._op != "linear":
            return []
        takes = getattr(module, "in_features", None)
        direct = module is self._called_module()
        given = [
            item
            for item in (self._given if direct else self._arguments_of(module))
            if is_tensor(item[1])
        ]
        if not given or takes is None or not given[0][1].dim():
            return []
        name, tensor = given[0]
        has = tensor.shape[-1]
        if has == takes:
            return []
        return [
            f"{type(module).__name__} takes {takes} features; the last size of {name} is {has}."
        ]

    def _index(self) -> list[str]:
        """Which index there is not."""
        note = index_note(self._message, self._op, self._module, self._given)
        return [] if note is None else [note]

    def _late(self) -> list[str]:
        """CUDA tells of some errors at whatever is called later."""
        if "CUDA error" not in self._message or os.environ.get("CUDA_LAUNCH_BLOCKING") == "1":
            return []
        return [
            "CUDA tells of such errors late: it may be an earlier operation's. With the "
            "environment variable CUDA_LAUNCH_BLOCKING=1 the stop is at the right one."
        ]

    def _memory(self) -> list[str]:
        """How large the operands are, where memory was short."""
        if self._type != "OutOfMemoryError" and "allocate" not in self._message:
            return []
        tensors = {id(value): value for _, value in self._given if is_tensor(value)}
        size = sum(value.numel() * value.element_size() for value in tensors.values())
        return [f"The operands take {size / 2**20:.1f} MiB."] if size else []

    def _sampling(self) -> list[str]:
        """Which of the probabilities to draw from are none."""
        called, op = self._called, self._op
        operand = None if called is None or op not in SAMPLING else drawn_from(called)
        if called is None or op is None or operand is None or "CUDA error" in self._message:
            return []  # after an error of CUDA's no value can be read
        value = operand.value if operand.value is not UNKNOWN else self._passed(operand)
        return sampling_notes(op, operand, value, called, self._failed)

    def _is_drawn_from(self, item: Operand) -> bool:
        called = self._called
        return called is not None and self._op in SAMPLING and item is drawn_from(called)

    def _modified(self) -> list[str]:
        """Who changed in place what backward needs."""
        places = [*self._outer, self._call, *self._inside]
        frames = [place.frame for place in places]
        return modified.explain_modified(
            self._message,
            frames,
            self._names.roots(),
            lambda leaf: _name_of_leaf(leaf, self._names, frames),
        )


def _name_of_leaf(leaf: Any, names: Names, frames: list[FrameType]) -> str:
    """A parameter's name: below a root that was called, or a module on a name of the program's."""
    owner, name = names.owner(leaf)
    if owner is not None:
        path = names.path(owner, owner)
        return f"{path}.{name}" if path else name
    for frame in reversed(frames):
        for scope in (frame.f_locals, frame.f_globals):
            for variable, value in scope.items():
                if value is leaf:
                    return variable
                if is_module(value):
                    for path, parameter in value.named_parameters():
                        if parameter is leaf:
                            return f"{variable}.{path}"
    return f"one of shape {list(leaf.shape)}"


def _is_torchs_class(module: Any) -> bool:
    return type(module).__module__.startswith("torch.")


def _name_of(found: Site | None) -> str | None:
    """The operation's name: of a function its own, not the one that it is imported by."""
    if found is None:
        return None
    if found.kind == "subscript":
        return "assignment to elements" if found.name == "[]=" else "indexing"
    if found.kind == "iteration":
        return "iteration"
    if found.kind != "call":
        return found.name.removeprefix(".")
    name = getattr(found.callee, "__name__", None)
    last = found.name.rpartition(".")[2]
    return name if isinstance(name, str) and not is_module(found.callee) else last.strip() or None


def _text_of(value: Any) -> str:
    try:
        # Before Python 3.12, what is raised by C code may not be an exception yet.
        return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _shown(given: Sequence[tuple[str, Any]]) -> list[ErrorOperand]:
    shown: dict[str, ErrorOperand] = {}
    for name, value in given:
        if value is UNKNOWN:
            shown.setdefault(name, ErrorOperand(name))
            continue
        tensors = tensors_in(name, value)
        for expression, tensor in tensors:
            shown.setdefault(expression, _tensor(expression, tensor))
        if not tensors and (text := _plain(value)):
            shown.setdefault(name, ErrorOperand(name, value=text))
    return list(shown.values())[:_MOST_OPERANDS]


def _tensor(name: str, tensor: Any) -> ErrorOperand:
    try:
        shape = tuple(size if type(size) is int else str(size) for size in tensor.shape)
        dtype = str(tensor.dtype).removeprefix("torch.")
        return ErrorOperand(name, dtype, shape, str(tensor.device))
    except Exception:  # a subclass of the program's
        return ErrorOperand(name, value=type(tensor).__name__)


def _plain(value: Any) -> str:
    """A number, a text, a size or a dtype in words; "" for what says nothing here."""
    torch: Any = sys.modules["torch"]
    simple = (int, float, str, *(vars(torch).get(name, int) for name in ("dtype", "device")))
    sizes = type(value) in (tuple, list) or type(value).__name__ == "Size"
    if not isinstance(value, simple) and not (sizes and all(type(item) is int for item in value)):
        return ""
    text = str(list(value)) if sizes else repr(value).removeprefix("torch.")
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _in_words(item: ErrorOperand) -> str:
    if item.dtype is not None and item.shape is not None:
        sizes = ", ".join(map(str, item.shape))
        return f"{item.name}: {item.dtype} [{sizes}] on {item.device}"
    return (
        f"{item.name}: {item.value}"
        if item.value is not None
        else f"{item.name}: a temporary, gone"
    )

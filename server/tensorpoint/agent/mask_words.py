"""Does a module's code speak of masks? Asked where nothing else tells what a -inf means.

A mask's -inf has to come from somewhere: a literal, `math.inf` or `finfo` in the code, a number or
a tensor that the code can reach, or a logarithm of something that is called a mask. What is looked
at is the bytecode of `forward` and of the program's functions that it names: names, constants,
globals. A module in which none of that is found computes; its -inf is the logarithm of a zero, a
division or an overflow. What holds nothing but zeros and -inf is yet a mask, such as the logarithm
of a table of neighbours, unless there are probabilities in the code, which round to 0 and 1.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from .frames import is_internal_code
from .modules import forward_of
from .tensors import values_of

if TYPE_CHECKING:
    from torch.nn import Module

_WORDS = re.compile(
    r"mask|causal|padd?(?:ing|ed)?(?:_|$)|valid(?!at)|legal|allow|avail|banned|forbid|attend|one_?hot"
    r"|keep(?!_?dim)|finfo|tril|triu|infinit|(?<![a-z])neg_?inf|(?<![a-z])inf(?![a-z])"
)
_PROBABILITIES = re.compile(
    r"softm(?:ax|in)|sigmoid|prob|likelihood|(?<![a-z])exp(?:2|m1)?(?![a-z])"
)
#: Functions that are followed, and how far.
_MAX_FUNCTIONS, _MAX_DEPTH = 100, 3
_INF = float("inf")


def may_mask(module: Module) -> bool:
    """Whether a -inf in its output may be meant; True where that can't be told."""
    function = _forward(module)
    if function is None:
        return True
    own = (*module._parameters.values(), *module._buffers.values())
    if any(map(_is_infinite, own)):
        return True
    for number, current in enumerate(_followed(function, module)):
        if number == _MAX_FUNCTIONS or _has_words(current.__code__, _WORDS):
            return True
        if any(map(_is_infinite, _reached(current, module))):
            return True
    return False


def takes_probabilities(module: Module) -> bool:
    """Whether its code speaks of what rounds to 0 and 1."""
    function = _forward(module)
    return function is not None and any(
        _has_words(current.__code__, _PROBABILITIES)
        for current in islice(_followed(function, module), _MAX_FUNCTIONS)
    )


def _forward(module: Module) -> FunctionType | None:
    forward: Any = vars(module).get("forward") or forward_of(module)
    function = getattr(forward, "__func__", forward)
    return function if isinstance(function, FunctionType) else None


def _followed(function: FunctionType, module: Module) -> Iterator[FunctionType]:
    """It, and the program's functions that it may call."""
    waiting, seen = [(function, 0)], {function}
    while waiting:
        current, depth = waiting.pop()
        yield current
        for value in _reached(current, module) if depth < _MAX_DEPTH else ():
            inner = getattr(value, "__func__", value)
            if isinstance(inner, FunctionType) and inner not in seen:
                if not is_internal_code(inner.__code__):
                    seen.add(inner)
                    waiting.append((inner, depth + 1))


def _reached(function: FunctionType, module: Module) -> Iterator[Any]:
    """What the function can get at by a name of its code, and what is in a table of these."""
    for value in (*_cells(function), *(function.__defaults__ or ()), *_named(function, module)):
        yield value
        if isinstance(value, dict):
            yield from islice(value.values(), _MAX_FUNCTIONS)
        elif isinstance(value, (list, tuple)):
            yield from islice(value, _MAX_FUNCTIONS)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue


def _named(function: FunctionType, module: Module) -> Iterator[Any]:
    own = vars(module)
    for name in _names(function.__code__):
        if name in function.__globals__:
            yield function.__globals__[name]
        if name in own:
            yield own[name]
        for base in type(module).__mro__:
            if name in vars(base) and base.__module__.partition(".")[0] != "torch":
                yield vars(base)[name]
                break


@lru_cache(1024)
def _names(code: CodeType) -> tuple[str, ...]:
    inner = (name for part in code.co_consts if isinstance(part, CodeType) for name in _names(part))
    return (*code.co_names, *inner)


@lru_cache(1024)
def _has_words(code: CodeType, words: re.Pattern[str]) -> bool:
    names = (*code.co_names, *code.co_varnames, *code.co_freevars)
    return any(words.search(name.lower()) for name in names) or _has_constants(
        code.co_consts, words
    )


def _has_constants(values: tuple[Any, ...], words: re.Pattern[str]) -> bool:
    for value in values:
        if isinstance(value, str):
            if len(value) < 40 and words.search(value.lower()):
                return True
        elif isinstance(value, float):
            if words.search(str(value)):
                return True
        elif isinstance(value, tuple):
            if _has_constants(value, words):  # type: ignore[reportUnknownArgumentType]
                return True
        elif isinstance(value, CodeType) and _has_words(value, words):
            return True
    return False


def _is_infinite(value: Any) -> bool:
    if isinstance(value, float):
        return value in (_INF, -_INF)
    torch = sys.modules["torch"]
    if not isinstance(value, torch.Tensor):
        return False
    values = values_of(value)
    return values is not None and values.is_cpu and bool(torch.isinf(values).any())

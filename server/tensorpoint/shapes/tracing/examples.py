"""Inputs from calls that there are: what is passed, with names for the sizes that may vary.

A call has numbers, `f32[16, 3, 64, 64]`. Which of them are sizes of the input and which are the
model's is found out by changing them: what runs with another number in all places of that number
has a name. Places of one number are one size, but for the sides of an image; a size of 1 is a
batch if it comes first. The batch is what most of the tensors have, and of several the first.
"""

from __future__ import annotations

import ast
import inspect
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...wire.dtypes import short_dtype
from .inputs import Input, Sizes, TensorSpec, tensors, with_items
from .source import FileModule
from .values import Unknown, Values

_MOST_CALLS = 6
_CALLS_SECONDS = 5.0
#: For changing the sizes of one call.
_SECONDS = 2.0
_NAMES = ("T", "U", "L", "S", "K", "M")
#: From the end: the sides of an image, of a volume.
_SIDES = {4: {2: "H", 3: "W"}, 5: {2: "D", 3: "H", 4: "W"}}

Key = tuple[Any, ...]


def calls_of(file: FileModule, values: Values, kind: Any) -> Iterator[dict[str, Any]]:
    """The arguments, by name, of the calls of a class's modules, or of a function, in the file."""
    tried, end = 0, time.monotonic() + _CALLS_SECONDS
    for call in values.calls:
        if time.monotonic() > end:
            return
        if not _may_call(call, file, kind):
            continue
        try:
            found = values.of(call.func)
            found = getattr(found, "module", found)  # wrapped to run in parallel
            if isinstance(found, torch.nn.Module):
                if type(found) is not kind:
                    continue
                function = found.forward
            elif found is kind and not inspect.isclass(kind):
                function = kind
            else:
                continue
            tried += 1
            positional, keywords = values.arguments(call)
            given = inspect.signature(function).bind(*positional, **keywords).arguments
        except (Unknown, TypeError, ValueError):
            continue
        yield {name: concrete(value) for name, value in given.items()}
        if tried >= _MOST_CALLS:
            return


def _may_call(call: ast.Call, file: FileModule, kind: Any) -> bool:
    """Whether what is called can be a module or that function, by its name alone."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr == "forward" and isinstance(function.value, ast.Name)
    if isinstance(function, ast.Call):
        return ast.unparse(function.func) == getattr(kind, "__name__", "")
    if not isinstance(function, ast.Name):
        return False
    known = file.namespace.get(function.id)
    return known is kind or not (inspect.isclass(known) or inspect.isroutine(known))


def concrete(value: Any) -> Any:
    """A value with specifications in the places of its tensors."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(short_dtype(value.dtype), tuple(str(int(size)) for size in value.shape))
    return with_items(value, concrete)


def inputs_of(
    given: dict[str, Any], fixed: dict[str, Input], parameters: Sequence[str], origin: str
) -> tuple[Input, ...]:
    """A call's arguments as inputs; those that are `fixed` stay."""
    chosen = [
        fixed.get(name) or Input(name, given[name], origin)
        for name in parameters
        if name in given or name in fixed
    ]
    return tuple(
        replace(each, keyword=parameters[index] != each.name) for index, each in enumerate(chosen)
    )


@dataclass(frozen=True)
class _Place:
    """A size of one of the tensors."""

    tensor: int
    dim: int


def generalized(
    inputs: tuple[Input, ...], runs: Callable[[tuple[Input, ...]], bool]
) -> Iterator[tuple[tuple[Input, ...], Sizes]]:
    """The inputs with names for the sizes that can vary, then for the batch only, then as given.

    And what the names stand for in the call, which is one that runs.
    """
    end = time.monotonic() + _SECONDS
    places = _places(inputs)
    free: list[Key] = []
    for key, where in places.items():
        size = int(_size(inputs, where[0]))
        others = (size + 1, 2 * size, size - 1, size + 32)
        if time.monotonic() < end and any(
            other > 0 and runs(_with(inputs, dict.fromkeys(where, str(other)))) for other in others
        ):
            free.append(key)
    names = _names(places, free)
    batch = {key: name for key, name in names.items() if name == "B"}
    for chosen in [names, *([batch] if batch != names else []), *([{}] if batch else [])]:
        renamed = {place: name for key, name in chosen.items() for place in places[key]}
        sizes = {name: int(_size(inputs, places[key][0])) for key, name in chosen.items()}
        yield _with(inputs, renamed), sizes


def _size(inputs: tuple[Input, ...], place: _Place) -> str:
    return [spec for each in inputs for spec in tensors(each.value)][place.tensor].shape[place.dim]


def _places(inputs: tuple[Input, ...]) -> dict[Key, list[_Place]]:
    """The sizes that go together: by their number, the sides of images by where they are."""
    found: dict[Key, list[_Place]] = {}
    specs = [spec for each in inputs for spec in tensors(each.value)]
    firsts = Counter(spec.shape[0] for spec in specs if spec.shape)
    batch = firsts.most_common(1)[0][0] if firsts else ""
    for index, spec in enumerate(specs):
        for dim, size in enumerate(spec.shape):
            if not size.isdecimal() or size == "0":
                continue
            side = _SIDES.get(len(spec.shape), {}).get(dim) if spec.dtype[0] in "fb" else None
            if size == "1":
                if dim or batch != "1":
                    continue
                key: Key = ("batch",)
            else:
                key = ("side", side, size) if side else ("size", size)
            found.setdefault(key, []).append(_Place(index, dim))
    return found


def _names(places: dict[Key, list[_Place]], free: list[Key]) -> dict[Key, str]:
    """Names for the sizes that vary."""
    names: dict[Key, str] = {}
    plain = [key for key in free if key[0] != "side"]
    if plain:
        tensors_with = {key: len({place.tensor for place in places[key]}) for key in plain}
        first = {key: min(place.dim for place in places[key]) for key in plain}
        names[min(plain, key=lambda key: (-tensors_with[key], first[key]))] = "B"
    left = iter(_NAMES)
    sides: Counter[str] = Counter()
    for key in free:
        if key in names:
            continue
        if key[0] == "side":
            sides[key[1]] += 1
            names[key] = key[1] + (str(sides[key[1]]) if sides[key[1]] > 1 else "")
        else:
            name = next(left, None)
            if name is not None:
                names[key] = name
    return names


def _with(inputs: tuple[Input, ...], sizes: dict[_Place, str]) -> tuple[Input, ...]:
    """The inputs with other sizes in some places."""
    index = -1

    def changed(value: Any) -> Any:
        nonlocal index
        if isinstance(value, TensorSpec):
            index += 1
            shape = tuple(sizes.get(_Place(index, d), s) for d, s in enumerate(value.shape))
            return TensorSpec(value.dtype, shape)
        return with_items(value, changed)

    return tuple(replace(each, value=changed(each.value)) for each in inputs)

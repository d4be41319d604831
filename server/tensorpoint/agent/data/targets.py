"""What a data breakpoint is set on, and how it looks at a moment.

A parameter or a buffer is a *name in a module*: that it is replaced by another tensor is a change.
A gradient is the `grad` slot of a parameter, which is None, rebound and accumulated into. Any other
tensor is the object itself, as a variable's name says nothing once its function has returned.

`weight[0, 3]` gives an object that nobody keeps. It is a part of one that lives, whose memory is
watched then: by its bits alone, since the version counter is that of the whole.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from dataclasses import dataclass
from typing import Any, Literal

from ..tensors import unseen, within
from ..values import devices
from ..values.plain import (
    call,
    elements_of,
    held_by,
    is_hollow,
    is_lazy,
    is_on_cpu,
    plain,
    read,
    shape_of,
)

Kind = Literal["tensor", "attribute", "gradient", "part"]
#: Elements of a part whose fingerprint is taken at each boundary: some 30 us.
_SMALL = 1 << 12
#: Elements of which a fingerprint weights each by its place; of more it is a plain sum.
_WEIGHTED = 1 << 20


@dataclass(frozen=True)
class Look:
    """What a target was like: enough to see that it is another now, and to say how."""

    #: Which tensor it was; None where there is none (a gradient that is None). To be compared by
    #: `is`: an id comes again, with a version that begins anew, once its tensor is gone.
    identity: weakref.ref[Any] | None
    version: int | None
    shape: tuple[Any, ...] | None
    dtype: Any
    #: A sum over its bits, where one was taken.
    fingerprint: tuple[int, ...] | None = None


class Target:
    """One place to watch. `name` is how the user knows it."""

    def __init__(self, kind: Kind, name: str, owner: Any, attribute: str = "") -> None:
        self.kind, self.name, self.attribute = kind, name, attribute
        self._owner = weakref.ref(owner)

        self._memory: Any = None
        if kind == "tensor":
            base, self._memory = _part_of(owner)
            self._base = None if base is None else weakref.ref(base)

    def settle(self) -> bool:
        """Once nobody holds what was found but who will go on holding it: is it there to stay?

        What was made for this look alone may be a part of what stays.
        """
        if self.kind != "tensor":
            return not self.is_gone
        if not self.is_gone:
            self._memory = None
            return True
        if self._memory is None or self._base is None or self._base() is None:
            return False
        self.kind, self._owner = "part", self._base
        self.attribute = str((*_layout(self._memory), self._memory.dtype))
        return True

    @property
    def owner(self) -> Any:
        """The tensor, the module, the parameter whose gradient or the tensor whose part it is.

        None once it is gone.
        """
        return self._owner()

    def tensor(self) -> Any:
        """The tensor there now; None if there is none."""
        owner = self._owner()
        if owner is None or self.kind == "tensor":
            return owner
        if self.kind == "part":
            return self._memory
        if self.kind == "gradient":
            return read(owner, "grad")
        for table in ("_parameters", "_buffers"):
            held = held_by(owner).get(table) or {}
            if self.attribute in held:
                return held[self.attribute]
        return held_by(owner).get(self.attribute)

    @property
    def is_gone(self) -> bool:
        """Whether nothing can change it any more."""
        if self._owner() is not None:
            return False
        self._memory = None if self.kind == "part" else self._memory
        return True

    def is_same_place(self, other: Target) -> bool:
        """Whether both are about the same."""
        return (
            self.owner is not None
            and self.owner is other.owner
            and (self.kind, self.attribute) == (other.kind, other.attribute)
        )


class Targets:
    """Those that a client was told of, by the id that it knows them by."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._known: dict[str, Target] = {}

    def add(self, target: Target) -> str:
        """The id of a target: the same one for the same place."""
        for key, known in list(self._known.items()):
            if known.is_gone:
                del self._known[key]
            elif known.is_same_place(target):
                return key
        key = str(next(self._numbers))
        self._known[key] = target
        return key

    def find(self, key: str) -> Target | None:
        """The target with this id; None if there is none (any more)."""
        return self._known.get(key)


@unseen
def look_at(target: Target, *, closely: bool) -> Look:
    """What the target is like now; `closely` takes a fingerprint as well."""
    tensor = target.tensor()
    if tensor is None:
        return Look(None, None, None, None)
    if target.kind == "part":
        return _look_at_part(target.owner, tensor, closely or elements_of(tensor) <= _SMALL)
    version = None if call(tensor, "is_inference") else read(tensor, "_version")
    fingerprint = _fingerprint(tensor) if closely else None
    return Look(weakref.ref(tensor), version, shape_of(tensor), read(tensor, "dtype"), fingerprint)


def _look_at_part(whole: Any, part: Any, closely: bool) -> Look:
    version = None if is_on_cpu(part) else read(whole, "_version")
    bits = _fingerprint(part) if closely else None
    return Look(weakref.ref(whole), version, shape_of(part), read(part, "dtype"), bits)


@unseen
def _part_of(view: Any) -> tuple[Any, Any]:
    """What a view is of, and the view's memory without either; nothing for what is none.

    `detach` would keep the whole, so that it could never go.
    """
    if is_lazy(view) or is_hollow(view) or read(view, "layout") is not sys.modules["torch"].strided:
        return None, None
    base = read(view, "_base")
    return (None, None) if base is None else (base, read(view, "data"))


def _layout(tensor: Any) -> tuple[Any, ...]:
    return tensor.storage_offset(), *tensor.shape, *tensor.stride()


def _fingerprint(tensor: Any) -> tuple[int, ...] | None:
    """A sum over the bits, and up to a million elements one that weights each by its place.

    Only on the CPU: elsewhere it would wait for the device at each boundary.
    """
    torch = sys.modules["torch"]
    values = within(tensor)
    if not is_on_cpu(values) or devices.why_not(values) is not None:
        return None
    values = plain(values)
    if values.layout is not torch.strided or values.is_nested:
        return None
    for dimension, step in enumerate(values.stride()):
        if step == 0 and values.shape[dimension] > 1:  # expanded: all are one
            values = values.narrow(dimension, 0, 1)
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    if values.is_quantized or values.numel() == 0:
        return None
    if values.is_complex():
        values = torch.view_as_real(values.resolve_conj())
    values = values.resolve_neg()
    bits = values.view(kinds[values.element_size()]) if values.dim() else values.reshape(1)
    if bits.dtype.is_floating_point:
        bits = bits.view(kinds[bits.element_size()])
    total = int(bits.sum(dtype=torch.int64))
    if bits.numel() > _WEIGHTED:
        return (total,)
    places = torch.arange(1, bits.numel() + 1, dtype=torch.int64, device="cpu")
    return total, int((bits.reshape(-1).to(torch.int64) * places).sum())

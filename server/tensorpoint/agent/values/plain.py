"""What a tensor says of itself, read without running anything of the program's.

A subclass may override `shape` or handle every operation itself; torch's own descriptors are asked
instead. Only subclasses of torch's own (FakeTensor, DTensor) are asked as they are.
"""

from __future__ import annotations

import sys
from typing import Any

from ..tensors import unseen


def torch_type(name: str) -> Any:
    """A class of the program's torch; None while there is none."""
    return getattr(sys.modules.get("torch"), name, None)


def is_tensor(value: object) -> bool:
    """By its real type: a proxy may claim any `__class__`."""
    tensor = torch_type("Tensor")
    return tensor is not None and issubclass(type(value), tensor)


def is_module(value: object) -> bool:
    """By its real type."""
    module = getattr(sys.modules.get("torch.nn"), "Module", None)
    return module is not None and issubclass(type(value), module)


def is_parameter(value: object) -> bool:
    """Whether it is a parameter or another leaf that is trained as one."""
    parameter = getattr(sys.modules.get("torch.nn"), "Parameter", None)
    return parameter is not None and (
        issubclass(type(value), parameter) or held_by(value).get("_is_param") is True
    )


def is_lazy(tensor: Any) -> bool:
    """Whether it is a parameter (or buffer) that has no shape before the first call."""
    mixin = getattr(sys.modules.get("torch.nn.parameter"), "UninitializedTensorMixin", None)
    return mixin is not None and issubclass(type(tensor), mixin)


def held_by(value: object) -> dict[str, Any]:
    """What is in an object's own dictionary; `vars` asks a class for it, which may be anything."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


@unseen
def read(tensor: Any, name: str) -> Any:
    """An attribute of torch's own, whatever the program's subclass makes of it."""
    if type(tensor).__module__.partition(".")[0] == "torch":
        return getattr(tensor, name)
    return getattr(sys.modules["torch"]._C.TensorBase, name).__get__(tensor)


def gradient_of(tensor: Any) -> Any:
    """What is in its `grad`; None also where torch would warn of asking."""
    return read(tensor, "grad") if keeps_gradient(tensor) else None


def keeps_gradient(tensor: Any) -> bool:
    """Whether a backward pass would leave a gradient in it, or one may be in it already."""
    return bool(read(tensor, "is_leaf") or read(tensor, "retains_grad"))


@unseen
def call(tensor: Any, name: str, *arguments: Any) -> Any:
    """A method of torch's own."""
    return getattr(sys.modules["torch"]._C.TensorBase, name)(tensor, *arguments)


@unseen
def plain(tensor: Any) -> Any:
    """The same memory and version as a plain tensor outside of the graph.

    Itself where a subclass handles all operations, so that there is nothing plain behind it.
    """
    torch = sys.modules["torch"]
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or is_lazy(tensor):
        return tensor
    if type(tensor) is torch.Tensor:
        return tensor.detach()
    return call(call(tensor, "as_subclass", torch.Tensor), "detach")


@unseen
def shape_of(tensor: Any) -> tuple[Any, ...] | None:
    """The sizes, some of which may be symbols; None where it has none."""
    if is_lazy(tensor):
        return None
    try:
        return tuple(read(tensor, "shape"))
    except RuntimeError:  # a nested one of the older layout
        return None


@unseen
def elements_of(tensor: Any) -> int:
    """How many elements; 0 where that is not known."""
    try:
        return int(call(tensor, "numel"))
    except RuntimeError:  # a symbol without a value
        return 0


@unseen
def device_of(tensor: Any) -> Any:
    """Where its numbers are; of a fake tensor, where they would be."""
    fake = held_by(tensor).get("fake_device")
    return fake if fake is not None else read(tensor, "device")


@unseen
def is_on_cpu(tensor: Any) -> bool:
    """Whether its numbers can be read without a kernel of a device."""
    return bool(read(tensor, "device").type == "cpu") and not is_hollow(tensor)


def is_hollow(tensor: Any) -> bool:
    """Whether there is nothing behind it: fake, functional, of a transform."""
    torch = sys.modules["torch"]
    handled = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return handled or bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def number(value: Any) -> str:
    """A number in at most seven characters or so."""
    if isinstance(value, (bool, complex)) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**9 else f"{float(value):.4g}"
    return f"{value:.3g}"


def size_in_words(count: int) -> str:
    """Bytes as people write them."""
    if count < 10_000:
        return f"{count:,} bytes"
    value = float(count)
    for unit in ("kB", "MB", "GB"):
        value /= 1000
        if value < 1000:
            return f"{value:.3g} {unit}"
    return f"{value / 1000:.3g} TB"


def tensor_word(value: Any) -> str:
    """What a value is, for a text that says it is no tensor."""
    return "None" if value is None else f"a {type(value).__name__}"

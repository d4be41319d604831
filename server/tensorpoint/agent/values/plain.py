"""What a tensor says of itself, read without running anything of the program's.

A subclass may override `shape` or handle every operation itself; torch's own descriptors are asked
instead. Only subclasses of torch's own (FakeTensor, DTensor) are asked as they are.

One way is left to a class that handles operations: made with `dispatch_sizes_strides_policy`,
`dispatch_device` or `dispatch_layout`, torch asks it for its sizes in `__torch_dispatch__`, also
where dispatch is disabled. A mode comes before that: such a question is answered by an error.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

from ..tensors import has_no_memory, is_of_torch, unseen

#: Of a tensor on "meta" and of a fake one.
NO_VALUES = "it has no values, only a shape"
NO_MEMORY = "it has no memory: that was freed, or it is zero by definition"


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


class Untold(RuntimeError):
    """It can't be read without running code of the program's."""


def handles_itself(tensor: Any) -> bool:
    """Whether its class handles all operations, so that there is nothing plain behind it."""
    return type(tensor).__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__


@lru_cache(maxsize=1)
def _refusing() -> type[AbstractContextManager[Any]]:
    class Refusing(sys.modules["torch.utils._python_dispatch"].TorchDispatchMode):
        def __torch_dispatch__(self, *_: Any, **__: Any) -> Any:
            raise Untold("its class answers that by code of its own")

    return Refusing


def _ask(tensor: Any, of_torch: Any, *arguments: Any) -> Any:
    """What torch's own function says of a tensor. Raises Untold where that would ask its class."""
    if not handles_itself(tensor) or is_of_torch(tensor):
        return _unseen_ask(of_torch, tensor, *arguments)
    inside = sys.modules["torch"]._C
    # (Where `unseen` has put modes out of force, ours would be as well.)
    hidden = inside._dispatch_tls_local_exclude_set().remove(inside.DispatchKey.Python)
    force = inside._ForceDispatchKeyGuard(inside._dispatch_tls_local_include_set(), hidden)
    with inside.DisableTorchFunction(), force, _refusing()():
        return of_torch(tensor, *arguments)


@unseen
def _unseen_ask(of_torch: Any, *arguments: Any) -> Any:
    return of_torch(*arguments)


def read(tensor: Any, name: str) -> Any:
    """An attribute of torch's own, whatever the program's subclass makes of it. Raises Untold."""
    if is_of_torch(tensor):
        return _unseen_ask(getattr, tensor, name)
    return _ask(tensor, getattr(sys.modules["torch"]._C.TensorBase, name).__get__)


def gradient_of(tensor: Any) -> Any:
    """What is in its `grad`; None also where torch would warn of asking."""
    return read(tensor, "grad") if keeps_gradient(tensor) else None


def keeps_gradient(tensor: Any) -> bool:
    """Whether a backward pass would leave a gradient in it, or one may be in it already."""
    return bool(read(tensor, "is_leaf") or read(tensor, "retains_grad"))


def call(tensor: Any, name: str, *arguments: Any) -> Any:
    """A method of torch's own. Raises Untold."""
    return _ask(tensor, getattr(sys.modules["torch"]._C.TensorBase, name), *arguments)


@unseen
def plain(tensor: Any) -> Any:
    """The same memory and version as a plain tensor outside of the graph.

    Itself where a subclass handles all operations, so that there is nothing plain behind it.
    """
    torch = sys.modules["torch"]
    if handles_itself(tensor) or is_lazy(tensor):
        return tensor
    if type(tensor) is torch.Tensor:
        return tensor.detach()
    return call(call(tensor, "as_subclass", torch.Tensor), "detach")


@unseen
def shape_of(tensor: Any) -> tuple[Any, ...] | None:
    """The sizes, some of which may be symbols; None where it has none or doesn't tell."""
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
        count = call(tensor, "numel")
    except RuntimeError:
        return 0
    return count if type(count) is int else 0  # (`int` of a symbol would fix the program's)


@unseen
def device_of(tensor: Any) -> Any:
    """Where its numbers are; of a fake tensor, where they would be."""
    fake = held_by(tensor).get("fake_device") if is_of_torch(tensor) else None
    try:
        return fake if fake is not None else read(tensor, "device")
    except Untold:
        return "device untold"


def is_on_cpu(tensor: Any) -> bool:
    """Whether its numbers can be read without a kernel of a device."""
    return not is_hollow(tensor) and bool(read(tensor, "device").type == "cpu")


def is_hollow(tensor: Any) -> bool:
    """Whether there is nothing plain behind it: fake, without memory, of a transform, a wrapper."""
    return handles_itself(tensor) or _is_of_transform(tensor) or _has_no_memory(tensor)


def why_hollow(tensor: Any) -> str | None:
    """Why there are no numbers behind it, in words; None where there are."""
    name = type(tensor).__name__
    if _is_of_transform(tensor):
        return "it is of a function transform"
    if name == "FakeTensor" and is_of_torch(tensor):
        return NO_VALUES
    if handles_itself(tensor):
        return f"the class {name} handles all operations itself"
    return NO_MEMORY if _has_no_memory(tensor) else None


def _is_of_transform(tensor: Any) -> bool:
    torch = sys.modules["torch"]
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return bool(wrapped or torch._is_functional_tensor(tensor))


@unseen
def _has_no_memory(tensor: Any) -> bool:
    if is_lazy(tensor) or read(tensor, "is_nested"):
        return False
    if read(tensor, "layout") is not sys.modules["torch"].strided:
        return False
    return has_no_memory(tensor if is_of_torch(tensor) else plain(tensor))


def number(value: Any) -> str:
    """A number in at most seven characters or so."""
    if isinstance(value, (bool, complex)) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**9 else f"{float(value):.4g}"
    return f"{value:.3g}"


def element(value: Any) -> str:
    """A number of the program's, in a row of its own: of an integer each digit."""
    if type(value) is int:
        return str(value)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


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

"""One line for each kind of value: `f32[8, 128, 768] cuda:0 grad`.

Metadata only: no kernel, no wait for a device, and of a large model one walk over its modules. The
table at the end says which values are told in this way; all others are left to pydevd.
"""

from __future__ import annotations

import dataclasses
import reprlib
import sys
from collections import OrderedDict
from collections.abc import Callable
from itertools import islice
from types import MemberDescriptorType
from typing import Any

from ...wire.dtypes import short_dtype
from ..tensors import compressed_layouts, is_of_torch, unseen
from . import plain
from .plain import (
    call,
    device_of,
    elements_of,
    held_by,
    is_lazy,
    is_module,
    is_parameter,
    is_tensor,
    read,
    shape_of,
    size_in_words,
)
from .walks import modules_in, tensors_of

#: Values of a container that are named in its line.
_NAMED = 6
#: Modules of a model that are walked over for its size.
_MODULES = 20_000

Line = Callable[[Any], str]


def line_of(value: Any) -> str | None:
    """The line for `value`, or None for what isn't ours. Never raises."""
    try:
        kind = kind_of(value)
        return None if kind is None else kind(value)
    except Exception as error:
        return f"{type(value).__name__} ({type(error).__name__}: {error})"


def kind_of(value: Any) -> Line | None:
    """What writes the line for `value`; by its real type alone."""
    if is_tensor(value):
        return tensor_line
    if is_module(value):
        return module_line
    kind = type(value)
    for base in kind.__mro__:
        line = _BY_NAME.get((base.__module__.partition(".")[0], base.__name__))
        if line is not None:
            return line
    if _has_generated_repr(kind):
        return _dataclass_line
    return None


# Tensors ------------------------------------------------------------------------------------------


@unseen
def tensor_line(tensor: Any) -> str:
    """`f32[8, 128, 768] cuda:0 grad`; of one number on the CPU, that number as well."""
    words = [_prefix(tensor) + _layout(tensor), str(device_of(tensor))]
    if type(tensor).__name__ == "DTensor" and is_of_torch(tensor):
        words.append(_placement(tensor))
    if read(tensor, "requires_grad"):
        words.append("grad")
    elif is_parameter(tensor):
        words.append("frozen")
    if call(tensor, "is_inference"):
        words.append("inference")
    text = " ".join(words)
    value = _only_number(tensor)
    return text if value is None else f"{text} = {value}"


def _prefix(tensor: Any) -> str:
    name = type(tensor).__name__
    if name == "UninitializedBuffer" or name == "UninitializedParameter":
        return "uninitialised "
    return "" if name == "Tensor" else f"{name} "


def _layout(tensor: Any) -> str:
    torch = sys.modules["torch"]
    dtype = short_dtype(read(tensor, "dtype"))
    shape = shape_of(tensor)
    if shape is None and is_lazy(tensor):
        return dtype
    if shape is None:
        return f"{dtype}[{_without_shape(tensor)}"
    text = f"{dtype}{_sizes(shape)}"
    if read(tensor, "is_nested"):
        return f"{text} nested"
    if plain.handles_itself(tensor) and not is_of_torch(tensor):
        return text
    layout = read(tensor, "layout")
    if layout is torch.sparse_coo or layout in compressed_layouts():
        return f"{text} {str(layout).removeprefix('torch.')} nnz {call(tensor, '_nnz'):,}"
    if read(tensor, "is_quantized"):
        return f"{text} {_quantisation(tensor)}"
    return text


def _sizes(shape: tuple[Any, ...]) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"


def _without_shape(tensor: Any) -> str:
    if not read(tensor, "is_nested"):
        return "shape untold]"
    return f"{call(tensor, 'size', 0)} tensors] nested"


def _quantisation(tensor: Any) -> str:
    scheme = str(call(tensor, "qscheme")).removeprefix("torch.")
    if scheme == "per_tensor_affine":
        return f"scale {call(tensor, 'q_scale'):.3g} zero {call(tensor, 'q_zero_point')}"
    return scheme


def _placement(tensor: Any) -> str:
    placements = ", ".join(str(placement) for placement in tensor.placements)
    local = tensor._local_tensor
    return f"{placements}, local {_sizes(tuple(local.shape))}"


def _only_number(tensor: Any) -> str | None:
    torch = sys.modules["torch"]
    shape = shape_of(tensor)
    if shape is None or shape or not plain.is_on_cpu(tensor):
        return None
    if read(tensor, "is_quantized") or read(tensor, "layout") is not torch.strided:
        return None
    if torch._C._functorch.maybe_current_level() is not None or torch._C._get_tracing_state():
        return None
    found = call(call(tensor, "detach"), "item")
    return plain.element(found) if type(found) is int else plain.number(found)


# Modules ------------------------------------------------------------------------------------------


def module_line(module: Any) -> str:
    """`Block 7,077,888 parameters f32 cpu train`."""
    words = [type(module).__name__]
    settings = settings_of(module)
    if settings:
        words[0] += f"({settings})"
    count, lazy, dtypes, devices, more = size_of(module)
    if count or lazy:
        counts = [f"{'over ' if more else ''}{count:,}"] if count else []
        counts += [f"{lazy} uninitialised"] if lazy else []
        words.append(f"{' and '.join(counts)} parameters")
        words += [_one_of(dtypes), _one_of(devices)]
    return " ".join([*words, _mode(module)])


def training_of(module: Any) -> bool | None:
    """Whether it is in training mode; None where it doesn't tell."""
    held = held_by(module)
    if "training" in held:
        return bool(held["training"])
    scripted = held.get("_c")  # TorchScript's half that isn't Python, which has the flag then
    if scripted is None or not issubclass(type(scripted), sys.modules["torch"]._C.ScriptModule):
        return None
    return bool(scripted.getattr("training")) if scripted.hasattr("training") else False  # frozen


def _mode(module: Any) -> str:
    training = training_of(module)
    if training is None:
        return "mode untold" if "_modules" in held_by(module) else "before Module.__init__"
    return "train" if training else "eval"


#: What torch's own layers are made with, as their `extra_repr` has it; that may be the program's.
_SETTINGS = (
    "in_features",
    "out_features",
    "in_channels",
    "out_channels",
    "kernel_size",
    "num_embeddings",
    "embedding_dim",
    "num_features",
    "normalized_shape",
    "embed_dim",
    "num_heads",
    "input_size",
    "hidden_size",
    "p",
)


def settings_of(module: Any) -> str:
    """`3, 8` of Linear(3, 8): the plain numbers that a layer of torch's was made with."""
    if not type(module).__module__.startswith("torch."):
        return ""
    held = held_by(module)
    found = [(name, held[name]) for name in _SETTINGS if name in held]
    return ", ".join(
        f"{value}" if name in _SETTINGS[:4] else f"{name}={value}"
        for name, value in found
        if issubclass(type(value), (int, float, tuple))
    )


@unseen
def size_of(module: Any) -> tuple[int, int, list[str], list[str], bool]:
    """Elements of all parameters, how many have no shape yet, their dtypes and devices.

    The last says whether the model is larger than what was walked over.
    """
    count = lazy = 0
    dtypes: dict[Any, None] = {}
    devices: dict[Any, None] = {}
    seen: set[int] = set()
    walk = modules_in(module)
    for _, current in islice(walk, _MODULES):
        for _, parameter in tensors_of(current, "_parameters"):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            if is_lazy(parameter):
                lazy += 1
            else:
                count += elements_of(parameter)
            dtypes[read(parameter, "dtype")] = None
            devices[device_of(parameter)] = None
    more = next(walk, None) is not None
    return count, lazy, [short_dtype(item) for item in dtypes], [*map(str, devices)], more


def _one_of(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "/".join(sorted(names)[:3])


# The rest -----------------------------------------------------------------------------------------


def _array_line(array: Any) -> str:
    numpy = sys.modules["numpy"].ndarray
    shape, dtype = numpy.shape.__get__(array), numpy.dtype.__get__(array)
    name = type(array).__name__
    kind = "" if name == "ndarray" else f"{name} "
    text = f"{kind}{short_dtype(dtype)}{_sizes(shape)} numpy"
    if shape != () or dtype.kind not in "biufc":
        return text
    found = numpy.item(array)
    return f"{text} = {plain.element(found) if type(found) is int else plain.number(found)}"


def _storage_line(storage: Any) -> str:
    untyped = held_by(storage).get("_untyped_storage", storage)
    base = sys.modules["torch"]._C.StorageBase
    size, device = base.nbytes(untyped), base.device.__get__(untyped)
    return f"{type(storage).__name__} {size:,} bytes {device}"


def _image_line(image: Any) -> str:
    held = held_by(image)
    width, height = held.get("_size") or (0, 0)
    return f"{type(image).__name__} {held.get('_mode') or held.get('mode')} {width}×{height}"


def _packed_line(packed: Any) -> str:
    data, sizes = tuple.__getitem__(packed, 0), tuple.__getitem__(packed, 1)
    steps = elements_of(sizes)
    batch = "" if not steps else f", batch {int(call(sizes, 'select', 0, 0).item())}"
    return f"PackedSequence {_inner(data)}, {steps} steps{batch}"


def _mapping_line(value: Any) -> str:
    return _named_line(value, items_of(value))


def _cache_line(cache: Any) -> str:
    layers = held_by(cache).get("layers")
    tensors = [tensor for layer in layers or () for tensor in _tensors_in(layer)]
    count = len(layers) if layers is not None and issubclass(type(layers), list) else 0
    size = sum(elements_of(item) * read(item, "dtype").itemsize for item in tensors)
    first = f", each {_inner(tensors[0])}" if tensors else ", empty"
    bytes_of = f", {size_in_words(size)}" if tensors else ""
    return f"{type(cache).__name__} {count} layers{first}{bytes_of}"


def _tensors_in(layer: Any) -> list[Any]:
    return [value for value in held_by(layer).values() if is_tensor(value)]


def _dataclass_line(value: Any) -> str:
    return _named_line(value, attributes_of(value))


def _named_line(value: Any, items: list[tuple[str, Any]]) -> str:
    told = [f"{name}: {_inner(item)}" for name, item in items[:_NAMED]]
    more = [f"{len(items) - _NAMED} more"] if len(items) > _NAMED else []
    return f"{type(value).__name__} {{{', '.join(told + more)}}}"


def items_of(value: Any) -> list[tuple[str, Any]]:
    """The items of a BatchEncoding or a ModelOutput, past what their classes do on the way."""
    source = value if issubclass(type(value), dict) else held_by(value).get("data", {})
    if issubclass(type(source), OrderedDict):
        return [(str(key), item) for key, item in OrderedDict.items(source)]
    return [(str(key), item) for key, item in dict.items(source)]


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """The attributes in an object itself: of a dataclass its fields first, also those in slots."""
    held = held_by(value)
    fields = getattr(type(value), "__dataclass_fields__", {})
    found = {
        name: item
        for name in fields
        for item in ([held[name]] if name in held else _in_slot(value, name))
    }
    return [*found.items(), *((name, item) for name, item in held.items() if name not in found)]


def _in_slot(value: Any, name: str) -> list[Any]:
    """What is in a slot of this name, if there is one and something is in it."""
    for base in type(value).__mro__:
        slot = vars(base).get(name)
        if isinstance(slot, MemberDescriptorType):
            try:
                return [slot.__get__(value)]
            except AttributeError:
                return []
    return []


def _inner(value: Any) -> str:
    """A value within another one's line; of what may hold that one in turn, the type."""
    line = kind_of(value)
    if line in (_mapping_line, _dataclass_line):
        return type(value).__name__
    if line is not None:
        return line(value)
    kind = type(value)
    if value is None or kind in (bool, int, float):
        return plain.number(value)
    if kind is str:
        return repr(value if len(value) < 20 else f"{value[:17]}...")
    if kind in (list, tuple, dict, set):
        return f"{kind.__name__} of {len(value)}"
    return kind.__name__


def _has_generated_repr(kind: type) -> bool:
    """Whether it is a dataclass whose `__repr__` would print all numbers of the tensors in it."""
    if "__dataclass_fields__" not in vars(kind):
        return False
    # What guards it against recursion is dataclasses' own up to Python 3.12, reprlib's since.
    guard = kind.__repr__
    code = getattr(guard, "__code__", None)
    if code is None or code.co_filename not in (dataclasses.__file__, reprlib.__file__):
        return False
    cells = dict(zip(code.co_freevars, guard.__closure__ or (), strict=True))
    inner = cells["user_function"].cell_contents if "user_function" in cells else None
    return getattr(getattr(inner, "__code__", None), "co_filename", None) == "<string>"


#: (top package, class): the classes are known by name, since nothing is imported for this.
_BY_NAME: dict[tuple[str, str], Line] = {
    ("numpy", "ndarray"): _array_line,
    ("torch", "UntypedStorage"): _storage_line,
    ("torch", "TypedStorage"): _storage_line,
    ("torch", "PackedSequence"): _packed_line,
    ("PIL", "Image"): _image_line,
    ("transformers", "BatchEncoding"): _mapping_line,
    ("transformers", "BatchFeature"): _mapping_line,
    ("transformers", "ModelOutput"): _mapping_line,
    ("transformers", "Cache"): _cache_line,
}


def is_storage(value: Any) -> bool:
    """Whether it is a storage, which is never expanded: an item of it is one byte."""
    return kind_of(value) is _storage_line


def is_array(value: Any) -> bool:
    """Whether it is an array of numpy's."""
    return kind_of(value) is _array_line


def is_mapping(value: Any) -> bool:
    """Whether what is in it has keys, not attributes."""
    return kind_of(value) is _mapping_line

"""Where programs have weights put on a device, other than by `Tensor.to`.

`Tensor.cuda`, `Tensor.copy_` into a parameter that is there already (`load_state_dict`), storages
(`torch.load` with a `map_location`), and safetensors' files that are opened for a device.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

#: Gives a tensor of a checkpoint on a device, in a dtype (None: its own); None to load it plainly.
Taking = Callable[[Any, Any, Any], Any]


def replacements(torch: Any, serves: Callable[[Any], bool], take: Taking) -> Iterator[Any]:
    """What is replaced, by which name, by what: (owner, name, function)."""
    yield torch.Tensor, "cuda", _cuda(torch, torch.Tensor.cuda, serves, take)
    yield torch.Tensor, "copy_", _copy(torch.Tensor.copy_, serves, take)
    yield torch.UntypedStorage, "to", _storage(torch, torch.UntypedStorage.to, serves, take)


def replacements_of_files(safetensors: Any) -> Iterator[Any]:
    """The same in safetensors, where files are opened for a device."""
    file = safetensors.safe_open
    yield file, "get_tensor", _tensor_of_file(file.get_tensor)
    if hasattr(file, "get_tensors"):
        yield file, "get_tensors", _tensors_of_file(file.get_tensors)


def goes_to(where: Any, means: Callable[[Any], bool]) -> bool:
    """Whether a `map_location` puts all that is loaded on a device that weights are kept on."""
    torch: Any = sys.modules["torch"]
    if not isinstance(where, (str, torch.device)):
        return False
    device = _device(torch, where)
    return device is not None and device.type != "cpu" and means(device)


def _device(torch: Any, named: Any) -> Any:
    """None if there is no such device, which torch says better."""
    try:
        return torch.device("cuda", named) if isinstance(named, int) else torch.device(named)
    except (RuntimeError, TypeError):
        return None


def _cuda(torch: Any, original: Any, serves: Callable[[Any], bool], take: Taking) -> Any:
    @functools.wraps(original)
    def cuda(tensor: Any, device: Any = None, *arguments: Any, **options: Any) -> Any:
        found = None
        if len(arguments) < 2 and "memory_format" not in options:
            where = _device(torch, "cuda" if device is None else device)
            if where is not None and where.type == "cuda" and serves(where):
                found = take(tensor, where, None)
        return original(tensor, device, *arguments, **options) if found is None else found

    return cuda


def _copy(original: Any, serves: Callable[[Any], bool], take: Taking) -> Any:
    @functools.wraps(original)
    def copy_(tensor: Any, source: Any, *arguments: Any, **options: Any) -> Any:
        device = getattr(tensor, "device", None)
        if device is not None and serves(device) and not tensor.is_meta:
            found = take(source, device, tensor.dtype)
            source = source if found is None else found
        return original(tensor, source, *arguments, **options)

    return copy_


def _storage(torch: Any, original: Any, serves: Callable[[Any], bool], take: Taking) -> Any:
    @functools.wraps(original)
    def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
        where = _device(torch, device)
        if where is not None and serves(where) and storage.device.type == "cpu":
            found = take(torch.empty(0, dtype=torch.uint8).set_(storage), where, None)
            if found is not None:
                return found.untyped_storage()
        return original(storage, device=device, non_blocking=non_blocking)

    return to


def _tensor_of_file(original: Any) -> Any:
    """A slice goes through `Tensor.to`, where `get_tensor` reads into pinned memory (0.8)."""

    @functools.wraps(original)
    def get_tensor(file: Any, name: str) -> Any:
        try:
            return file.get_slice(name)[...]
        except Exception:  # of whatever kind: that says better what is wrong
            return original(file, name)

    return get_tensor


def _tensors_of_file(original: Any) -> Any:
    @functools.wraps(original)
    def get_tensors(file: Any) -> Any:
        return {name: file.get_tensor(name) for name in file.offset_keys()}

    return get_tensors

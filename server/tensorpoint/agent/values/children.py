"""What is below a tensor, an array, a container and a module.

Curated: a tensor has some 80 attributes that are views of itself (`T`, `data`, `mT`, ...), each
with as many again; a module has 47. What matters is listed, the rest stays reachable under "raw".
What costs something is lazy: shown when the client asks.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any, TypeGuard

from .. import debugger_files
from ..tensors import unseen, version_of
from . import figures, graph, words
from .devices import Unavailable
from .kinds import (
    attributes_of,
    is_array,
    is_mapping,
    is_storage,
    items_of,
    kind_of,
    settings_of,
    training_of,
)
from .known import Known
from .nodes import Child, Node, Page, is_node, leaf, on_request
from .origin import Place, definition, maker, unplaced
from .pages import as_tensor, is_long, sequence_node, values_node
from .plain import (
    Untold,
    call,
    device_of,
    elements_of,
    handles_itself,
    held_by,
    is_lazy,
    is_module,
    is_parameter,
    is_tensor,
    number,
    read,
    shape_of,
    size_in_words,
)
from .walks import TABLES, modules_below

#: Attributes of torch's modules that are shown as something better.
_TABLES = frozenset({"_parameters", "_buffers", "_modules", "training"})


class Children:
    """Lists what is below a value."""

    def __init__(self, known: Known) -> None:
        self._known = known

    def of(
        self,
        value: Any,
        page: Page,
        frame: FrameType | None = None,
        neighbours: Sequence[tuple[str, Any]] = (),
    ) -> Any:
        """The children of `value` as seen from a frame, or None for what isn't ours.

        `neighbours` are values that may share its memory.
        """
        if is_node(value):
            return [] if value.children is None else value.children(page)
        if is_tensor(value):
            return self._of_tensor(value, frame, neighbours)
        if is_module(value):
            return self._of_module(value)
        if is_array(value):
            return _of_array(value)
        if is_storage(value):
            return []
        if is_long(value):
            node = sequence_node(value)
            assert node.children is not None
            return node.children(page)
        if kind_of(value) is not None and not issubclass(type(value), (list, tuple)):
            return _of_container(value)
        return None

    # Tensors -------------------------------------------------------------------------------------

    def _of_tensor(
        self, tensor: Any, frame: FrameType | None, neighbours: Sequence[tuple[str, Any]]
    ) -> list[Child]:
        if is_lazy(tensor):
            return [Child("state", leaf("its shape is set by the first call of its module"))]
        return [
            *_metadata(tensor),
            Child("statistics", on_request(lambda: statistics_node(tensor))),
            Child("histogram", on_request(lambda: histogram_node(tensor))),
            *self._gradient(tensor),
            *_graph(tensor, self._known),
            *self._origin(tensor, frame),
            *_version(tensor),
            *_storage(tensor, neighbours),
            Child("values", values_node(tensor), ""),
            Child("raw", raw_node(tensor), ""),
        ]

    def _gradient(self, tensor: Any) -> list[Child]:
        if not read(tensor, "requires_grad"):
            return []
        if not (read(tensor, "is_leaf") or read(tensor, "retains_grad")):
            return [Child("grad", leaf("not kept: it is no leaf (retain_grad() keeps it)"))]
        rows = [Child("grad", read(tensor, "grad"), ".grad")]
        fact = self._known.parameter(tensor)
        if fact is not None and fact.step is not None:
            norm = "not finite" if fact.gradient_norm is None else number(fact.gradient_norm)
            rows.append(Child("recorded gradient", leaf(f"‖grad‖ {norm} in step {fact.step}")))
        return rows

    def _origin(self, tensor: Any, frame: FrameType | None) -> list[Child]:
        if is_parameter(tensor):
            defined = definition(tensor, self._known)
            return [] if defined is None else [Child("defined at", place_node(defined))]
        place = maker(tensor, self._known, frame)
        text = leaf(unplaced(tensor, self._known)) if place is None else place_node(place)
        return [Child("made by", text)]

    # Modules -------------------------------------------------------------------------------------

    def _of_module(self, module: Any) -> list[Child]:
        held = held_by(module)
        training = training_of(module)
        rows = [] if training is None else [Child("training", leaf(training), ".training")]
        settings = settings_of(module)
        if settings:
            rows.append(Child("made with", leaf(settings)))
        fact = self._known.layer(module)
        if fact is not None:
            outputs = ", ".join(
                f"{item.name}: {item.dtype}{list(item.shape)}" for item in fact.outputs
            )
            rows.append(Child("last output", leaf(f"{outputs} in step {fact.step}")))
        config = held.get("config")
        if config is not None:
            rows.append(Child("config", config, ".config"))
        rows += [_step_into(module, name, child) for name, child in modules_below(module)]
        for table in TABLES:
            rows += [
                Child(name, value, f".{name}" if name.isidentifier() else None)
                for name, value in (held.get(table) or {}).items()
            ]
        own = {
            name: value
            for name, value in held.items()
            if name not in _TABLES and not name.startswith("_") and name != "config"
        }
        rows += [Child(name, value, f".{name}") for name, value in own.items()]
        hooks = _hooks_of(held)
        if hooks:
            rows.append(Child("hooks", _list_node(hooks)))
        rows.append(Child("raw", raw_node(module), ""))
        return rows


def _step_into(module: Any, name: str, child: Any) -> Child:
    if name.isidentifier():
        return Child(name, child, f".{name}")
    if name.isdecimal():
        return Child(f"[{name}]", child, f"[{name}]")
    return Child(name, child, f".get_submodule({name!r})")


def _hooks_of(held: dict[str, Any]) -> list[Child]:
    return [
        Child(table.strip("_").removesuffix("_hooks"), hook)
        for table, hooks in held.items()
        if table.endswith("_hooks") and issubclass(type(hooks), dict)
        for hook in hooks.values()
    ]


def _list_node(rows: list[Child]) -> Node:
    return Node(f"{len(rows)}", "", lambda _: rows)


# Parts of a tensor --------------------------------------------------------------------------------


def _metadata(tensor: Any) -> list[Child]:
    return [
        Child("shape", leaf(_sizes(tensor)), ".shape"),
        Child("dtype", leaf(read(tensor, "dtype")), ".dtype"),
        Child("device", leaf(device_of(tensor)), ".device"),
        Child("layout", leaf(_layout(tensor))),
    ]


def _sizes(tensor: Any) -> str:
    shape, elements = shape_of(tensor), elements_of(tensor)
    if shape is None:
        return f"of several sizes, {elements:,} elements" if read(tensor, "is_nested") else "untold"
    sizes = f"[{', '.join(map(str, shape))}]"
    is_known = all(type(size) is int for size in shape)
    return f"{sizes}, {elements:,} elements" if is_known else sizes


@unseen
def _layout(tensor: Any) -> str:
    try:
        text = str(read(tensor, "layout")).removeprefix("torch.")
    except Untold as error:
        return str(error)
    try:
        strides = call(tensor, "stride")
        kind = "contiguous" if call(tensor, "is_contiguous") else "not contiguous"
        offset = call(tensor, "storage_offset")
    except RuntimeError:  # sparse and nested ones have none
        return text
    return f"{text}, strides {list(strides)}, {kind}" + (f", offset {offset}" if offset else "")


def _version(tensor: Any) -> list[Child]:
    version = version_of(tensor)
    times = (
        "not tracked: an inference tensor" if version is None else f"{version} (in-place writes)"
    )
    return [Child("version", leaf(times), "._version" if version is not None else None)]


def _graph(tensor: Any, known: Known) -> list[Child]:
    function = read(tensor, "grad_fn")
    return (
        [] if function is None else [Child("grad_fn", graph.node_of(function, known), ".grad_fn")]
    )


@unseen
def _storage(tensor: Any, neighbours: Sequence[tuple[str, Any]]) -> list[Child]:
    if handles_itself(tensor):  # what its storage says is for show
        return []
    try:
        storage = call(tensor, "untyped_storage")
        key, size = storage._cdata, storage.nbytes()
    except RuntimeError:  # sparse, nested, wrapped: no memory of its own
        return []
    sharing = [
        name
        for name, other in neighbours
        if other is not tensor and is_tensor(other) and _storage_key(other) == key
    ]
    shared = f", shared with {', '.join(sharing[:5])}" if sharing else ""
    return [Child("storage", leaf(f"{size_in_words(size)}{shared}"))]


@unseen
def _storage_key(tensor: Any) -> int | None:
    try:
        return call(tensor, "untyped_storage")._cdata
    except RuntimeError:
        return None


def statistics_node(value: Any) -> Node:
    """Mean, deviation, quantiles, counts; one more look at the tensor."""
    tensor = as_tensor(value)
    found = figures.all_figures_of(tensor)
    if isinstance(found, Unavailable):
        return leaf(found.reason)
    rows = [
        Child("mean", leaf(number(found.mean))),
        Child("std", leaf(number(found.std))),
        Child("min", leaf(number(found.low))),
        Child("max", leaf(number(found.high))),
        *(
            Child(f"quantile {share:g}", leaf(number(value)))
            for share, value in zip(figures.QUANTILES, found.quantiles)
        ),
        Child("zeros", leaf(f"{found.zeros:,} ({found.zeros / found.looked_at:.1%})")),
        Child("NaN", leaf(f"{found.nan:,}")),
        Child("+Inf", leaf(f"{found.posinf:,}")),
        Child("-Inf", leaf(f"{found.neginf:,}")),
    ]
    if found.first is not None:
        rows.append(Child("first not finite", leaf(list(found.first))))
    if found.sampled:
        rows.append(Child("looked at", leaf(f"{found.looked_at:,} of {found.elements:,} elements")))
    return Node(words.in_short(found), "", lambda _: rows)


def histogram_node(value: Any) -> Node:
    """A histogram in one line, and its bins below."""
    found = figures.all_figures_of(as_tensor(value))
    if isinstance(found, Unavailable):
        return leaf(found.reason)
    if not found.histogram:
        return leaf("no finite element")
    width = (found.high - found.low) / len(found.histogram)
    total = max(1, sum(found.histogram))
    rows = [
        Child(
            f"{number(found.low + width * at)} to {number(found.low + width * (at + 1))}",
            leaf(f"{count / total:.1%}"),
        )
        for at, count in enumerate(found.histogram)
    ]
    line = words.sparkline(found.histogram)
    return Node(f"{number(found.low)} {line} {number(found.high)}", "", lambda _: rows)


def place_node(place: Place) -> Node:
    """A place in the source, which clients that can will jump to."""
    file = place.file if place.is_mapped else debugger_files.client_file(place.file)
    more = {"valueLocationReference": [file, place.line]}
    return Node(place.text, "", None, more=more)


class Raw:
    """A value as pydevd lists it: all its attributes."""

    def __init__(self, value: Any) -> None:
        self.value = value


def is_raw(value: object) -> TypeGuard[Raw]:
    """By its real type, as `is_node`."""
    return issubclass(type(value), Raw)


def raw_node(value: Any) -> Node:
    """All attributes, as Python has them; those of an object's own dictionary for a module."""

    def children(_: Page) -> Sequence[Child]:
        if is_module(value):
            return [Child(name, item, f".{name}") for name, item in held_by(value).items()]
        return [Child("attributes", Raw(value), "")]

    return Node("all attributes", "", children)


def _of_array(array: Any) -> list[Child]:
    numpy = sys.modules["numpy"].ndarray
    tensor = as_tensor(array)
    rows = [
        Child("shape", leaf(list(numpy.shape.__get__(array))), ".shape"),
        Child("dtype", leaf(numpy.dtype.__get__(array)), ".dtype"),
        Child("strides", leaf(list(numpy.strides.__get__(array))), ".strides"),
        Child("bytes", leaf(size_in_words(numpy.nbytes.__get__(array))), ".nbytes"),
    ]
    if tensor is not None:
        rows += [
            Child("statistics", on_request(lambda: statistics_node(array))),
            Child("histogram", on_request(lambda: histogram_node(array))),
            Child("values", values_node(tensor), ""),
        ]
    rows.append(Child("raw", raw_node(array), ""))
    return rows


def _of_container(value: Any) -> list[Child]:
    if is_mapping(value):
        return [Child(name, item, f"[{name!r}]") for name, item in items_of(value)]
    return [Child(name, item, f".{name}") for name, item in attributes_of(value)]

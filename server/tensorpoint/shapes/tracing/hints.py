"""Hints from what was seen: one text for all executions of a place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet

from ...wire.shapes import Execution, ShapeHint, Span
from .expressions import symbols_of
from .probing import Probed, Seen
from .recorder import Path
from .rewriting import Site, Source
from .snapshots import DTYPES, Snapshot, form_of, has_tensor, render

_MOST_ALTERNATIVES = 4


def hints_of(
    probed: Probed,
    source: Source,
    sites: Sequence[Site],
    agreed: AbstractSet[int] = frozenset(),
) -> Iterator[ShapeHint]:
    """A hint for each site whose shapes are known and say something."""
    constants = _constants(probed)
    notes = {source.in_characters(place): said for place, said in probed.runs[0].notes.items()}
    by_line = {place.line: said for place, said in notes.items()}
    for number, seen in sorted(probed.seen.items()):
        site = sites[number]
        if not any(_says_something(each.snapshot, each.dims) for each in seen):
            continue
        dtype, shape = _single(seen)
        used = {dim for each in seen for dim in each.dims if dim in constants}
        yield ShapeHint(
            span=site.span,
            name=site.name,
            kind=site.kind,
            text=text_of(seen),
            dtype=dtype,
            shape=shape,
            origin="symbolic" if number in agreed else "probed",
            count=sum(each.count for each in seen),
            executions=tuple(
                Execution(*_single([each]), call_path=path_text(each.path), count=each.count or 1)
                for each in seen
            ),
            parameters=seen[0].call.parameters if seen[0].call else None,
            flops=seen[0].call.flops if seen[0].call else None,
            bytes=_bytes(seen[0].snapshot),
            notes=notes.get(site.span, ())
            or (by_line.get(site.span.line, ()) if site.kind in ("target", "return") else ()),
            constants=tuple(f"{dim} = {constants[dim]}" for dim in sorted(used, key=int)),
        )


def merged(hints: Sequence[ShapeHint]) -> list[ShapeHint]:
    """Hints of several targets of a file, each place once."""
    found: dict[tuple[Span, str], ShapeHint] = {}
    for hint in hints:
        key = (hint.span, hint.kind)
        if key not in found:
            found[key] = hint
    return sorted(
        found.values(), key=lambda h: (h.span.line, h.span.col, -h.span.end_line, -h.span.end_col)
    )


def text_of(seen: Sequence[Seen]) -> str:
    """All executions in one text."""
    if len({form_of(each.snapshot) for each in seen}) == 1:
        columns = iter([_alternatives(dims) for dims in zip(*(each.dims for each in seen))])
        text = render(seen[0].snapshot, lambda: next(columns))
    elif len({(each.snapshot[0], each.dims) for each in seen}) == 1 and seen[0].snapshot[0] == "T":
        text = f"{_single(seen)[0]}[{', '.join(seen[0].dims)}]"  # of several dtypes
    else:
        texts = list(dict.fromkeys(_text(each) for each in seen))
        text = " | ".join(texts[:3]) + (f" (+{len(texts) - 3} shapes)" if len(texts) > 3 else "")
    count = sum(each.count for each in seen)
    return text if len(seen) == 1 or count == 1 else f"{text} ×{count}"


def _text(seen: Seen) -> str:
    dims = iter(seen.dims)
    return render(seen.snapshot, lambda: next(dims))


def _alternatives(dims: Sequence[str]) -> str:
    distinct = list(dict.fromkeys(dims))
    if len(distinct) <= _MOST_ALTERNATIVES:
        return "|".join(distinct)
    return "|".join([*distinct[:2], "…", distinct[-1]])


def _single(seen: Sequence[Seen]) -> tuple[str, tuple[str, ...]]:
    """Dtype and sizes, where it is one tensor or integer in all executions."""
    forms = {form_of(each.snapshot) for each in seen}
    kinds = {each.snapshot[0] for each in seen}
    if kinds == {"I"}:
        return "int", (_all([each.dims[0] for each in seen]),)
    ranks = {len(each.dims) for each in seen}
    if kinds != {"T"} or len(ranks) != 1:
        return "", ()
    dtypes = dict.fromkeys(each.snapshot[2] for each in seen)
    shape = tuple(_all(dims) for dims in zip(*(each.dims for each in seen)))
    return "|".join(dtypes) if len(forms) > 1 else seen[0].snapshot[2], shape


def _all(dims: Sequence[str]) -> str:
    return "|".join(dict.fromkeys(dims))


def _says_something(snapshot: Snapshot, dims: Sequence[str]) -> bool:
    """Integers that don't depend on the input say nothing."""
    return has_tensor(snapshot) or any(symbols_of(dim) for dim in dims)


def _bytes(snapshot: Snapshot | None) -> int | None:
    """Of the tensors in it, at the sizes of the first run."""
    if snapshot is None or snapshot[0] == "I":
        return None
    if snapshot[0] == "T":
        return math.prod(snapshot[1]) * DTYPES[snapshot[2]].itemsize
    sizes = [_bytes(item) for item in snapshot[-1]]
    return sum(size for size in sizes if size) or None


def path_text(path: Path) -> str:
    """`Net.forward:12 > Block.forward:4`."""
    return " > ".join(f"{name}:{line}" for name, line in path)


def _constants(probed: Probed) -> dict[str, str]:
    """Sizes that have one name in the configuration, or among the attributes of the module."""
    module = probed.target.module
    holders = [getattr(module, name, None) for name in ("config", "cfg", "args", "hparams")]
    found: dict[str, str] = {}
    twice: set[str] = set()
    for holder in [*holders, module]:
        fields = getattr(holder, "__dict__", None)
        if not isinstance(fields, dict) or found:
            continue
        for name, value in fields.items():
            if type(value) is int and value >= 8 and not name.startswith("_"):
                twice |= {str(value)} & found.keys()
                found.setdefault(str(value), name)
    return {value: name for value, name in found.items() if value not in twice}

"""Shapes that are known before the program runs: what a tracer answers, what hints are made of.

Lines count from 1 and columns from 0, in characters of the source, as Python's `ast` has them (but
for its columns, which are bytes). Dims are Python expressions over the symbols, with `ceil`,
`floor`, `min` and `max`; alternatives are separated by `|`. Dtypes are short: `f32`, `i64`, `bool`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

#: What stands behind a shape: FX symbols and probes agree, probes alone, or a run of the program.
Origin = Literal["symbolic", "probed", "measured"]


@dataclass(frozen=True)
class Span:
    """A piece of a file. `end_col` is the column after its last character."""

    line: int
    col: int
    end_line: int
    end_col: int


@dataclass(frozen=True)
class KnownCall:
    """What is known of a call from outside of the file: from a project's settings or a debug run.

    `target` is a class, a function or `Class.method` of the file; "" for all. `inputs` is a
    specification, and `factory` the expression that makes the module, or `package.module:function`.
    """

    target: str
    #: `spec` or `last run`.
    origin: str
    inputs: str = ""
    factory: str = ""


@dataclass(frozen=True)
class ShapeRequest:
    """What to trace: the text of a file as it stands in the editor, saved or not.

    `specs` are input specifications (`x: f32[B, 3, H, W]`) that go before those found in the file;
    `symbolic` asks for the FX pass and the diagnostics too, which take longer than probes.
    """

    path: str
    text: str
    class_name: str | None = None
    specs: tuple[str, ...] = ()
    symbolic: bool = True
    #: In the place of a file: an installed class, `package.module:Class`, and a JSON file that its
    #: configuration class is made from.
    object: str = ""
    config: str = ""
    known: tuple[KnownCall, ...] = ()
    #: Plugins to load beside those of installed packages, `module:function`.
    plugins: tuple[str, ...] = ()
    #: Whether torch.compile is asked where it would break the graph, which takes seconds.
    breaks: bool = False
    #: Whether `specs` are of this file: what they name has to be there.
    own_specs: bool = False


@dataclass(frozen=True)
class TracedInput:
    """An argument of the traced call and where its shape comes from, in words."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    #: `spec`, `jaxtyping`, `last run`, `call`, `first use` or `repair`.
    origin: str


@dataclass(frozen=True)
class Execution:
    """One distinct shape that an expression had, and its way: `Net.forward:12 > B.forward:4`."""

    dtype: str
    shape: tuple[str, ...]
    call_path: str
    count: int = 1


@dataclass(frozen=True)
class ShapeHint:
    """The shape of the value of a name or an expression at `span`.

    `text` is the whole as it is shown (`f32[B, 64|128, ceil(H/2)]`, tuples and dicts in brackets of
    their own); `dtype` and `shape` are those of a single tensor, empty for other values. An integer
    that is a dim has the dtype `int` and one entry in `shape`.
    """

    span: Span
    name: str
    #: `target`, `expression`, `argument` or `return`.
    kind: str
    text: str
    dtype: str
    shape: tuple[str, ...]
    origin: Origin
    count: int
    executions: tuple[Execution, ...] = ()
    #: Constants that have a name in the configuration: `768 = hidden_size`.
    constants: tuple[str, ...] = ()
    #: Of a call of a module: elements of its parameters, floating point operations at the sizes of
    #: `ShapeTable.sizes`, bytes of the value there. None where not known.
    parameters: int | None = None
    flops: int | None = None
    bytes: int | None = None
    #: What plugins have attached to the call.
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Related:
    """A place that has to do with a diagnostic, such as the line that fixed a dim."""

    path: str
    span: Span
    message: str


@dataclass(frozen=True)
class ShapeDiagnostic:
    """A fault that a run on `witness` (symbol to size) has confirmed, or a fact worth a hint."""

    span: Span
    severity: Literal["error", "warning", "information", "hint"]
    #: Stable and short, for filters: `shape-mismatch`, `dtype-mismatch`, `dead-branch`, ...
    code: str
    message: str
    witness: dict[str, int] = field(default_factory=dict[str, int])
    related: tuple[Related, ...] = ()


@dataclass(frozen=True)
class TracedCall:
    """A traced class as a whole, for code lenses: what goes in and what comes out.

    `constructor` is the expression that builds the module in that file; `span` is the name in the
    `class` line, `forward` that of its `forward`.
    """

    qualname: str
    constructor: str
    span: Span
    forward: Span | None
    inputs: tuple[TracedInput, ...]
    output: str
    parameters: int | None
    flops: int | None
    assumptions: tuple[str, ...] = ()
    #: Sizes at which `flops` and bytes were counted.
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    #: What the specification says of the sizes, as written and as SMT-LIB 2.
    limits: tuple[str, ...] = ()
    limits_smt: tuple[str, ...] = ()


@dataclass(frozen=True)
class Condition:
    """A condition on sizes that a call has met, which held at the sizes of the trace."""

    span: Span
    #: As SMT-LIB 2 over the symbols of the inputs, for people, and what holds on the other side.
    smt: str
    text: str
    opposite: str
    #: Whether the file's own code asked, and not torch.
    own: bool
    #: `TracedCall.qualname`.
    call: str = ""


@dataclass(frozen=True)
class Question:
    """What a tracer asks while it works: sizes at which conditions of a path are not met.

    `limits` and `path` are SMT-LIB 2; `base` are the sizes that went this path. Each of `wanted`
    has the places of the conditions that are not to hold, while the others before the last of them
    do. The answers are sizes in the same order, as near to `base` as they can be, None where there
    are none.
    """

    base: dict[str, int]
    limits: tuple[str, ...]
    path: tuple[str, ...]
    wanted: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ShapeTable:
    """All that is known of one file's shapes."""

    path: str
    calls: tuple[TracedCall, ...] = ()
    hints: tuple[ShapeHint, ...] = ()
    diagnostics: tuple[ShapeDiagnostic, ...] = ()
    #: Why classes of the file have no hints, in one sentence each.
    untraced: tuple[str, ...] = ()
    #: Files whose change makes this table stale.
    dependencies: tuple[str, ...] = ()
    seconds: float = 0.0
    #: What the sizes meet on their way.
    conditions: tuple[Condition, ...] = ()


def names_in(smt: str) -> set[str]:
    """The words of a condition in SMT-LIB 2, symbols among them."""
    return set(re.findall(r"[^\s()]+", smt))

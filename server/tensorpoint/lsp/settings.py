"""What a user can set, read from whatever a client sends; docs/lsp.md documents it.

The same names in VS Code's settings, in `workspace/configuration`, in `didChangeConfiguration` and
in `initializationOptions`: the section "tensorpoint", nested.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Literal, TypeVar, cast, get_type_hints

import msgspec

SECTION = "tensorpoint"

T = TypeVar("T")


@dataclass(frozen=True)
class Hints:
    """Which values get an inlay hint."""

    #: Behind the targets of assignments, loops and `with`.
    targets: bool = True
    #: Behind calls and operators within a line.
    expressions: bool = False
    arguments: bool = True
    returns: bool = False
    #: Integers that are dims: `T = x.size(1)`.
    integers: bool = True
    #: Also where a line leaves the shape of the name as it was: `x = relu(x)`.
    unchanged: bool = False


@dataclass(frozen=True)
class Shapes:
    """Shapes before the program runs."""

    enable: bool = True
    hints: Hints = field(default_factory=Hints)
    diagnostics: Literal["all", "errors", "off"] = "all"
    #: Above classes and functions: what goes in, what comes out, how large it is.
    code_lens: bool = True
    #: While a debugger has stopped: the values of the tensors of that function.
    inline_values: bool = True
    #: Input specifications for all files: `x: f32[B, 3, H, W]`.
    inputs: tuple[str, ...] = ()
    #: What says shapes that torch doesn't know, `module:function`.
    plugins: tuple[str, ...] = ()
    #: Milliseconds without an edit before a file is traced.
    delay: float = 150


@dataclass(frozen=True)
class Settings:
    """All that the server reads of the section."""

    #: The interpreter that has the program's packages; empty: found in the workspace.
    python: str = ""
    #: Whether code of the workspace may be run; nothing is traced else.
    trusted: bool = True
    shapes: Shapes = field(default_factory=Shapes)

    @property
    def traces(self) -> bool:
        """Whether files are traced at all."""
        return self.trusted and self.shapes.enable


#: Names in JSON that are not those of the fields.
_NAMES = {"codeLens": "code_lens", "inlineValues": "inline_values"}


def read(sent: Any, base: Settings | None = None) -> tuple[Settings, list[str]]:
    """Settings from JSON, above those of `base`; and what is wrong with it, each in a sentence.

    What is wrong is left at what `base` has, so that one slip does not take the others away. Names
    that are not ours are passed over: a section is the client's too.
    """
    errors: list[str] = []
    base = Settings() if base is None else base
    if sent is None:
        return base, errors
    return _read(base, sent, SECTION, errors), errors


def _read(base: T, sent: Any, path: str, errors: list[str]) -> T:
    if not isinstance(sent, dict):
        errors.append(f'"{path}" must be an object, not {_shown(sent)}')
        return base
    kinds = get_type_hints(type(base))
    changes: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", sent).items():
        name = _NAMES.get(key, key)
        if name not in kinds or value is None:
            continue
        now = getattr(base, name)
        if is_dataclass(now):
            changes[name] = _read(now, value, f"{path}.{key}", errors)
            continue
        try:
            changes[name] = msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            errors.append(f'"{path}.{key}" is {_shown(value)}: {error}')
    return replace(cast("Any", base), **changes)


def _shown(value: Any) -> str:
    return msgspec.json.encode(value).decode()[:80]

"""What a program calls by itself: `tensorpoint.watch`, `tensorpoint.listen` and all with them.

All work is done by the agent (`agent.watching`, `agent.requests`), of which a process has one: it
is loaded as the debug adapter loads it, under the same private name, so that whoever comes second
finds it there. Here conditions are checked, with words and a place for what is wrong with them.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .agent.bootstrap import PRIVATE_NAME, load
from .conditions import ConditionError, parse
from .conditions.layer import check_expression, is_expression, split_name
from .conditions.plan import check

if TYPE_CHECKING:
    from .agent.watching import Watch
    from .wire import Stop
    from .wire.plan import LayerPhase

_LAYER = "layer:"
_Kind = Literal["condition", "layer"]
_loading = threading.Lock()


def watch(
    condition: str,
    /,
    *more: str,
    on: Literal["stop", "raise", "warn"] | Callable[[Stop], object] = "raise",
) -> Watch:
    """Watch tensors in a `with` statement, or in a function that this decorates.

    Each condition is one of the condition language (`nonfinite("*.mlp") and step > 100`), or
    `layer:PATH` for the entry of a layer. `on` says what happens where one turns true:

    - "raise": `TensorpointHit`, from the line that called the layer;
    - "warn": a `TensorpointWarning` at that line;
    - "stop": an attached debugger (debugpy) stops there;
    - a function: it is called with the `Stop`, on the thread of the hit. An exception of its own
      comes out as the cause of a `TensorpointHit`.

    Raises ValueError, with the place, if a condition is wrong, can't be watched or can't hold.
    """
    if not callable(on) and on not in ("stop", "raise", "warn"):
        raise ValueError(f'on must be "stop", "raise", "warn" or a function, not {on!r}')
    checked = [_check(text) for text in (condition, *more)]
    made: Watch = _agent("watching").Watch(checked, on)
    return made


def listen(
    endpoint: tuple[str, int] | int,
    /,
    *,
    in_process_debug_adapter: bool = False,
    on: str | Iterable[str] = ("nonfinite()",),
) -> tuple[str, int]:
    """`debugpy.listen` with tensorpoints: any DAP client that attaches stops at them.

    `on` has their conditions. A client that attaches through `tensorpoint dap` brings its own, and
    until it leaves only those count. Nothing is watched while no client is attached.

    Returns the address on which debugpy listens. Raises ValueError as `watch` does, and whatever
    `debugpy.listen` raises.
    """
    checked = [_check(text) for text in ((on,) if isinstance(on, str) else on)]
    import debugpy

    address = debugpy.listen(endpoint, in_process_debug_adapter=in_process_debug_adapter)
    tensorpoint = _agent("local").tensorpoint
    _agent("requests").running().stand_by(tuple(tensorpoint(*item) for item in checked))
    return address


def __getattr__(name: str) -> Any:
    """The names of the package that live in the agent, or in debugpy."""
    if name in ("TensorpointHit", "TensorpointWarning"):
        return getattr(_agent("hit"), name)
    if name == "Stop":
        return _agent("hit").Stop
    if name in ("breakpoint", "wait_for_client"):
        import debugpy

        return getattr(debugpy, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _agent(module: str) -> Any:
    with _loading:
        load(str(Path(__file__).resolve().parent))
    return importlib.import_module(f"{PRIVATE_NAME}.agent.{module}")


def _check(text: str) -> tuple[_Kind, str, str, LayerPhase]:
    """(kind, condition, module glob, phase of a layer) of what a user wrote."""
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"a condition is a text, such as 'nonfinite()', not {text!r}")
    if not text.strip().startswith(_LAYER):
        return "condition", _condition(text, "condition"), "", "forward"
    name, _, condition = text.strip().removeprefix(_LAYER).partition(" if ")
    try:
        layer = split_name(name)
        if is_expression(condition):
            condition = check_expression(condition, layer.phase)
            return "layer", condition, layer.module, layer.phase
    except ConditionError as error:
        raise _refused(error) from None
    condition = _condition(condition, "layer") if condition.strip() else ""
    return "layer", condition, layer.module, layer.phase


def _condition(text: str, kind: _Kind) -> str:
    try:
        return check(text, kind=kind).text
    except ImportError:  # no Z3, which is asked last: whether it can hold stays unknown
        return parse(text, need_metric=kind == "condition").text
    except ConditionError as error:
        raise _refused(error) from None


def _refused(error: ConditionError) -> ValueError:
    return ValueError(f"{error.message}\n{error.caret()}")

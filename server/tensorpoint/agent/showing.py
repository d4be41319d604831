"""What editors see of values, and data breakpoints on them: made when somebody first needs it.

Their modules are some 4,000 lines, and a program that never stops needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..conditions.metrics import ON_VALUES
from . import debugger_assign, debugger_values, debugger_words
from .attention_maps import AttentionMaps
from .debugger_words import Words
from .facts import Recorder
from .modules import Names
from .ops.operation import Line
from .rules import Rule
from .watches.base import Stop

if TYPE_CHECKING:
    from .data.watch import DataWatch
    from .values.measures import Measures
    from .values.requests import Requests
    from .values.rows import Rows
    from .values.setting import Setting


#: Which operation made a tensor, and at which line of the program.
MadeBy = Callable[[Any], tuple[str, Line] | None]


class Showing:
    """The view of values and those that share it."""

    def __init__(
        self,
        names: Names,
        recorder: Recorder,
        made_by: MadeBy,
        maps: AttentionMaps,
        stop: Stop,
        report: Callable[[str, Exception], None],
        tell: Callable[[str], None],
    ) -> None:
        self._names, self._recorder, self._made_by = names, recorder, made_by
        self._maps, self._stop = maps, stop
        self._report, self._tell = report, tell

    def install(self) -> None:
        """Put it in the debugger's place."""
        try:
            debugger_values.install(lambda: self._rows, self._forget, self._report)
            debugger_words.install(
                Words(
                    names=tuple(ON_VALUES),
                    functions=lambda: self._measures.functions,
                    summary=self._summary,
                    changed=self._changed,
                )
            )
            debugger_assign.install(lambda: self._setting)
        except debugger_values.Unknown as error:
            self._report("showing values (debugpy shows them by itself)", error)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request about values."""
        from .values.requests import Refused

        try:
            return self._requests.answer(request)
        except Refused as error:
            return {"error": str(error)}

    def set_element(self, place: Any, expression: str, value: str) -> bool:
        """Set an element of a tensor where `place` says what names mean; whether it was one."""
        return self._setting.set_expression(place, expression, value) is not None

    def watchable(self, place: Any, frame: FrameType | None, text: str) -> dict[str, Any]:
        """What a data breakpoint on an expression there would be set on, or why there is none."""
        from .data.lookup import NotWatchable

        try:
            return self._requests.watchable(place, frame, text)
        except NotWatchable as error:
            return {"error": str(error)}

    def after_fork(self) -> None:
        """In a forked child."""
        if "_data" in self.__dict__:
            self._data.after_fork()

    def arm(self, rules: Sequence[Rule]) -> DataWatch | None:
        """Arm data breakpoints; returns what has to hear of events, None if there is none."""
        if rules or "_data" in self.__dict__:
            self._data.arm(rules)
        return self._data if rules else None

    def on_write(self, func: Any, arguments: Any) -> None:
        """With precision "op": an operation has written into its arguments."""
        if "_data" in self.__dict__:
            self._data.on_operation(func, arguments)

    @cached_property
    def _rows(self) -> Rows:
        from .values.known import Known
        from .values.owners import Owners
        from .values.rows import Rows
        from .values.view import View

        owners, recorder = Owners(self._names.roots), self._recorder
        known = Known(owners, recorder.of_layer, recorder.of_parameter, self._made_by)
        return Rows(View(known))

    @cached_property
    def _measures(self) -> Measures:
        from .values.measures import Measures

        return Measures(self._rows.view.known)

    @cached_property
    def _setting(self) -> Setting:
        from .values.setting import Setting

        return Setting(self._rows.view, self._tell)

    @cached_property
    def _targets(self) -> Any:
        from .data.targets import Targets

        return Targets()

    @cached_property
    def _requests(self) -> Requests:
        from .values.requests import Requests

        return Requests(self._rows.view, self._recorder, self._targets, self._maps)

    @cached_property
    def _data(self) -> DataWatch:
        from .data.watch import DataWatch

        return DataWatch(self._names, self._stop, self._targets, self._tell)

    def _summary(self, value: Any) -> Any:
        text = self._rows.view.text(value, "watch")
        return value if text is None else text

    def _changed(self) -> None:
        if "_rows" in self.__dict__:
            self._rows.view.changed()

    def _forget(self) -> None:
        self._maps.go_on()
        if "_rows" in self.__dict__:
            self._rows.view.forget()

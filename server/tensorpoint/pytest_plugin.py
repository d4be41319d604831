"""A test fails where a tensorpoint fires: `pytest --tensorpoint CONDITION`, or a mark on a test.

    @pytest.mark.tensorpoint('nonfinite("encoder.*")')
    @pytest.mark.no_tensorpoint

The setup, the call and the teardown of a test are watched as by `tensorpoint.watch`. A hit that
does not come out of one, since code in between handles any exception, fails it at its end. In the
place of a traceback through torch the failure shows the report that `tensorpoint run` prints;
`--tb=long` and `--tb=native` keep the traceback and have the report below it.

Most tests know nothing of what one condition of the option names. So only if it has named no module
in any test is that said, at the end; of a mark it is a warning of its test.

pytest imports this in every run in whose environment Tensorpoint is installed: without a condition
it must do nothing, and import nothing.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

if TYPE_CHECKING:
    from tensorpoint import Stop, TensorpointHit

_MARK = "tensorpoint"
_NO_MARK = "no_tensorpoint"
#: Of each condition of the option that a test has looked for: why it named no module, or "".
_outcomes = pytest.StashKey[dict[str, str]]()
#: Of a test: the first hit in the phase that it is in.
_hits = pytest.StashKey["list[TensorpointHit]"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--tensorpoint`."""
    parser.getgroup("tensorpoint", "tensors").addoption(
        "--tensorpoint",
        metavar="CONDITION",
        action="append",
        default=[],
        help="fail a test where this condition on tensors turns true, such as 'nonfinite()'; "
        "may be given several times",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a condition that is wrong before anything runs."""
    config.addinivalue_line(
        "markers",
        "tensorpoint(condition, ...): fail the test where a condition on tensors turns true",
    )
    config.addinivalue_line(
        "markers", f"{_NO_MARK}: watch for nothing that --tensorpoint says in this test"
    )
    config.stash[_outcomes] = {}
    conditions = _given(config)
    if conditions and (reason := _refusal(conditions)):
        raise pytest.UsageError(f"--tensorpoint is refused: {reason}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a mark that is wrong. In a worker of xdist the test fails instead."""
    if hasattr(config, "workerinput"):
        return
    for item in items:
        marked = _marked(item)
        if marked is not None and (reason := _refusal(marked)):
            raise pytest.UsageError(f"{item.nodeid}: the tensorpoint mark is refused: {reason}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch the fixtures of a test."""
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch what its fixtures do after it."""
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Watch a test."""
    return (yield from _watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show a hit as a report."""
    report = yield
    hits = item.stash.get(_hits, None)
    stop = _stop_of(call) or (hits[0].stop if hits else None)
    if stop is None or report.passed or report.skipped or not _conditions(item):
        return report
    stop = _as_seen_from(item, stop, call)
    text = _in_words(stop)
    other = _stop_of(call) is None  # what made the test fail is shown as ever
    if other or item.config.getoption("tbstyle") in ("long", "native"):
        report.sections.append(("tensorpoint", text))
    else:
        lines = ReprTraceback([ReprEntryNative(text.splitlines(keepends=True))], None, "native")
        place = ReprFileLocation(stop.file, stop.line, stop.description)
        report.longrepr = ExceptionChainRepr([(lines, place, None)])
    return report


def _watched(item: pytest.Item) -> Generator[None, Any, Any]:
    conditions = _conditions(item)
    if not conditions:
        return (yield)
    import tensorpoint

    #: The first, for it may not come out: on another thread, or where any exception is handled.
    hits: list[TensorpointHit] = item.stash.setdefault(_hits, [])
    hits.clear()

    def hit(stop: Stop) -> None:
        error = tensorpoint.TensorpointHit(stop)
        if not hits:
            hits.append(error)
        raise error

    try:
        watch = tensorpoint.watch(*conditions, on=hit)
    except ValueError as error:
        pytest.fail(f"the tensorpoint mark is refused: {error}", pytrace=False)
    watch.on_outcomes = lambda outcomes: _note(item, conditions, outcomes)
    with watch:
        try:
            result = yield
        except pytest.skip.Exception:
            if not hits:
                raise
            result = None
        if hits:
            raise hits[0]
        return result


def _note(item: pytest.Item, conditions: list[str], outcomes: list[str | None]) -> None:
    """Keep whether the conditions have named a module, or warn where that is about this test."""
    import tensorpoint

    kept, given = item.config.stash[_outcomes], _given(item.config)
    for condition, why in zip(conditions, outcomes, strict=True):
        if why is None:
            continue
        if condition in given:
            _keep(kept, condition, why)
        elif why:
            item.warn(tensorpoint.TensorpointWarning(why))


def _keep(kept: dict[str, str], condition: str, why: str) -> None:
    """That it has named something once is what counts."""
    kept[condition] = why and kept.get(condition, why)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist leaves what it knows with its controller."""
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_MARK] = session.config.stash[_outcomes]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker of xdist has left."""
    for condition, why in getattr(node, "workeroutput", {}).get(_MARK, {}).items():
        _keep(node.config.stash[_outcomes], condition, why)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which conditions of the option have named no module in any test."""
    unmatched = [why for why in config.stash[_outcomes].values() if why]
    if unmatched:
        terminalreporter.section("tensorpoint")
        for why in unmatched:
            terminalreporter.line(f"--tensorpoint {why}")


def _given(config: pytest.Config) -> list[str]:
    return config.getoption("--tensorpoint") or []


def _conditions(item: pytest.Item) -> list[str]:
    given = [] if item.get_closest_marker(_NO_MARK) is not None else _given(item.config)
    return [*given, *(_marked(item) or ())]


def _marked(item: pytest.Item) -> list[str] | None:
    """The conditions of a test's marks; None if it has none."""
    marks = list(item.iter_markers(_MARK))
    return [condition for mark in marks for condition in mark.args] if marks else None


def _refusal(conditions: list[str]) -> str | None:
    """Why these can't be watched, or None if they can."""
    import tensorpoint

    if not conditions:
        return "it needs a condition, such as 'nonfinite()'"
    for condition in conditions:
        if not isinstance(condition, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return f"a condition is a text, not {condition!r}"
        try:
            tensorpoint.watch(condition)
        except ValueError as error:
            return str(error)
    return None


def _stop_of(call: pytest.CallInfo[None]) -> Stop | None:
    if call.excinfo is None or type(call.excinfo.value).__name__ != "TensorpointHit":
        return None
    stop: Stop | None = getattr(call.excinfo.value, "stop", None)
    return stop


def _as_seen_from(item: pytest.Item, stop: Stop, call: pytest.CallInfo[None]) -> Stop:
    """Nothing is paused, and the user's line is that of the test, as far as it is on the stack."""
    from dataclasses import replace

    assert call.excinfo is not None
    lines = [entry.lineno + 1 for entry in call.excinfo.traceback if entry.path == item.path]
    place: dict[str, Any] = {}
    if lines and stop.file != str(item.path):
        place = {"user_file": str(item.path), "user_line": lines[-1]}
    return replace(stop, description=stop.description.removeprefix("Paused on "), **place)


def _in_words(stop: Stop) -> str:
    import io

    from tensorpoint.report import print_stop, report_console

    text = io.StringIO()
    print_stop(report_console(text), stop)
    return text.getvalue().strip("\n") + "\n"

"""`tensorpoint run`: the adapter without an editor, for terminals, clusters and CI.

A DAP client that launches the program under `tensorpoint dap`, reports each stop and ends with the
program. What it must not do is show: stdin, stdout, the terminal, signals and the exit status
behave as if the program had been started by `python`.

How a process is begun with is in `sessions`, how the program gets our streams in `launcher`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import msgspec

from ..command_options import why_no_logs
from ..dap_client import AdapterError, AdapterGone, Body, DapClient, adapter_command
from ..resident.places import RESIDENT_VARIABLE
from ..wire import Stop
from ..wire.layer_event import LayerEvent
from .facts import leave_facts, leave_facts_now_and_then, prepare_facts
from .launcher import Launcher
from .options import (
    STATUS_FIRED,
    STATUS_REFUSED,
    Arming,
    Options,
    Outcome,
    Reported,
    ReportLayers,
    RunError,
    arm,
    check_file,
    find_python,
)
from .sessions import Session, begin
from .signals import ENDING, Signals, kill_process, signal_group, signal_program

_EXIT_GRACE_S = 5.0
_SIGTERM_GRACE_S = 10.0
_SECOND_INTERRUPT_S = 3.0

# What the program has printed is worth keeping when it is ended at a stop.
_FLUSH = "[s.flush() for s in (__import__('sys').stdout, __import__('sys').stderr) if s] and None"
_FLUSH_S = 2.0


def run(
    options: Options,
    report: Callable[[Reported], None],
    report_layers: ReportLayers = lambda events: None,
) -> Outcome:
    """Run a program to its end or to the stop that ends it; `report` is called at each stop.

    `report_layers` is called with the layer events of one step where the options ask for them.
    """
    arming = arm(options.on, options.step)
    python = find_python(options.python)
    if options.program.kind == "program":
        check_file(options.program.target)
    if reason := why_no_logs(options.log_dir):
        raise RunError(reason, STATUS_REFUSED)
    if options.facts is not None:
        options = replace(options, facts=prepare_facts(options.facts))
    outcome = asyncio.run(_Run(options, arming, python, report, report_layers).run())
    if outcome.status and options.python is None and importlib.util.find_spec("torch") is None:
        _say(
            f"tensorpoint: {python} has no torch; if your program has an environment of its own, "
            "name its interpreter: tensorpoint run --python PATH"
        )
    return outcome


class _Run:
    """One run. Everything here happens on one event loop."""

    def __init__(
        self,
        options: Options,
        arming: Arming,
        python: str,
        report: Callable[[Reported], None],
        report_layers: ReportLayers,
    ) -> None:
        self._options = options
        self._arming = arming
        self._python = python
        self._report = report
        self._report_layers = report_layers
        self._has_listed = False
        self._stops: list[Stop] = []
        self._sessions: list[Session] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._launcher = Launcher()
        self._quit = asyncio.Event()
        self._failure: RunError | None = None
        self._interrupted_at: float | None = None
        #: Signals that came before we knew the program's process.
        self._early: list[int] = []
        #: The signal that we end for.
        self._ending_signal: int | None = None

    async def run(self) -> Outcome:
        signals = Signals(self._on_signal)
        command = self._options.adapter or adapter_command(self._options.log_dir)
        # The adapter starts one of debugpy: a `random.py` beside the program must not break that.
        # The program does not inherit this, it is a child of ours.
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        if not self._options.resident:
            env[RESIDENT_VARIABLE] = "0"
        else:
            # In CI and on clusters nobody expects a process that stays.
            env.setdefault(RESIDENT_VARIABLE, "running")
        client = await DapClient.spawn(command, env=env, reverse=self._reverse_handlers())
        root = Session(client, name=None)
        self._sessions.append(root)
        try:
            work = asyncio.create_task(self._drive(root))
            quitting = asyncio.create_task(self._quit.wait())
            await asyncio.wait({work, quitting}, return_when=asyncio.FIRST_COMPLETED)
            ended = work.done() and not self._quit.is_set()
            work.cancel()
            quitting.cancel()
            (error, _) = await asyncio.gather(work, quitting, return_exceptions=True)
            failed = isinstance(error, Exception)
            await self._end(root, kill=failed or not ended or self._failure is not None)
            if isinstance(error, Exception) and self._failure is None:
                self._failure = _as_run_error(error, client)
        finally:
            signals.restore()
        return self._outcome(root)

    # -- a session from launch to end

    async def _drive(self, root: Session) -> None:
        """Launch the program and follow it until it has ended."""
        start = asyncio.create_task(self._begin(root, "launch", self._launch_arguments()))
        exited = asyncio.create_task(self._launcher.exited.wait())
        ended = asyncio.create_task(root.ended.wait())
        try:
            await asyncio.wait({start, exited}, return_when=asyncio.FIRST_COMPLETED)
            if not start.done():
                await asyncio.wait({start}, timeout=_EXIT_GRACE_S)
                if not start.done():
                    raise RunError(f"{self._python} ended before the program began")
            await start
            self._follow(root)
            await asyncio.wait({exited, ended}, return_when=asyncio.FIRST_COMPLETED)
            # The launcher is what ends with the program: a program that replaces itself (exec)
            # ends the session and goes on. Events may still be on their way when it has.
            if self._launcher.is_started and not root.client.gone:
                await exited
            await asyncio.wait({ended}, timeout=_EXIT_GRACE_S)
            if root.client.gone and not root.terminated:
                raise AdapterGone("the debug adapter ended while the program was running")
        finally:
            for task in (start, exited, ended):
                task.cancel()

    async def _begin(self, session: Session, command: str, arguments: Body) -> None:
        lists = self._options.step is not None and session.name is None
        await begin(session, command, arguments, self._arming, list_layers=lists)

    def _follow(self, session: Session) -> None:
        self._add_task(self._handle_events(session))
        if self._options.facts is not None:
            self._add_task(leave_facts_now_and_then(session.client, session.ended))

    async def _handle_events(self, session: Session) -> None:
        client = session.client
        try:
            while (event := await client.next_event()) is not None:
                if event.name == "stopped":
                    await self._on_stopped(session, event.body)
                elif event.name == "output":
                    _show_output(event.body)
                elif event.name == "tensorpoint/layerEvents":
                    self._on_layers(event.body)
                elif event.name == "process":
                    # Where the program is a fork, signals go to what stands in its place.
                    pid = event.body.get("systemProcessId")
                    session.pid = event.body.get("stubProcessId") or pid
                    if session.name is None:
                        self._pass_on_early()
                elif event.name == "exited":
                    session.exit_code = event.body.get("exitCode")
                elif event.name == "terminated":
                    session.terminated = True
                    break
        except (AdapterGone, AdapterError):
            pass  # the process ended while we spoke about it
        except Exception as error:
            # The process stands at a stop that nobody would continue.
            self._failure = RunError(f"a stop could not be reported: {error!r}")
            self._quit.set()
        finally:
            session.ended.set()
            if session.name is not None:
                self._sessions.remove(session)
                await client.close()

    # -- stops

    async def _on_stopped(self, session: Session, body: Body) -> None:
        if self._options.facts is not None:
            await leave_facts(session.client, session.ended)
        fields: Body | None = body.get("tensorpoint")
        if fields is None:
            # debugpy.breakpoint() in the program, most likely.
            _say(f"stopped ({body.get('reason')}) without a tensorpoint; going on")
        elif not self._quit.is_set() and not self._enough():
            stop = msgspec.convert(fields, Stop, strict=False)
            self._stops.append(stop)
            try:
                self._report(Reported(stop, len(self._stops), session.name))
            except BrokenPipeError:
                self._quit.set()
            if self._enough() and self._options.on_stop == "quit":
                self._quit.set()
        if not self._quit.is_set():
            await session.client.request("continue", {"threadId": body.get("threadId", 0)})

    def _on_layers(self, body: Body) -> None:
        try:
            self._report_layers(msgspec.convert(body["events"], tuple[LayerEvent, ...]))
        except BrokenPipeError:
            pass
        self._has_listed = bool(body["last"])
        if self._has_listed and self._options.on_stop == "quit":
            self._quit.set()

    def _enough(self) -> bool:
        limit = self._options.max_stops
        return limit is not None and len(self._stops) >= limit

    # -- what the adapter asks of its client

    def _reverse_handlers(self) -> dict[str, Any]:
        return {"runInTerminal": self._run_in_terminal, "startDebugging": self._start_debugging}

    async def _run_in_terminal(self, arguments: Body) -> Body:
        ours = self._options.stdout_is_ours
        return {"processId": await self._launcher.start(arguments, stdout_is_ours=ours)}

    async def _start_debugging(self, arguments: Body) -> Body:
        configuration: Body = dict(arguments.get("configuration") or {})
        self._add_task(self._attach_child(configuration))
        return {}

    async def _attach_child(self, configuration: Body) -> None:
        connect: Body = configuration["connect"]
        pid: int | None = configuration.get("subProcessId")
        name: str = configuration.get("name") or f"process {pid}"
        try:
            client = await DapClient.connect(
                connect["host"], int(connect["port"]), reverse=self._reverse_handlers()
            )
        except OSError as error:
            _say(f"{name} can't be watched: {error}")
            return
        session = Session(client, name=name, pid=pid)
        self._sessions.append(session)
        configuration["tensorpoints"] = list(self._arming.conditions)
        try:
            await self._begin(session, "attach", configuration)
        except (AdapterGone, AdapterError, RunError) as error:
            _say(f"{name} can't be watched: {error}")
        self._follow(session)

    def _add_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _launch_arguments(self) -> Body:
        program, facts = self._options.program, self._options.facts
        target = os.path.abspath(program.target) if program.kind == "program" else program.target
        return {
            "name": "tensorpoint run",
            "type": "tensorpoint",
            "request": "launch",
            program.kind: target,
            "args": list(program.args),
            "python": self._python,
            "cwd": os.getcwd(),
            "console": "integratedTerminal",
            "subProcess": self._options.subprocess,
            "tensorpoints": list(self._arming.conditions),
            "env": {"PYTHONSAFEPATH": os.environ.get("PYTHONSAFEPATH")},
            **({"factsFile": str(facts)} if facts is not None else {}),
            "precision": self._options.precision,
        }

    # -- the end

    def _on_signal(self, signum: int) -> None:
        """A signal sent to us: it was meant for the program."""
        root = self._sessions[0] if self._sessions else None
        pid = root.pid if root is not None else None
        if signum == signal.SIGTSTP:
            self._suspend(pid)
            return
        if pid is None and signum not in ENDING:
            self._early.append(signum)  # the program may run before we hear of it
            return
        if pid is None or not signal_program(pid, signum):
            if signum in ENDING:
                self._end_for(signum)
            return
        if signum == signal.SIGINT:
            now = time.monotonic()
            last, self._interrupted_at = self._interrupted_at, now
            if last is not None and now - last < _SECOND_INTERRUPT_S:
                self._end_for(signum)
        elif signum in ENDING:
            # It may save its state first; then it is over.
            asyncio.get_running_loop().call_later(_SIGTERM_GRACE_S, self._end_for, signum)

    def _pass_on_early(self) -> None:
        early, self._early = self._early, []
        for signum in early:
            self._on_signal(signum)

    def _end_for(self, signum: int) -> None:
        self._ending_signal = signum
        self._quit.set()

    def _suspend(self, pid: int | None) -> None:
        """Ctrl-Z: the program first, then we, so that the shell sees its job stop."""
        if pid is not None:
            signal_group(pid, signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)
        if pid is not None:
            signal_group(pid, signal.SIGCONT)

    async def _end(self, root: Session, *, kill: bool) -> None:
        """Leave nothing behind: first as DAP has it, then by force."""
        # debugpy answers nothing while it waits for a program that does not begin.
        grace = _EXIT_GRACE_S if root.pid is not None else 1.0
        children = [session for session in self._sessions if session is not root]
        if kill and self._stops:
            await self._flush([*children, root])
        for session in [*children, root]:
            if session.client.gone or (session is not root and not kill):
                continue
            try:
                await session.client.request(
                    "disconnect", {"terminateDebuggee": kill}, timeout=grace
                )
            except (AdapterError, AdapterGone, TimeoutError):
                pass
        await self._launcher.wait(grace)
        if kill:
            for session in [*children, root]:
                if session.pid is not None and session.exit_code is None:
                    kill_process(session.pid, group=session is root)
        await self._launcher.kill()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # The root's last: its adapter ends once those of its children have left.
        for session in reversed(list(self._sessions)):
            await session.client.close(grace=grace)

    async def _flush(self, sessions: list[Session]) -> None:
        answers = [
            session.client.send("evaluate", {"expression": _FLUSH, "context": "repl"})
            for session in sessions
        ]
        _, late = await asyncio.wait(answers, timeout=_FLUSH_S)
        for answer in late:
            answer.cancel()
        await asyncio.gather(*answers, return_exceptions=True)

    def _outcome(self, root: Session) -> Outcome:
        stops = tuple(self._stops)
        if stops:
            return Outcome(STATUS_FIRED, stops, quit=self._quit.is_set())
        if self._failure is not None:
            raise self._failure
        if self._ending_signal is not None:
            return Outcome(128 + self._ending_signal, stops, self._ending_signal == signal.SIGINT)
        if self._has_listed and self._quit.is_set():
            return Outcome(0, stops, quit=True)
        status = self._launcher.status if self._launcher.is_started else root.exit_code
        if status is None:
            raise RunError("the program ended without an exit status")
        if status < 0:
            interrupted = self._interrupted_at is not None and -status == signal.SIGINT
            return Outcome(128 - status, stops, interrupted)
        return Outcome(status, stops)


def _show_output(body: Body) -> None:
    """What the adapter wants said. Stops are reported by us and the program writes by itself."""
    if body.get("category") in ("important", "stderr"):
        _say(str(body.get("output", "")).rstrip("\n").removeprefix("Tensorpoint: "))


def _say(text: str) -> None:
    print(f"tensorpoint: {text}", file=sys.stderr, flush=True)


def _as_run_error(error: BaseException, client: DapClient) -> RunError:
    if isinstance(error, RunError):
        return error
    for event in client.take_events():
        if event.name == "output":
            _show_output(event.body)
    said = client.stderr_text().strip()
    late = ": is this machine very busy? --log-dir DIR has what the debug adapter did"
    return RunError(
        f"{error}"
        + (late if isinstance(error, TimeoutError) else "")
        + (f"\nthe adapter said:\n{said}" if said else "")
    )

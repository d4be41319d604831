"""`tensorpoint doctor`: what is here, whether the agent gets into a program, what can't work, why.

The chosen interpreter is asked in a process of its own, with a deadline: a broken CUDA driver may
hang or kill whoever imports torch, and our own processes never import it.
"""

from __future__ import annotations

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from tensorpoint import __version__
from tensorpoint.dap_client import AdapterError, AdapterGone, DapClient, adapter_command
from tensorpoint.report import report_console
from tensorpoint.run import RunError, find_python

_PROBE_TIMEOUT_S = 120.0
_LAUNCH_TIMEOUT_S = 60.0
_OUR_PACKAGES = ("debugpy", "msgspec", "rich", "z3-solver")
_THEIR_PACKAGES = ("torch", "transformers", "accelerate", "debugpy", "numpy")
_OLDEST_PYTHON = (3, 10)
_OLDEST_TORCH = (2, 4)

# Runs in the chosen interpreter, which may be old and has nothing of ours.
_PROBE = """\
import sys
if sys.path and sys.path[0] == "":
    del sys.path[0]
import json, platform
found = {
    "python": platform.python_version(),
    "implementation": platform.python_implementation(),
    "executable": sys.executable,
    "free_threaded": bool(getattr(sys, "_is_gil_enabled", lambda: True)() is False),
    "packages": {},
}
try:
    from importlib.metadata import version
    for name in sys.argv[1:]:
        try:
            found["packages"][name] = version(name)
        except Exception:
            pass
except ImportError:
    pass
try:
    import torch
    gpus = []
    cuda = torch.cuda.is_available()
    if cuda:
        for i in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(i)
            gpus.append({
                "name": properties.name,
                "capability": "%d.%d" % (properties.major, properties.minor),
                "memory_gib": round(properties.total_memory / 2**30, 1),
            })
    cudnn = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    found["torch"] = {
        "version": torch.__version__,
        "cuda_runtime": torch.version.cuda,
        "hip_runtime": getattr(torch.version, "hip", None),
        "cudnn": cudnn,
        "cuda_available": cuda,
        "gpus": gpus,
    }
except ImportError as error:
    found["torch_error"] = str(error)
except Exception as error:
    found["torch_error"] = "%s: %s" % (type(error).__name__, error)
sys.stdout.write("\\n" + json.dumps(found) + "\\n")
"""


@dataclass(frozen=True)
class Launch:
    """Whether a program was launched under our adapter with the agent in it."""

    works: bool
    detail: str
    seconds: float


@dataclass(frozen=True)
class AttachByPid:
    """Whether a running process can be attached to by its process id."""

    works: bool
    detail: str


@dataclass(frozen=True)
class Findings:
    """All that the doctor has found out."""

    platform: str
    ours: dict[str, str]
    program: dict[str, Any]
    driver: str | None
    launch: Launch
    attach_by_pid: AttachByPid
    limits: list[str] = field(default_factory=list[str])


def doctor(python: str | None = None, *, as_json: bool = False, log_dir: Path | None = None) -> int:
    """Examine and print; 0 if a program can be launched with the agent in it."""
    try:
        python = find_python(python)
    except RunError as error:
        print(f"tensorpoint: {error}", file=sys.stderr)
        return error.status
    findings = examine(python, log_dir)
    if as_json:
        print(json.dumps(asdict(findings), indent=2))
    else:
        _print(report_console(sys.stdout), findings)
    return 0 if findings.launch.works else 1


def examine(python: str, log_dir: Path | None = None) -> Findings:
    """Everything, without printing."""
    program = probe_interpreter(python)
    driver = _driver()
    if "error" in program:
        launch = Launch(False, "the interpreter does not run", 0.0)
    else:
        launch = check_launch(python, log_dir)
    attach = check_attach_by_pid()
    return Findings(
        platform=platform.platform(),
        ours={
            "tensorpoint": __version__,
            "python": platform.python_version(),
            **_versions(_OUR_PACKAGES),
        },
        program=program,
        driver=driver,
        launch=launch,
        attach_by_pid=attach,
        limits=_limits(program, driver, attach),
    )


# -- examining


def probe_interpreter(python: str, timeout: float = _PROBE_TIMEOUT_S) -> dict[str, Any]:
    """What the interpreter says of itself; with "error" where it does not answer."""
    try:
        answer = subprocess.run(
            [python, "-c", _PROBE, *_THEIR_PACKAGES],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return {"executable": python, "error": f"no answer within {timeout:.0f} s"}
    except OSError as error:
        return {"executable": python, "error": str(error)}
    try:
        return json.loads(answer.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = answer.stderr.strip().splitlines()[-1:] or ["and said nothing"]
        ended = f"ended with status {answer.returncode}: {said[0]}"
        return {"executable": python, "error": ended}


def check_launch(python: str, log_dir: Path | None = None) -> Launch:
    """Launch a trivial program under our adapter and look for the agent in it."""
    start = time.monotonic()
    try:
        detail = asyncio.run(asyncio.wait_for(_launch_and_look(python, log_dir), _LAUNCH_TIMEOUT_S))
        works = True
    except asyncio.TimeoutError:
        works, detail = False, f"no answer within {_LAUNCH_TIMEOUT_S:.0f} s"
    except (_NotWorking, AdapterError, AdapterGone, TimeoutError, OSError) as error:
        works, detail = False, str(error)
    return Launch(works, detail, round(time.monotonic() - start, 2))


class _NotWorking(Exception):
    pass


async def _launch_and_look(python: str, log_dir: Path | None) -> str:
    client = await DapClient.spawn(adapter_command(log_dir))
    try:
        try:
            return await _look_for_agent(client, python)
        except (AdapterError, AdapterGone, _NotWorking) as error:
            failure = error
        finally:
            if not client.gone:
                disconnect = client.send("disconnect", {"terminateDebuggee": True})
                await asyncio.wait({disconnect}, timeout=5)
    finally:
        await client.close()
    said = _what_was_said(client)
    raise _NotWorking(f"{failure}" + (f"\n{said}" if said else ""))


async def _look_for_agent(client: DapClient, python: str) -> str:
    await client.request("initialize", {"clientID": "tensorpoint", "adapterID": "tensorpoint"})
    started = await client.start(
        "launch",
        {
            "name": "tensorpoint doctor",
            "request": "launch",
            "code": "pass",
            "python": python,
            "console": "internalConsole",
            "redirectOutput": True,
        },
    )
    if started is None:
        raise _NotWorking("the program ended before it could be configured")
    listed = await client.request("evaluate", {"expression": "tp list", "context": "repl"})
    agent = await client.request(
        "evaluate",
        {
            "expression": "any(n.partition('.')[0] == '_tensorpoint'"
            " for n in __import__('sys').modules)",
            "context": "repl",
        },
    )
    if agent.get("result") != "True":
        raise _NotWorking("the agent did not get into the program")
    await client.request("configurationDone")
    await started
    ended = await client.wait_for_event("exited")
    if ended.get("exitCode") != 0:
        raise _NotWorking(f"the program ended with status {ended.get('exitCode')}")
    first = str(listed.get("result", "")).strip().partition("\n")[0]
    return f"the agent answers: {first}" if first else "the agent answers"


def _what_was_said(client: DapClient) -> str:
    """What the adapter wanted a person to read before it failed."""
    said = [
        str(event.body.get("output", "")).rstrip("\n")
        for event in client.take_events()
        if event.name == "output" and event.body.get("category") != "telemetry"
    ]
    return "\n".join([*said, client.stderr_text()]).strip()


def check_attach_by_pid() -> AttachByPid:
    """debugpy attaches to a process id by making gdb or lldb run code in it."""
    if sys.platform == "win32":
        return AttachByPid(True, "by debugpy's own injector")
    debugger = next((name for name in ("gdb", "lldb") if shutil.which(name)), None)
    if debugger is None:
        return AttachByPid(False, "needs gdb or lldb, neither is installed")
    scope = _ptrace_scope()
    if scope in (None, 0) or (os.geteuid() == 0 and scope != 3):
        return AttachByPid(True, f"by {debugger}")
    reasons = {
        1: "the kernel lets only a parent trace a process (ptrace_scope 1)",
        2: "the kernel lets only administrators trace processes (ptrace_scope 2)",
        3: "the kernel forbids tracing processes (ptrace_scope 3)",
    }
    reason = reasons.get(scope, f"ptrace_scope is {scope}")
    remedy = "" if scope == 3 else "; as root: sysctl kernel.yama.ptrace_scope=0"
    return AttachByPid(False, reason + remedy)


def _ptrace_scope() -> int | None:
    try:
        return int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _driver() -> str | None:
    """Version of the NVIDIA driver, asked without touching CUDA."""
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        try:
            answer = subprocess.run(
                [tool, "--query-gpu=driver_version", "--format=csv,noheader"],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=20,
            )
            if answer.returncode == 0 and answer.stdout.strip():
                return answer.stdout.split()[0]
        except (OSError, subprocess.SubprocessError):
            pass
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((word for word in text.split() if word.count(".") >= 1 and word[0].isdigit()), None)


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _limits(program: dict[str, Any], driver: str | None, attach: AttachByPid) -> list[str]:
    """What does not work here, each with its reason."""
    limits: list[str] = []
    if "error" in program:
        return [f"anything with {program['executable']}: it does not run ({program['error']})"]
    if _numbers(program["python"]) < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        limits.append(f"tensorpoints: Python {program['python']} is older than {oldest}")
    if program["implementation"] != "CPython":
        limits.append(f"tensorpoints: made for CPython, this is {program['implementation']}")
    if program["free_threaded"]:
        limits.append("tensorpoints in programs with threads: free-threaded Python is not tested")
    torch: dict[str, Any] | None = program.get("torch")
    if torch is None:
        limits.append(
            f"tensorpoints: torch can't be imported ({program.get('torch_error', 'no reason')})"
        )
    else:
        limits += _torch_limits(torch, driver)
    if not attach.works:
        limits.append(f"attaching by process id: {attach.detail}")
    if sys.platform != "linux":
        limits.append(f"nothing known, but {sys.platform} is not tested: please report")
    return limits


def _torch_limits(torch: dict[str, Any], driver: str | None) -> list[str]:
    limits: list[str] = []
    if _numbers(torch["version"]) < _OLDEST_TORCH:
        oldest = ".".join(map(str, _OLDEST_TORCH))
        limits.append(f"tensorpoints: torch {torch['version']} is older than {oldest}, not tested")
    if not torch["cuda_available"]:
        if torch["cuda_runtime"] is None and torch["hip_runtime"] is None:
            if driver is not None:
                limits.append("tensors on the GPU: this torch is built for the CPU only")
        elif driver is None:
            limits.append("tensors on the GPU: no driver was found")
        else:
            limits.append("tensors on the GPU: torch can't use the GPU (driver too old or hidden?)")
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang", "c++", "g++", "cl")):
        limits.append(
            "torch.compile with inductor on the CPU: no C++ compiler (backend='eager' works)"
        )
    return limits


def _numbers(text: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    numbers: list[int] = []
    for part in text.split(".")[:2]:
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(int(digits or 0))
    return tuple(numbers)


# -- printing


def _print(console: Console, findings: Findings) -> None:
    program = findings.program
    packages: dict[str, str] = program.get("packages") or {}
    torch: dict[str, Any] = program.get("torch") or {}

    _title(console, "tensorpoint")
    _row(console, "platform", findings.platform)
    for name, number in findings.ours.items():
        _row(console, name, number)

    _title(console, "the program's side")
    _row(console, "interpreter", str(program.get("executable")))
    if "error" in program:
        _row(console, "", program["error"], style="red")
    else:
        _row(console, "python", f"{program['python']} ({program['implementation']})")
        _row(console, "torch", torch.get("version") or program.get("torch_error", "not installed"))
        for name in ("transformers", "accelerate", "debugpy"):
            ours = " (ours is brought along)" if name == "debugpy" else ""
            _row(console, name, packages.get(name, f"not installed{ours}"))
        _row(console, "CUDA runtime", torch.get("cuda_runtime") or "none")
        if torch.get("hip_runtime"):
            _row(console, "ROCm runtime", torch["hip_runtime"])
        _row(console, "cuDNN", str(torch.get("cudnn") or "none"))
        _row(console, "driver", findings.driver or "none")
        gpus: list[dict[str, Any]] = torch.get("gpus") or []
        for i, gpu in enumerate(gpus):
            _row(
                console,
                f"GPU {i}",
                f"{gpu['name']}, capability {gpu['capability']}, {gpu['memory_gib']} GiB",
            )
        if not gpus:
            _row(console, "GPUs", "none that torch can use")

    _title(console, "does it work")
    launch = findings.launch
    _verdict(console, "launch", launch.works, f"{launch.detail} ({launch.seconds} s)")
    _verdict(console, "attach by pid", findings.attach_by_pid.works, findings.attach_by_pid.detail)

    _title(console, "not supported here")
    for limit in findings.limits or ["nothing that we know of"]:
        console.print(Text(f"  - {limit}"))


def _title(console: Console, text: str) -> None:
    console.print(Text(f"\n{text}", style="bold"))


def _row(console: Console, label: str, value: str, style: str = "") -> None:
    console.print(Text.assemble((f"  {label:<15}", "dim"), (value, style)))


def _verdict(console: Console, label: str, works: bool, detail: str) -> None:
    word = ("yes", "green") if works else ("no", "bold red")
    console.print(Text.assemble((f"  {label:<15}", "dim"), word, f"  {detail}"))

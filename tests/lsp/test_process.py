"""The server as a process: what it imports, how it ends, what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

COMMAND = [sys.executable, "-m", "tensorpoint", "lsp"]
INITIALIZE = {"id": 1, "method": "initialize", "params": {"processId": None, "capabilities": {}}}


def framed(message: Any) -> bytes:
    body = (
        message
        if isinstance(message, bytes)
        else json.dumps({"jsonrpc": "2.0", **message}).encode()
    )
    return b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def converse(*messages: Any, command: list[str] = COMMAND) -> subprocess.CompletedProcess[bytes]:
    """All messages at once, then the end of the input."""
    return subprocess.run(
        command,
        input=b"".join(map(framed, messages)),
        capture_output=True,
        timeout=120,
        check=False,
    )


def test_it_is_light() -> None:
    """The editor waits for it: nothing that only programs or other commands need."""
    code = (
        "import sys, tensorpoint.lsp.server, tensorpoint.shapes\n"
        "heavy = {'torch', 'numpy', 'z3', 'sympy', 'debugpy', 'rich'} & {*sys.modules}\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        ([INITIALIZE, {"id": 2, "method": "shutdown"}, {"method": "exit"}], 0),
        ([INITIALIZE, {"method": "exit"}], 1),
        ([INITIALIZE], 0),
        ([], 0),
    ],
)
def test_the_exit_status_says_how_it_ended(messages: list[Any], status: int) -> None:
    done = converse(*messages)
    assert (done.returncode, done.stderr) == (status, b"")


def test_exit_ends_it_while_the_input_is_open() -> None:
    messages = (INITIALIZE, {"id": 2, "method": "shutdown"}, {"method": "exit"})
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as server:
        assert server.stdin is not None
        server.stdin.write(b"".join(map(framed, messages)))
        server.stdin.flush()
        try:
            assert server.wait(60) == 0
        finally:
            server.kill()


def test_garbage_does_not_end_it() -> None:
    done = converse(b"{not json", {"id": 7}, INITIALIZE, {"id": 2, "method": "no/such"})
    assert done.returncode == 0
    assert b'"serverInfo"' in done.stdout
    assert b'"code": -32601' in done.stdout


def test_remote_addresses_are_refused_unless_allowed() -> None:
    done = converse(command=[*COMMAND, "--listen", "0.0.0.0:0"])
    assert done.returncode == 2
    assert b"tensorpoint lsp: 0.0.0.0 is not a loopback address." in done.stderr
    assert b"--allow-remote" in done.stderr


def test_stdio_may_be_said() -> None:
    done = converse(INITIALIZE, command=[*COMMAND, "--stdio"])
    assert done.returncode == 0 and b'"serverInfo"' in done.stdout

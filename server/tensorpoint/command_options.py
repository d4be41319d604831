"""Options that several commands take."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path


def add_listen(parser: argparse.ArgumentParser) -> None:
    """Where a server waits for editors."""
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=_address,
        help="wait for editors on a port instead of standard input and output",
    )
    parser.add_argument(
        "--allow-remote",
        action="store_true",
        help="let --listen take an address that other machines reach; "
        "whoever connects can run code here",
    )


def add_python(parser: argparse.ArgumentParser) -> None:
    """The program's interpreter."""
    parser.add_argument(
        "--python",
        metavar="PY",
        help="the interpreter that runs the program (the one that runs tensorpoint)",
    )


def add_log_dir(parser: argparse.ArgumentParser) -> None:
    """The folder for logs."""
    default = os.environ.get("TENSORPOINT_LOG_DIR")
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        type=Path,
        default=Path(default) if default else None,
        help="write logs of all processes there ($TENSORPOINT_LOG_DIR)",
    )


def why_no_logs(folder: Path | None) -> str | None:
    """Why no logs can be left in the folder: who asks for them would miss them when it's late."""
    if folder is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return None
    except OSError as error:
        return f"--log-dir: cannot write into {folder}: {error.strerror or error}"


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    host = host.removeprefix("[").removesuffix("]")  # [::1]:5678
    return (host if colon and host else "127.0.0.1", int(port))

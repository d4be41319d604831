"""While we run the program's code: what it prints is held back, on one thread."""

from __future__ import annotations

import io
import logging
import os
import pickle
import socket
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from tensorpoint.agent import quiet


def test_what_one_thread_prints_is_held_back_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    other = threading.Thread(target=print, args=("of another thread",))
    with quiet.side_effects() as effects:
        print("held back")
        other.start()
        other.join()
    print("afterwards")
    assert effects == ["print"]
    assert capsys.readouterr().out == "of another thread\nafterwards\n"


def test_a_stream_that_another_thread_may_be_printing_to_is_not_freed() -> None:
    """`print` has no reference to it, before Python 3.12.10: freed, it ended the program."""
    with quiet.held_back():
        streams = [weakref.ref(sys.stdout), weakref.ref(sys.stderr)]
    assert all(stream() is not None for stream in streams)


# What is written ---------------------------------------------------------------------------------

#: Ways to write into a file, and what is told of them.
OPENED: dict[str, Callable[[Path], object]] = {
    "open": lambda path: open(path, "w").close(),
    "open to append": lambda path: open(path, mode="ab").close(),
    "Path.write_text": lambda path: path.write_text("x"),
    "Path.write_bytes": lambda path: path.write_bytes(b"x"),
    "Path.touch": lambda path: path.touch(),
    "io.FileIO": lambda path: io.FileIO(path, "w").write(b"x"),
    "numpy.save": lambda path: numpy.save(path.with_suffix(".npy"), numpy.ones(2)),
    "pickle.dump": lambda path: pickle.dump(1, path.open("wb")),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", OPENED)
def test_a_file_that_is_opened_to_be_written_is_told(how: str, tmp_path: Path) -> None:
    with quiet.side_effects() as effects:
        OPENED[how](tmp_path / "x")
    (written,) = tmp_path.iterdir()
    assert effects == [f"writing {written}"]


#: Ways to write into one that was open before.
HELD: dict[str, Callable[[Any], object]] = {
    "write": lambda file: file.write("x"),
    "writelines": lambda file: file.writelines(["x"]),
    "print": lambda file: print("x", file=file),
    "logging": lambda file: logging.StreamHandler(file).emit(
        logging.makeLogRecord({"msg": "x", "levelno": 50})
    ),
    "its buffer": lambda file: file.buffer.write(b"x"),
}


@pytest.mark.parametrize("how", HELD)
def test_writing_into_a_file_that_was_open_before_is_told(how: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    with open(path, "w") as file, quiet.side_effects() as effects:
        HELD[how](file)
    assert path.read_text().strip() == "x"
    assert effects == [f"writing {path}"]


def test_writing_to_a_descriptor_to_a_socket_and_by_torch_is_told(tmp_path: Path) -> None:
    near, far = socket.socketpair()
    with near, far, open(tmp_path / "x", "wb") as file, quiet.side_effects() as effects:
        os.write(file.fileno(), b"x")
        near.sendall(b"x")
        torch.save(torch.ones(1), tmp_path / "x.pt")
    assert effects == ["os.write", "sending to a socket", "torch.save"]


def test_reading_memory_and_other_threads_are_no_effects(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text("x")

    def other() -> None:
        path.with_suffix(".other").write_text("x")

    with quiet.side_effects() as effects:
        path.read_text()
        os.close(os.open(path, os.O_RDONLY))
        io.StringIO().write("x")
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        print("held back", file=sys.stderr)
    assert effects == ["print"]


def test_what_looks_on_is_gone_afterwards() -> None:
    before = (open, io.open, os.open, print, sys.getprofile())
    with pytest.raises(TypeError), quiet.side_effects():
        Path().write_text(1)  # type: ignore[arg-type]
    assert (open, io.open, os.open, print, sys.getprofile()) == before


def test_a_profile_function_of_the_programs_stays() -> None:
    def own(*_: object) -> None:
        pass

    sys.setprofile(own)
    try:
        with quiet.side_effects():
            assert sys.getprofile() is own
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)

"""While we run the program's code: what it prints is held back, on one thread."""

from __future__ import annotations

import sys
import threading
import weakref

import pytest

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
    with quiet.side_effects():
        streams = [weakref.ref(sys.stdout), weakref.ref(sys.stderr)]
    assert all(stream() is not None for stream in streams)

"""The attention map of a module: asked for at one stop, there at the next."""

from __future__ import annotations

import base64
import struct

import pytest

from tests.conftest import Write
from tests.protocol.dap import Message, Session, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

PROGRAM = """\
import threading
import time

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def idle():  # each thread is suspended at a stop, and goes on after it
    while True:
        time.sleep(0.001)


for _ in range(5):
    threading.Thread(target=idle, daemon=True).start()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.other = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


block = Block()
x = torch.randn(3, 5, 8)
hooked = torch.nn.modules.module._global_forward_hooks
for step in range(12):
    block(x)
    _, weights = block.attention(x, x, x, average_attn_weights=False)
    print("step", step)  # stop
"""


def test_the_weights_of_a_head(write: Write) -> None:
    with Session() as session:
        path = write(PROGRAM)
        session.launch(path, filters=[], breakpoints={str(path): [line_of(path, "# stop")]})
        stopped = session.stopped()

        def ask(expression: str, *index: int) -> Message:
            frame = session.frames(stopped)[0]["id"]
            return session.request(
                "tensorpoint/tensor",
                expression=expression,
                frameId=frame,
                parts=["attention", "history"],
                index=list(index),
            )

        def go_on() -> None:
            nonlocal stopped
            session.resume()
            stopped = session.stopped()

        assert "attention" not in ask("block.attention.out_proj")
        assert "2 modules in it attend" in ask("block")["attention"]["note"]
        assert session.evaluate("len(hooked)", stopped, "repl") == "0"  # nothing was asked for yet
        assert "from its next call on" in ask("block.attention")["attention"]["note"]
        assert session.evaluate("len(hooked)", stopped, "repl") == "1"
        go_on()
        for head in (0, 1):
            found = ask("block.attention", head)["attention"]
            assert (found["heads"], found["size"], found["step"]) == (2, [5, 5], [1, 1])
            cells = struct.unpack("<25f", base64.b64decode(found["values"]))
            expected = session.evaluate(f"weights[0, {head}].flatten().tolist()", stopped, "repl")
            assert cells == pytest.approx(eval(expected), abs=1e-5)
        assert "index: 2" in ask("block.attention", 2)["attention"]["note"]
        for _ in range(4):  # nobody asks any more
            assert session.evaluate("len(hooked)", stopped, "repl") == "1"
            go_on()
        assert session.evaluate("len(hooked)", stopped, "repl") == "0"

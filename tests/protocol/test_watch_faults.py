"""A fault inside a watch switches that watch off, says so once, and the program goes on."""

from __future__ import annotations

import pytest

from tests.conftest import Write
from tests.protocol.dap import STUBBED, Session, line_of
from tests.protocol.samples import LAYERS

pytestmark = pytest.mark.usefixtures("resident_process")

#: Each step hands the watches something that they can't look at without an exception.
NASTY = """\
from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import nn

torch.set_num_threads(1)


class NoDetach(torch.Tensor):
    def detach(self):
        raise RuntimeError("no detach")


class NoFunction(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("no function")


class NoItems(dict):
    def items(self):
        raise RuntimeError("no items")


@dataclass
class Output:
    value: object

    def __getattribute__(self, name):
        if name == "value":
            raise RuntimeError("no value")
        return super().__getattribute__(name)


class NoFields(tuple):
    @property
    def _fields(self):
        raise RuntimeError("no fields")


class NoClass:
    @property
    def __class__(self):
        raise RuntimeError("no class")


class Gives(nn.Module):
    def __init__(self, output):
        super().__init__()
        self.output = [output]

    def forward(self, x):
        return self.output[0]


class NoNames(Gives):
    def named_modules(self, *args, **kwargs):
        raise RuntimeError("no names")


class NoBool(Gives):
    def __bool__(self):
        raise RuntimeError("no bool")

    def __len__(self):
        raise RuntimeError("no length")


x = torch.ones(3)
steps = {
    "no detach": Gives(torch.ones(2).as_subclass(NoDetach)),
    "no function": Gives(torch.ones(2).as_subclass(NoFunction)),
    "no items": Gives(NoItems(a=x)),
    "no value": Gives(Output(x)),
    "no fields": Gives(NoFields((x,))),
    "no class": Gives(NoClass()),
    "no names": NoNames(x),
    "no bool": NoBool(x),
}
for name, module in steps.items():
    for again in range(3):
        module(x)
    print("after", name)  # after each
nan = nn.Sequential(Gives(x / 0 - x / 0))
nan(x)  # at last
print("end")
"""


def test_what_a_watch_cannot_look_at_switches_it_off_with_one_message(write: Write) -> None:
    program = write(NASTY)
    said = 0
    with Session() as session:
        session.launch(program, breakpoints={str(program): [line_of(program, "# after each")]})
        for _ in range(8):
            stopped = session.stopped()
            assert stopped["reason"] == "breakpoint", stopped
            name = session.evaluate("name", stopped)
            important = session.output("important")[said:]
            said += len(important)
            # Either it could be looked at after all, or there is one message for three calls.
            assert important.count("Tensorpoint: a fault while") <= 1, important
            if important:
                assert name.strip("'") in important or "switched off" in important
                # A client arms it again by sending what is set.
                session.request("setExceptionBreakpoints", filters=[])
                session.request("setExceptionBreakpoints", filters=["nonfinite"])
            session.resume(stopped)
        assert "switched off and the program goes on" in session.output("important")
        stopped = session.stopped()
        assert stopped["tensorpoint"]["event"] == "nonfinite.forward"
        assert session.top(stopped)[1] == line_of(program, "# at last")
        session.resume(stopped)
        assert session.exit_code() == 0
        assert session.output("stdout").rstrip().endswith("end")


BROKEN_NAMES = (
    LAYERS[: LAYERS.index("net = Net()")]
    + """\
class Odd(Net):
    def named_modules(self, *args):
        raise RuntimeError("no names here")


odd, net = Odd(), Net()
for step in range(3):
    odd(step)
    net(step)  # call net
print("end")
"""
)


def test_a_fault_in_one_watch_leaves_the_program_and_the_session_alone(write: Write) -> None:
    program = write(BROKEN_NAMES)
    with Session() as session:
        session.launch(
            program, functions=[{"name": "layer:b", "condition": "step == 1"}], **STUBBED
        )
        while not (session.seen("exited") or session.seen("terminated")):
            try:
                session.resume(session.stopped())
            except AssertionError:
                break
        assert session.exit_code() == 0, session.output()
        assert "end" in session.output("stdout")
        assert session.output("important").count("Tensorpoint: a fault while") <= 2

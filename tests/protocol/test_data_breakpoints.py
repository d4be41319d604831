"""Data breakpoints on tensors, parameters, gradients and buffers, in a real program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Write
from tests.protocol.dap import Message, Session, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

PROGRAM = """\
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)
        self.unused = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        h = self.fc(x)
        self.seen.add_(1)  # writes seen
        self.calls.add_(1)
        return self.out(h)  # calls out


net = Net()
free = torch.zeros(3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print("start")  # start
for step in range(4):
    loss = net(torch.ones(2, 4)).sum()  # forward
    loss.backward()  # backward
    optimizer.step()  # steps
    optimizer.zero_grad()
    if step == 1:
        net.out.bias.data.fill_(5)  # past autograd
    if step == 2:
        net.seen = torch.zeros(3)  # replaces seen
        free.mul_(float("nan"))  # spoils free
print("end")
"""


class Watching:
    """A session that stands at the start of the program."""

    def __init__(self, session: Session, path: Path, **arguments: Any) -> None:
        self.session, self.path = session, path
        session.launch(
            path, filters=[], breakpoints={str(path): [line_of(path, "# start")]}, **arguments
        )
        self.stopped = session.stopped()
        self.frame = session.frames(self.stopped)[0]["id"]

    def info(self, name: str, **more: Any) -> Message:
        return self.session.request("dataBreakpointInfo", name=name, **more)

    def id(self, expression: str, **more: Any) -> str:
        found = self.info(expression, frameId=self.frame, **more)
        assert found["dataId"] is not None, found
        return found["dataId"]

    def made_by(self, name: str) -> str:
        """What a variable's row "made by" says."""

        def rows(reference: int) -> dict[str, Message]:
            found = self.session.request("variables", variablesReference=reference)["variables"]
            return {row["name"]: row for row in found}

        variables = rows(self.session.scopes(self.stopped)["Locals"])
        return rows(variables[name]["variablesReference"])["made by"]["value"]

    def set(self, *breakpoints: Message) -> list[Message]:
        return self.session.request("setDataBreakpoints", breakpoints=list(breakpoints))[
            "breakpoints"
        ]

    def next_stop(self) -> tuple[int, str]:
        """Line and text of the next stop."""
        self.session.resume()
        self.stopped = self.session.stopped()
        return self.session.top(self.stopped)[1], self.stopped["text"]

    def line(self, text: str) -> int:
        return line_of(self.path, text)


def test_who_changes_a_buffer_a_gradient_and_a_parameter(write: Write) -> None:
    with Session() as session:
        watching = Watching(session, write(PROGRAM))
        capabilities = session.capabilities
        assert capabilities["supportsDataBreakpoints"]
        assert {"mode": "nonfinite", "label": "Becomes NaN/Inf", "appliesTo": ["data"]} in (
            capabilities["breakpointModes"]
        )
        gradient = watching.info("net.fc.weight.grad", frameId=watching.frame)
        assert gradient["description"] == "fc.weight.grad"
        assert gradient["accessTypes"] == ["write"] and gradient["canPersist"] is False
        assert watching.id("net.fc.weight.grad") == gradient["dataId"]
        made = watching.set(
            {"dataId": watching.id("net.seen"), "accessType": "write"},
            {"dataId": gradient["dataId"]},
            {"dataId": watching.id("net.fc.weight"), "hitCondition": "2"},
        )
        assert all(item["verified"] for item in made)
        line, text = watching.next_stop()
        assert line == watching.line("# calls out")
        assert "between the end of fc (Linear) and the call of out (Linear)" in text
        assert "Written in place once" in text and "‖seen‖ is 1.41" in text
        assert watching.stopped["description"] == "Paused on change of seen"
        assert watching.stopped["hitBreakpointIds"] == [made[0]["id"]]
        line, text = watching.next_stop()
        assert line == watching.line("# backward")
        assert "by backward, up to the gradient of fc.weight" in text
        assert "It was None before" in text
        line, text = watching.next_stop()
        assert line == watching.line("# forward") and "It is None now" in text
        watching.frame = session.frames(watching.stopped)[0]["id"]
        watching.set({"dataId": watching.id("net.fc.weight"), "hitCondition": "2"})
        line, text = watching.next_stop()
        assert line == watching.line("# steps")
        assert "changed by SGD.step" in text and "Hit 2" in text
        assert session.evaluate("step", watching.stopped) == "1"
        watching.set()
        session.resume()
        assert session.exit_code() == 0


def test_conditions_name_what_turns_true_and_what_autograd_does_not_see(write: Write) -> None:
    with Session() as session:
        watching = Watching(session, write(PROGRAM))
        made = watching.set(
            {"dataId": watching.id("net.out.bias"), "condition": "absmax > 4"},
            {"dataId": watching.id("net.seen", mode="reshaped")},
            {"dataId": watching.id("free"), "condition": "nonfinite and step > 0"},
            {"dataId": watching.id("net.unused.weight"), "condition": "no_grad"},
            {"dataId": watching.id("net.calls"), "condition": "absmax >= 3"},
            {"dataId": watching.id("net.seen"), "condition": "norm >"},
            {"dataId": watching.id("net.seen"), "condition": "nrom > 3"},
            {"dataId": watching.id("net.seen"), "hitCondition": "often"},
        )
        assert [item["verified"] for item in made] == [True] * 5 + [False] * 3
        assert "such as norm > 3" in made[5]["message"]
        assert "did you mean norm?" in made[6]["message"]
        assert "a hit count is a number" in made[7]["message"]
        line, text = watching.next_stop()
        assert line == watching.line("# steps") and "no gradient for unused.weight" in text
        line, text = watching.next_stop()  # found where a root is called next
        assert line == watching.line("# forward")
        assert "absmax > 4 for out.bias" in text and "past autograd" in text
        assert "between the end of SGD.step and the call of Net" in text
        line, text = watching.next_stop()
        assert "absmax >= 3 for calls" in text and "‖calls‖ is 3" in text
        line, text = watching.next_stop()
        assert "reshaped for seen" in text and "another tensor now" in text
        line, text = watching.next_stop()
        assert "nonfinite and step > 0 for free" in text
        session.resume()
        assert session.exit_code() == 0


GRADIENTS = """\
import torch
from torch import nn

torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
unused = nn.Parameter(torch.ones(4))
unused.grad = torch.zeros(4)
by_hand = nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([*net.parameters(), unused, by_hand], lr=0.1)
print("start")  # start
for step in range(40):
    optimizer.zero_grad(set_to_none=step < 20)
    if step == 0 or step >= 20:
        unused.grad = torch.zeros(4) if unused.grad is None else unused.grad
    for rows in range(2 if step % 2 else 1):
        net(torch.ones(2, 4)).sum().backward()
    if by_hand.grad is None:
        by_hand.grad = torch.ones(3)
    else:
        by_hand.grad.copy_(torch.full((3,), float(step)))
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()  # steps
print("end")
"""


def test_no_gradient_is_told_of_those_that_got_none_and_of_no_other(write: Write) -> None:
    """New gradients live where the ones before did, with the same version; zeroed ones move on."""
    with Session() as session:
        watching = Watching(session, write(GRADIENTS))
        made = watching.set(
            *(
                {"dataId": watching.id(name), "condition": "no_grad"}
                for name in ("net[0].weight", "net[1].bias.grad", "unused")
            ),
            {"dataId": watching.id("by_hand"), "condition": "no_grad or reshaped"},
        )
        assert all(item["verified"] for item in made)
        line, text = watching.next_stop()
        assert (
            line == watching.line("# steps") and session.evaluate("step", watching.stopped) == "1"
        )
        assert "no gradient for unused" in text and "its gradient is None" in text
        line, text = watching.next_stop()
        assert session.evaluate("step", watching.stopped) == "21"
        assert "no gradient for unused" in text and "it was set to zero" in text
        session.resume()
        assert session.exit_code() == 0


def test_hit_counts_and_modes_choose_when_it_stops(write: Write) -> None:
    with Session() as session:
        watching = Watching(session, write(PROGRAM.replace("range(4)", "range(8)")))
        modes = [item["mode"] for item in session.capabilities["breakpointModes"]]
        assert modes == ["changed", "nonfinite", "reshaped", "no_grad"]
        made = watching.set(
            {"dataId": watching.id("net.seen", mode="changed"), "hitCondition": "% 3"},
            {"dataId": watching.id("free", mode="nonfinite")},
            {"dataId": watching.id("net.unused.weight", mode="no_grad"), "hitCondition": ">= 1"},
            {"dataId": watching.id("net.calls"), "hitCondition": "> 6"},
            # A condition of its own comes before the mode.
            {"dataId": watching.id("net.out.bias", mode="changed"), "condition": "norm > 100"},
        )
        assert all(item["verified"] for item in made)
        expected = [
            ("no gradient for unused.weight", 0, None),
            ("change of seen", 2, 3),
            ("nonfinite for free", 3, None),
            ("change of seen", 4, 6),  # the fourth was its being replaced after step 2
            ("change of calls", 6, 7),
            ("change of seen", 7, 9),
            ("change of calls", 7, 8),
        ]
        for headline, step, hits in expected:
            _, text = watching.next_stop()
            assert text.startswith(headline)
            assert (f"Hit {hits}." in text) if hits else ("Hit" not in text)
            assert session.evaluate("step", watching.stopped) == str(step)
        session.resume()
        assert session.exit_code() == 0


GRADIENT_SLOT = """\
import torch
from torch import nn

torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
print("start")  # start
for step in range(3):
    optimizer.zero_grad(set_to_none=step == 1)
    for _ in range(2 if step == 2 else 1):
        net(torch.ones(2, 4)).sum().backward()
    if step == 2:
        net[0].weight.grad = net[0].weight.grad.clone()
    optimizer.step()
print("end")
"""


def test_a_gradient_breakpoint_watches_the_slot_of_its_parameter(write: Write) -> None:
    """Made anew, set to None, accumulated into, set to zero, replaced: each once, and no other."""
    with Session() as session:
        watching = Watching(session, write(GRADIENT_SLOT))
        watching.set({"dataId": watching.id("net[0].weight.grad")})
        for step, text in (
            (0, "It was None before"),
            (1, "It is None now"),
            (1, "It was None before"),
            (2, "It was changed between the end of SGD.step and the call of Sequential"),
            (2, "by backward, up to the gradient of 0.weight"),
            (2, "by backward, up to the gradient of 0.weight"),
            (2, "It is another tensor now, not written in place"),
        ):
            assert text in watching.next_stop()[1]
            assert session.evaluate("step", watching.stopped) == str(step)
        session.resume()
        assert session.exit_code() == 0


def test_op_precision_names_the_operation_that_modified_it(write: Write) -> None:
    with Session() as session:
        watching = Watching(session, write(PROGRAM), precision="op")
        watching.set(
            {"dataId": watching.id("net.seen")},
            {"dataId": watching.id("net.out.bias"), "condition": "changed and absmax > 4"},
        )
        line, text = watching.next_stop()
        assert line == watching.line("# writes seen")
        assert f"by aten.add_.Tensor at program.py:{line} in forward" in text
        expected = f"addmm at program.py:{line - 1} in forward, layer fc (Linear)"
        assert watching.made_by("h") == expected
        line, text = watching.next_stop()
        assert line == watching.line("# writes seen")  # the second step: told once
        watching.set({"dataId": watching.id("net.out.bias"), "condition": "absmax > 4"})
        line, text = watching.next_stop()
        assert line == watching.line("# past autograd") and "by aten.fill_.Scalar" in text


def test_what_can_be_watched_and_what_not(write: Write) -> None:
    with Session() as session:
        watching = Watching(session, write(PROGRAM))

        def rows(reference: int) -> dict[str, Message]:
            found = session.request("variables", variablesReference=reference)["variables"]
            return {row["name"]: row for row in found}

        scope = session.scopes(watching.stopped)["Locals"]
        net = rows(scope)["net"]["variablesReference"]
        fc = rows(net)["fc"]["variablesReference"]
        weight = rows(fc)["weight"]["variablesReference"]
        assert watching.info("weight", variablesReference=fc)["description"] == "fc.weight"
        assert watching.info("grad", variablesReference=weight)["description"] == "fc.weight.grad"
        assert watching.info("free", variablesReference=scope)["description"] == "free"
        elements = rows(weight)["values"]["variablesReference"]
        row = rows(elements)["[1]"]["variablesReference"]
        element = watching.info("[2]", variablesReference=row)
        assert element["description"] == "net.fc.weight[1][2]"
        assert element["dataId"] == watching.id("net.fc.weight.data[1, 2]")
        assert watching.info("fc.weight")["description"] == "fc.weight"  # by its path
        counted = "(free.__dict__.setdefault('asked', []).append(1), net)[1].fc.weight"
        assert watching.info(counted, frameId=watching.frame)["description"] == "fc.weight"
        assert session.evaluate("free.asked", watching.stopped, "repl") == "[1]"
        for name, more, reason in (
            ("in_features", {"variablesReference": fc}, "only tensors"),
            ("step0", {"frameId": watching.frame}, "NameError"),
            ("fc.nothing", {}, "no parameter or buffer"),
            ("free + 1", {"frameId": watching.frame}, "made anew"),
            ("free.grad", {"frameId": watching.frame}, "requires no gradient"),
            ("weight", {"variablesReference": 12345}, "gone on"),
        ):
            found = watching.info(name, **more)
            assert found["dataId"] is None and reason in found["description"], found
        assert "mode" in session.refused("dataBreakpointInfo", name="free", mode="x")
        other, read = watching.set(
            {"dataId": "9:"}, {"dataId": watching.id("free"), "accessType": "read"}
        )
        assert not other["verified"] and "of another process" in other["message"]
        assert not read["verified"] and "only writes" in read["message"]
        answer = session.request(
            "evaluate",
            expression="tp watch net.seen if norm > 2",
            context="repl",
            frameId=watching.frame,
        )["result"]
        assert answer.endswith("data:seen if norm > 2")
        assert "data:seen if norm > 2  (console)" in session.console("tp list")
        _, text = watching.next_stop()
        assert "norm > 2 for seen" in text and "‖seen‖ is 2.83" in text


SPAWNING = PROGRAM.replace(
    'print("start")',
    """import subprocess, sys
if len(sys.argv) == 1:
    print("here")  # in the parent
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
print("start")""",
)


def test_what_is_watched_by_the_console_is_watched_in_children_too(write: Write) -> None:
    path = write(SPAWNING)
    with Session() as session:
        session.launch(
            path,
            filters=[],
            breakpoints={str(path): [line_of(path, "# in the parent")]},
            tensorpoints=["data:out.bias.grad", "data:of.nothing"],
        )
        stopped = session.stopped()
        frame = session.frames(stopped)[0]["id"]
        session.request(
            "evaluate", expression="tp watch net.seen if norm > 2", context="repl", frameId=frame
        )
        session.resume()
        with session.child(filters=[]) as child:
            stopped = child.stopped()
            assert stopped["description"] == "Paused on change of out.bias.grad"
            assert child.top(stopped) == ("program.py", line_of(path, "# backward"))
            listed = child.console("tp list")
            assert "data:seen if norm > 2  (launch)" in listed and "data:of.nothing" in listed
            child.console(f"tp off {listed.split('data:out.bias.grad')[0].split()[-1].strip(':')}")
            child.resume(stopped)
            stopped = child.stopped()
            assert "norm > 2 for seen" in stopped["text"]
            assert child.top(stopped) == ("program.py", line_of(path, "# calls out"))
            child.resume(stopped)
            child.expect("terminated")
        assert session.exit_code() == 0


@pytest.mark.parametrize("count", ["%0", "three", ">"])
def test_a_bad_hit_count_is_refused(count: str) -> None:
    from tensorpoint.conditions import ConditionError
    from tensorpoint.conditions.hits import parse_hits

    with pytest.raises(ConditionError, match="a hit count is a number"):
        parse_hits(count)

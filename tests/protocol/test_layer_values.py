"""What can be done with the values of a layer: set, watched, drawn; commands typed at its frame."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.protocol.dap import Message, Session, line_of
from tests.protocol.test_layer_steps import BLOCKS, at_a_layer

pytestmark = pytest.mark.usefixtures("resident_process")


class Paused:
    """A session that is paused in `layers.0.mlp`, at a line of its forward."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.look(at_a_layer(session))

    def look(self, stopped: Message) -> None:
        self.stopped = stopped
        self.frame: int = self.session.frames(stopped)[0]["id"]

    def reference(self, scope: str) -> int:
        scopes = self.session.request("scopes", frameId=self.frame)["scopes"]
        return next(item["variablesReference"] for item in scopes if item["name"] == scope)

    def rows(self, scope: str, **page: int) -> dict[str, Message]:
        rows = self.session.request("variables", variablesReference=self.reference(scope), **page)[
            "variables"
        ]
        return {row["name"]: row for row in rows}

    def below(self, row: Message, **page: Any) -> dict[str, Message]:
        rows = self.session.request(
            "variables", variablesReference=row["variablesReference"], **page
        )["variables"]
        return {row["name"]: row for row in rows}

    def watchable(self, **what: Any) -> Message:
        return self.session.request("dataBreakpointInfo", **what)

    def value(self, expression: str) -> str:
        return self.session.evaluate(expression, self.stopped, "watch")


@pytest.fixture
def paused() -> Iterator[Paused]:
    with Session() as session:
        yield Paused(session)


def test_each_row_has_an_expression_that_leads_to_it(paused: Paused) -> None:
    paused.look(paused.session.step("stepOut", paused.stopped))
    found: dict[str, str] = {}
    for scope in ("Inputs", "Outputs", "Parameters", "Gradients"):
        for name, row in paused.rows(scope).items():
            found[name if scope != "Gradients" else f"{name}'"] = row["evaluateName"]
            value = paused.session.request(
                "evaluate", expression=row["evaluateName"], frameId=paused.frame, context="watch"
            )
            assert value["result"].startswith(row["value"])
    assert found["x"] == "inputs['x']"
    assert found["output"] == "output"
    assert found["up.weight"] == "self.up.weight"
    assert found["up.weight'"] == "self.up.weight.grad"
    assert paused.rows("Statistics")["output"]["evaluateName"] is None
    # Of a list of layers no attribute leads there.
    paused.frame = paused.session.frames(paused.stopped)[-1]["id"]
    weights = paused.rows("Parameters")
    name = "layers.0.norm.weight"
    assert weights[name]["evaluateName"] == f"self.get_parameter('{name}')"
    assert list(paused.rows("Parameters", start=1, count=2)) == list(weights)[1:3]


def test_elements_are_set_and_what_cant_be_is_refused_with_the_reason(paused: Paused) -> None:
    session = paused.session
    weight = paused.below(paused.rows("Parameters")["up.weight"])
    # What is below a row has expressions for the layer as well.
    assert weight["shape"]["evaluateName"] == "self.up.weight.shape"
    (row,) = paused.below(weight["values"], filter="indexed", count=1).values()
    assert row["name"] == "[0]" and row["value"] != "2.5"
    answer = session.request(
        "setVariable",
        variablesReference=row["variablesReference"],
        name="[1]",
        value="5 / 2",
    )
    assert answer["value"] == "2.5"
    # A leaf that requires a gradient: torch itself refuses the assignment as a statement.
    answer = session.request(
        "setExpression", expression="self.up.weight[0, 0]", value="7.0", frameId=paused.frame
    )
    assert answer["value"] == "f32[] cpu grad = 7"
    assert paused.value("self.up.weight[0, :2].tolist()") == "[7.0, 2.5]"
    session.request("setExpression", expression="h[0]", value="torch.ones(8)", frameId=paused.frame)
    assert paused.value("h[0].tolist()") == str([1.0] * 8)
    refused = session.refused(
        "setExpression", expression="self.up.weight[9, 9]", value="1", frameId=paused.frame
    )
    assert "self.up.weight" in refused and "9" in refused and "Traceback" not in refused
    refused = session.refused(
        "setExpression", expression="self.up.weight", value="1", frameId=paused.frame
    )
    assert "cannot assign" in refused
    refused = session.refused(
        "setVariable", variablesReference=paused.reference("Inputs"), name="x", value="1"
    )
    assert "inputs['x'].data.zero_()" in refused
    refused = session.refused(
        "setVariable", variablesReference=paused.reference("Statistics"), name="x", value="1"
    )
    assert "read from a tensor" in refused


def test_what_an_expression_in_a_layer_has_changed_is_shown(paused: Paused) -> None:
    hover = partial(paused.session.evaluate, "x", paused.stopped, "hover")
    assert "[7, 7]" not in hover()
    # Past autograd: no version counter knows of it.
    paused.session.evaluate("x.data.fill_(7)", paused.stopped, "repl")
    assert "[7, 7]" in hover()


def test_data_breakpoints_are_set_from_the_scopes(paused: Paused) -> None:
    session, ids = paused.session, []
    for name, scope, description in (
        ("up.weight", "Parameters", "layers.0.mlp.up.weight"),
        ("down.bias", "Gradients", "layers.0.mlp.down.bias.grad"),
    ):
        found = paused.watchable(variablesReference=paused.reference(scope), name=name)
        assert found["description"] == description
        ids.append(found["dataId"])
    # The same by an expression in the layer.
    found = paused.watchable(name="self.down.bias.grad", frameId=paused.frame)
    assert found["description"] == "layers.0.mlp.down.bias.grad"
    local = paused.watchable(name="h", frameId=paused.frame)
    assert local["dataId"] and local["description"] == "h"
    none = paused.watchable(variablesReference=paused.reference("Statistics"), name="x")
    assert none["dataId"] is None and "watch the tensor" in none["description"]
    none = paused.watchable(name="nothing", frameId=paused.frame)
    assert none["dataId"] is None and "nothing" in none["description"]
    none = paused.watchable(name="self", frameId=paused.frame)
    assert none["dataId"] is None and "only tensors" in none["description"]
    # `h` is written by the ReLU that follows, which works in place.
    session.request("setDataBreakpoints", breakpoints=[{"dataId": local["dataId"]}])
    session.resume(paused.stopped)
    stopped = session.stopped()
    assert stopped["description"] == "Paused on change of h"
    session.request("setDataBreakpoints", breakpoints=[{"dataId": name} for name in ids])
    session.resume(stopped)
    stopped = session.stopped()
    assert "layers.0.mlp.down.bias" in stopped["text"]


def test_a_tensor_is_drawn_and_locals_are_shown_inline_at_a_layer(paused: Paused) -> None:
    session = paused.session
    body = session.request("tensorpoint/tensor", expression="inputs[0]", frameId=paused.frame)
    assert body["shape"] == [2, 4] and "mean" in body["figures"]
    inline = session.request("tensorpoint/inlineValues", frameId=paused.frame)
    assert {"x", "h"} <= {row["name"] for row in inline["values"]}
    assert inline["firstLine"] == line_of(BLOCKS, "h = self.up(x)") - 1
    refused = session.refused("tensorpoint/tensor", expression="nothing", frameId=paused.frame)
    assert "nothing" in refused
    # A layer whose forward has not begun has no locals.
    paused.look(session.step("next", paused.stopped))
    assert session.request("tensorpoint/inlineValues", frameId=paused.frame)["values"] == []


def test_commands_are_understood_at_a_frame_of_a_layer(paused: Paused) -> None:
    session = paused.session

    def type_in(line: str) -> str:
        return session.request("evaluate", expression=line, frameId=paused.frame, context="repl")[
            "result"
        ]

    assert type_in("tp list") == "no tensorpoint is set"
    number, _, what = type_in("tp watch self.up.weight").partition(": ")
    assert what == "data:layers.0.mlp.up.weight if changed"
    assert type_in(f"tp off {number}") == f"off: {what}"
    refused = session.refused(
        "evaluate", expression="tp watch nothing", frameId=paused.frame, context="repl"
    )
    assert "nothing" in refused
    targets = session.request("completions", frameId=paused.frame, text="tp st", column=6)
    assert [item["label"] for item in targets["targets"]] == ["step"]
    targets = session.request("completions", frameId=paused.frame, text="tp wa", column=6)
    assert [item["label"] for item in targets["targets"]] == ["watch"]
    assert type_in("tp step line") == "stepping by lines"
    assert session.stopped()["threadId"] == 1

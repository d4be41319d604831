"""Who wants facts in a session, and how they look in the console."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tensorpoint.dap import console
from tensorpoint.dap.breakpoints import Tensorpoints
from tensorpoint.dap.facts import Recording, request, table
from tensorpoint.wire import WIRE_VERSION, Facts
from tensorpoint.wire.facts import Layer, Output, Parameter, Root, Statistics

LAYER = Layer(
    module="h.0",
    module_type="Block",
    root=0,
    step=3,
    calls=1,
    training=True,
    file=None,
    line=None,
    function=None,
    outputs=(Output("output", "float32", (2, 3), "cpu"),),
    statistics=Statistics(3, 6, 6, False, 0.5, 1.0, -1.0, None, 0.25, 0.0),
    history=None,
)
PARAMETER = Parameter(
    parameter="h.0.weight",
    root=0,
    dtype="float32",
    shape=(3,),
    device="cpu",
    trainable=True,
    gradient_norm=None,
    gradient_finite=False,
    step=3,
    optimizer_step=3,
    age=0,
    norm=2.0,
    norm_sampled=False,
    update_ratio=None,
    history=None,
)
FACTS = Facts(
    version=WIRE_VERSION,
    pid=1,
    time=0.0,
    python="3.11",
    torch="2.9",
    recording=True,
    step=3,
    optimizer_step=4,
    roots=(Root("Net", 3),),
    layers=(LAYER,),
    parameters=(PARAMETER,),
)


def test_the_table_says_what_is_known() -> None:
    lines = table(FACTS).splitlines()
    assert lines[0] == "step 3, after 4 optimizer steps"
    assert lines[2].split() == [
        *("layer", "class", "output", "mean", "std", "min", "max", "zero", "non-finite")
    ]
    assert lines[3].split() == [
        *("h.0", "Block", "float32[2,3]", "0.5", "1", "-1", "-", "25.0%", "0.0%")
    ]
    assert lines[6].split() == ["h.0.weight", "float32[3]", "2", "not", "finite", "0"]


def test_the_table_is_bounded() -> None:
    lines = table(replace(FACTS, layers=(LAYER,) * 100)).splitlines()
    assert "... and 60 more: tp facts GLOB" in lines
    assert len(lines) < 60


def test_the_table_of_nothing() -> None:
    assert table(replace(FACTS, note="why")) == "why"
    assert "no layer matches" in table(replace(FACTS, layers=(), parameters=()))


def test_recording_lasts_as_long_as_somebody_wants_it() -> None:
    recording = Recording()
    assert recording.want("launch", True)
    assert not recording.want("request", True)
    assert not recording.want("launch", False)
    assert recording.is_on
    assert recording.want("request", False)
    recording.want("launch", True)
    assert recording.want("console", False)
    assert not recording.is_on


def test_the_configuration_of_a_program_and_of_its_children() -> None:
    parent, child = Recording(), Recording()
    arguments = {"record": False, "factsFile": "f.json", "cwd": "/runs"}
    parent.take(arguments, is_child=False)
    assert arguments == {"cwd": "/runs"}
    assert parent.is_on and parent.file_in_force == "/runs/f.json"
    configuration = {"subProcessId": 12}
    parent.pass_on(configuration)
    assert configuration == {"subProcessId": 12, "record": True, "factsFile": "/runs/f.json"}
    child.take(configuration, is_child=True)
    assert child.file_in_force == "/runs/f.json.12"
    grandchild = {}
    child.pass_on(grandchild)
    assert grandchild["factsFile"] == "/runs/f.json"


def test_the_plan_says_whether_to_record() -> None:
    tensorpoints = Tensorpoints()
    assert not tensorpoints.plan().record
    assert console.run("tp record on", tensorpoints) == ("facts are recorded", True)
    assert console.run("tp record on", tensorpoints)[1] is False
    assert tensorpoints.plan().record and tensorpoints.plan().facts_file == ""
    tensorpoints.clear()
    assert tensorpoints.plan().record
    assert console.run("tp record off", tensorpoints) == ("facts are not recorded", True)
    assert not tensorpoints.plan().record


@pytest.mark.parametrize(
    ("line", "glob"),
    [
        ("tp facts", "*"),
        (" tp facts  h.*.mlp ", "h.*.mlp"),
        ('tp facts "h.0"', "h.0"),
        ("tp list", None),
        ("tp factsheet", None),
    ],
)
def test_the_glob_of_a_console_line(line: str, glob: str | None) -> None:
    assert console.facts_glob(line) == glob


@pytest.mark.parametrize("wrong", [{"layers": 3}, {"history": "yes"}, {"record": 1}])
def test_wrong_arguments_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        request(wrong)

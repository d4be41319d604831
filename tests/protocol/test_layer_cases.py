"""Steps into layers in all the ways in which programs call modules: one program, one case each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.protocol.dap import Session, line_of

pytestmark = pytest.mark.usefixtures("resident_process")

CASES = Path(__file__).parent / "layers" / "cases.py"
BEGINS = {str(CASES): [line_of(CASES, "# it begins here")]}
TWO = ["> (root) (Two)", "> inner (ReLU)", "> last (Linear)", "< (root) (Two)"]
RAISES = [
    *("> (root) (Two)", "> inner (Tries)", "> inner.fails (Raises)", "> inner.works (Linear)"),
    *("< inner (Tries)", "> last (Linear)", "< (root) (Two)"),
]
DEEP = "inner (Deep)"
SAVED = [
    *("> (root) (Saved)", "> block (Two)", "> block.inner (Tanh)", "> block.last (Linear)"),
    *("< block (Two)", "> last (Linear)", "< (root) (Saved)"),
    *("b> (root) (Saved)", "b> last (Linear)"),
]
#: What steps in stop at: entries, exits ("<"), and in backward ("b"). "*" is a forward run again.
EXPECTED: dict[str, list[str]] = {
    "raises": RAISES,
    "shared": ["> (root) (Shared)", *["> one (Linear)"] * 3, "< (root) (Shared)"],
    "recursion": [
        *("> (root) (Two)", *[f"> {DEEP}"] * 4, *[f"< {DEEP}"] * 3),
        *("> last (Linear)", "< (root) (Two)"),
    ],
    "none": [
        *("> (root) (Silent)", "> (root) (Sequential)", "> 0 (Linear)", "< (root) (Sequential)"),
    ],
    "sequential": [
        *("> (root) (Sequential)", "> 0 (Linear)", "> 1 (Sequential)", "> 1.0 (ReLU)"),
        *("< 1 (Sequential)", "< (root) (Sequential)"),
    ],
    "lists": [
        *("> (root) (Lists)", "> steps.0 (Linear)", "> steps.1 (GELU)", "> by_name.rnn (LSTM)"),
        "< (root) (Lists)",
    ],
    # No hook runs for what is called through `.forward()`: its children are the caller's.
    "direct": [
        *("> (root) (Direct)", "> inner.inner (ReLU)", "> inner.last (Linear)"),
        *("> last (Linear)", "< (root) (Direct)"),
    ],
    # torch's fast path computes the whole layer in one call, in which there are no others.
    "fast": [
        *("> (root) (Attends)", "> layer (TransformerEncoderLayer)", "> last (Linear)"),
        "< (root) (Attends)",
    ],
    "attends": [
        *("> (root) (Looks)", "> attention (MultiheadAttention)", "> last (Linear)"),
        "< (root) (Looks)",
    ],
    "nested": [
        *("> (root) (Encodes)", "> encoder (TransformerEncoder)"),
        *(f"> encoder.layers.{n} (TransformerEncoderLayer)" for n in (0, 1)),
        *("< encoder (TransformerEncoder)", "< (root) (Encodes)"),
    ],
    "checkpoint": [
        *(*SAVED, "b> block (Two)", "b> block.last (Linear)"),
        *("> block (Two) *", "> block.inner (Tanh)", "> block.last (Linear)"),
        *("b< block.last (Linear)", "b> block.inner (Tanh)", "b< (root) (Saved)"),
    ],
    "reentrant": [
        *(*SAVED, "> block (Two) *", "> block.inner (Tanh)", "> block.last (Linear)"),
        *("< block (Two) *", "b> block (Two)", "b> block.last (Linear)", "b> block.inner (Tanh)"),
        "b< (root) (Saved)",
    ],
    "functional": TWO,
    "vmap": TWO,
    "compiled": ["> (root) (OptimizedModule)", "> (root) (OptimizedModule)"],
    "models": [
        *TWO,
        *(name.replace("ReLU", "Tanh") for name in TWO),
        *("b> (root) (Two)", "b> last (Linear)", "b> inner (Tanh)", "b< (root) (Two)"),
        *("b> (root) (Two)", "b> last (Linear)", "b< (root) (Two)"),
    ],
    "late": [
        *TWO,
        *("> (root) (Lists)", "> steps.0 (Linear)", "> steps.1 (GELU)", "> by_name.rnn (LSTM)"),
        "< (root) (Lists)",
    ],
}


@pytest.fixture(scope="module")
def stepped() -> Iterator[dict[str, list[str]]]:
    """What each case stops at, all in one session; "ends" is the next case, or the end."""
    found: dict[str, list[str]] = {}
    with Session() as session:
        session.launch(CASES, filters=[], breakpoints=BEGINS, args=[*EXPECTED, "sequential"])
        session.stopped()
        for case in EXPECTED:
            session.console("tp step layer")
            stopped = session.stopped(120)
            seen = found[case] = []
            while stopped["reason"] == "step" and len(seen) < len(EXPECTED[case]):
                seen.append(_short(session, stopped))
                session.request("stepIn", threadId=stopped["threadId"])
                stopped = session.stopped()
            while stopped["reason"] == "step":  # "models" does the same again
                session.request("continue", threadId=stopped["threadId"])
                stopped = session.stopped()
        assert "fault" not in session.output("important"), session.output("important")
        yield found
        session.resume()
        assert session.exit_code() == 0


def _short(session: Session, stopped: dict[str, Any]) -> str:
    name = stopped["description"]
    back = name.endswith(" in backward")
    name = name.removesuffix(" in backward")
    arrow = ">" if name.startswith("Entering ") else "<"
    top = session.frames(stopped)[0]["name"]
    if "OptimizedModule" in name:
        assert "compiled: one layer" in top
    again = " *" if "recomputed for backward" in top else ""
    return f"{'b' if back else ''}{arrow} {name.partition(' ')[2]}{again}"


@pytest.mark.xdist_group("layer cases")
@pytest.mark.parametrize("case", EXPECTED)
def test_steps_in_stop_at_each_layer(case: str, stepped: dict[str, list[str]]) -> None:
    assert stepped[case] == EXPECTED[case]


def test_threads_of_the_program_step_each_for_themselves() -> None:
    with Session() as session:
        session.launch(
            CASES,
            filters=[],
            args=["thread", "replicas", "large"],
            functions=[{"name": "layer:last@exit", "hitCondition": "<= 2"}],
        )
        stopped = session.stopped()
        worker = stopped["threadId"]
        assert worker != 1
        session.console("tp step layer")
        stopped = session.stopped()
        assert stopped["layer"] == {"module": "last", "module_type": "Linear", "phase": "exit"}
        stopped = session.step("next", stopped)
        assert stopped["description"] == "Leaving (root) (Two)"
        session.request("continue", threadId=stopped["threadId"])
        # Of two replicas, whose threads stop one after the other, the first steps on.
        stopped = session.stopped()
        assert stopped["threadId"] not in (1, worker)
        session.console("tp step out")
        stopped = session.stopped()
        assert stopped["description"] == "Leaving (root) (Two)"
        session.request(
            "setFunctionBreakpoints", breakpoints=[{"name": "layer:3.0", "condition": ""}]
        )
        session.request("continue", threadId=stopped["threadId"])
        # A model of 3,000 modules below a root.
        stopped = session.stopped()
        assert stopped["tensorpoint"]["module"] == "3.0"
        session.console("tp step out")
        stopped = session.stopped()
        assert stopped["description"] == "Leaving 3 (Sequential)"
        stopped = session.step("stepOut", stopped)
        assert stopped["description"] == "Leaving (root) (Sequential)"
        session.request("continue", threadId=stopped["threadId"])
        assert session.exit_code() == 0
        assert "fault" not in session.output("important"), session.output("important")


def test_generation_shows_the_token_of_each_call(write: Any) -> None:
    program = write("""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=2, eos_token_id=None, pad_token_id=0,
            )
        ).eval()
        print(model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=3, do_sample=False))
        """)
    with Session() as session:
        session.launch(program, filters=[], functions=[{"name": "layer:LlamaForCausalLM"}])
        tokens: list[str] = []
        for _ in range(3):
            stopped = session.stopped()
            threads = session.request("threads")["threads"]
            session.request("stackTrace", threadId=threads[-1]["id"])
            frames = session.request("stackTrace", threadId=threads[-1]["id"])["stackFrames"]
            tokens.append(frames[-1]["name"])
            if len(tokens) == 3:
                break
            session.resume(stopped)
        assert tokens == [
            f"(root) (LlamaForCausalLM) [entry, token {token}]" for token in (0, 3, 4)
        ]
        session.console("tp step layer")
        stopped = session.step("stepIn", session.stopped())
        assert stopped["description"] == "Entering model (LlamaModel)"
        stopped = session.step("stepOut", stopped)
        assert stopped["description"] == "Leaving (root) (LlamaForCausalLM)"
        # Back from there: the cache that the call has grown is as it was.
        stopped = session.step("stepBack", stopped)
        assert stopped["description"] == "Entering (root) (LlamaForCausalLM)"
        assert "token 4" in session.frames(stopped)[-1]["name"]
        session.request("continue", threadId=stopped["threadId"])
        assert session.exit_code() == 0

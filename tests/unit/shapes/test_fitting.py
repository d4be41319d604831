"""Expression to sizes and back: what is fitted has the values of what was planted, everywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpoint.shapes.tracing.fitting import Fit, value_of
from tensorpoint.shapes.tracing.sizes import plans

PLAN = next(plans(("B", "H", "W"), ()))
PLAIN = st.sampled_from(["B", "H", "W"])


@st.composite
def rules(draw: st.DrawFn) -> str:
    """What layers make of sizes: strides and paddings of a side, patches, batches of these."""
    name = draw(st.sampled_from(["H", "W"]))
    stride = draw(st.sampled_from([2, 3, 4, 7, 8, 14, 16, 32]))
    shift = draw(st.integers(-6, stride))
    side = f"({name} + {shift})//{stride}"
    return draw(
        st.sampled_from(
            [
                side,
                f"{draw(st.sampled_from([2, 4, 16]))}*({side}) + {draw(st.integers(-3, 9))}",
                f"B*({side})",
                f"(H//{stride})*(W//{stride}) + {draw(st.integers(0, 2))}",
                f"B*ceil(H/{stride})*ceil(W/{stride})",
                f"{draw(st.integers(1, 2048))}*{draw(PLAIN)} + {draw(st.integers(-4, 9))}",
                f"{draw(PLAIN)} + 2*{draw(PLAIN)}",
                f"H*W + {draw(st.integers(0, 3))}",
            ]
        )
    )


@given(rules())
@settings(max_examples=120, deadline=None)
def test_a_planted_rule_is_found(rule: str) -> None:
    probes = list(PLAN.probes)
    allowed = PLAN.more((), count=60)
    values: tuple[int, ...] = ()
    fit = Fit(probes, {}, allowed)
    for _ in range(6):  # as `probing` does: a probe where two rules differ
        fit = Fit(probes, {}, allowed)
        values = tuple(value_of(rule, probe) or 0 for probe in probes)
        sizes = fit.apart(values, allowed)
        if sizes is None:
            break
        probes.append(sizes)
    found = fit.best(values)
    if found is None:  # probes are limited: then nothing is shown
        assert len(fit.candidates(values)) > 1, rule
        return
    draw = random.Random(3)
    for _ in range(50):
        names = ("B", "H", "W")
        sizes = {name: draw.randint(40, 300) for name in names}
        assert value_of(found, sizes) == value_of(rule, sizes), (rule, found, sizes)


@pytest.mark.parametrize(
    ("rule", "written"),
    [
        ("(H - 1)//2 + 1", "ceil(H/2)"),
        ("((H - 1)//2)//2 + 1", "ceil(H/4)"),
        ("2*((H + 1)//2)", "2*ceil(H/2)"),
        ("(H - 3)//1 + 1", "H - 2"),
        ("(H + 4 - 3)//2 + 1", "ceil(H/2) + 1"),
        ("B*64*(H//4)", "B*(64*(H//4))"),
        ("(-H) % 8", "-H % 8"),
        ("7", "7"),
    ],
)
def test_a_rule_is_written_as_a_person_would(rule: str, written: str) -> None:
    probes = [*PLAN.probes, *PLAN.more((), count=12)]
    values = tuple(value_of(rule, probe) or 0 for probe in probes)
    assert Fit(probes).best(values) == written


def test_what_rivals_fit_is_shown_only_where_they_are_the_same_everywhere() -> None:
    probes = [{"H": size} for size in (64, 128, 192, 256, 320)]  # floor and ceil are the same here
    values = tuple(probe["H"] // 14 for probe in probes)
    assert len(Fit(probes).candidates(values)) > 1
    assert Fit(probes, {}, [{"H": size} for size in range(64, 320)]).best(values) is None
    assert Fit(probes, {}, [{"H": 64}]).best(values) is not None


def test_what_no_rule_fits_is_not_shown() -> None:
    draw = random.Random(1)
    for _ in range(5):
        values = tuple(draw.randint(100, 999) for _ in PLAN.probes)
        assert Fit(PLAN.probes).best(values) is None, values


def test_known_divisors_are_written_as_quotients() -> None:
    probes = [{"H": 32 * n} for n in (3, 5, 7, 8, 11)]
    values = tuple(probe["H"] // 32 for probe in probes)
    assert Fit(probes, {"H": 32}).best(values) == "H/32"

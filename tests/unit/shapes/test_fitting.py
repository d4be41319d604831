"""Expression to sizes and back: what is fitted has the values of what was planted, everywhere."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorpoint.shapes.tracing.expressions import Elsewhere, value_of
from tensorpoint.shapes.tracing.fitting import CHECKS, Fit
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
    others = Elsewhere(*PLAN.compared(()))
    values: tuple[int, ...] = ()
    fit = Fit(probes, {}, others)
    for _ in range(8):  # as `settling` does: a probe where rules differ
        fit = Fit(probes, {}, others)
        values = tuple(value_of(rule, probe) or 0 for probe in probes)
        splits = fit.splits(values)
        if not splits:
            break
        probes.append(others.sizes[max(splits, key=splits.__getitem__)])
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
        ("B*64*(H//4)", "B*64*(H//4)"),
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
    assert Fit(probes, {}, Elsewhere([{"H": size} for size in range(64, 320)])).best(values) is None
    assert Fit(probes, {}, Elsewhere([{"H": 64}])).best(values) is not None


def test_what_no_rule_fits_is_not_shown() -> None:
    draw = random.Random(1)
    for _ in range(5):
        values = tuple(draw.randint(100, 999) for _ in PLAN.probes)
        assert Fit(PLAN.probes).best(values) is None, values


def test_known_divisors_are_written_as_quotients() -> None:
    probes = [{"H": 32 * n} for n in (3, 5, 7, 8, 11)]
    values = tuple(probe["H"] // 32 for probe in probes)
    assert Fit(probes, {"H": 32}).best(values) == "H/32"


@st.composite
def steps(draw: st.DrawFn) -> list[str]:
    """What a program makes of a side, step by step, and at last a rule over two of its sides."""
    done: list[str] = []
    for name in ("H", "W"):
        text = name
        for _ in range(draw(st.integers(1, 3))):
            stride = draw(st.sampled_from([2, 2, 3, 4, 7, 14]))
            shift = draw(st.integers(0, stride - 1))
            text = f"({text} + {shift})//{stride}"
            done.append(text)
    high, wide = done[draw(st.integers(0, len(done) - 1))], done[-1]
    window = draw(st.sampled_from([2, 4, 7, 8]))
    last = draw(
        st.sampled_from(
            [
                f"({high})*({wide})",
                f"({high})*({wide}) + 1",
                f"B*({high})*({wide})",
                f"-({wide}) % {window}",
                f"({wide}) + -({wide}) % {window}",
                f"{draw(st.integers(2, 60))}*({wide})",
                f"max({wide}, {window})",
                f"2*({high}) + ({wide})",
                f"min({high}, {wide})",
            ]
        )
    )
    return [*done, last]


@given(steps())
@settings(max_examples=40, deadline=None)
def test_a_rule_over_other_places_is_what_was_planted_or_not_shown(rules: list[str]) -> None:
    others = Elsewhere(*PLAN.compared(()))

    def columns(sizes: list[dict[str, int]]) -> list[tuple[int, ...]]:
        return [tuple(value_of(rule, each) or 0 for each in sizes) for rule in rules]

    probes = list(PLAN.probes)
    for _ in range(10):
        fit = Fit(probes, {}, others)
        fit.learn(columns(probes))
        splits = [fit.splits(each) for each in columns(probes)]
        if not any(splits):
            break
        asked = max(splits, key=len)
        probes.append(others.sizes[max(asked, key=asked.__getitem__)])
    probes += others.sizes[:CHECKS]
    *before, last = columns(probes)
    assume(last not in before and len(set(last)) > 1)  # a bound, a window that no probe has met
    fit = Fit(probes, {}, others, held=CHECKS)
    fit.learn([*before, last])
    for rule, values in zip(rules, columns(probes)):
        found = fit.best(values)
        for sizes in others.sizes[: others.beyond] if found else ():
            assert value_of(found or "", sizes) == value_of(rule, sizes), (rule, found, sizes)


@pytest.mark.parametrize(
    ("places", "written"),
    [
        (["(H + 1)//4", "(W + 1)//4", "((H + 1)//4)*((W + 1)//4) + 1"], None),
        (["H//14", "W//14", "((H//14) + 1)//2"], "(H + 14)//28"),
        (["H//14", "14*(H//14)"], None),
        (["H//4", "-(H//4) % 7"], None),
        (["H//4", "min(H//4, 40)"], None),
        (["(H + 13)//16", "B*((H + 13)//16)**2"], None),
        (["H//4", "ceil(W/4)", "min(H//4, ceil(W/4))"], None),
        (["H//3", "W//5", "2*(W//5) - (H//3)"], None),
        (
            [
                *("(H//8)*(W//8)", "ceil(H/16)*ceil(W/16)", "ceil(H/32)*ceil(W/32)"),
                "(H//8)*(W//8) + ceil(H/16)*ceil(W/16) + ceil(H/32)*ceil(W/32)",
            ],
            None,
        ),
        (["(H + 13)//16", "(W + 13)//16", "2*((H + 13)//16)*((W + 13)//16) - 3"], None),
    ],
)
def test_a_rule_over_other_places_is_written_as_a_person_would(
    places: list[str], written: str | None
) -> None:
    others = Elsewhere(*PLAN.compared(()))
    probes = [*PLAN.probes, *others.sizes[:60]]
    columns = [tuple(value_of(each, sizes) or 0 for sizes in probes) for each in places]
    fit = Fit(probes, {}, others, held=CHECKS)
    fit.learn(columns)
    assert fit.best(columns[-1]) == (written or places[-1])


@pytest.mark.parametrize(
    "places",
    [
        ["ceil(H/32)", "7*ceil(H/224)", "ceil(H/224)"],
        [
            *(f"-ceil({side}/{stride}) % {window}" for side in "HW" for stride in (4, 8, 16, 32)
              for window in (5, 7, 8, 12)),
            *(f"ceil({side}/{stride}) % 7" for side in "HW" for stride in (4, 8, 16, 32)),
            *("ceil(H/112)", "ceil(W/112)", "B*ceil(H/112)*ceil(W/112)"),
        ],
    ],
    ids=["rises seldom", "many terms"],
)  # fmt: skip
def test_windows_of_what_strides_have_left_have_a_rule(places: list[str]) -> None:
    others = Elsewhere(*PLAN.compared(()))
    probes = list(PLAN.probes)
    for _ in range(20):  # as `settling` does
        columns = [tuple(value_of(each, sizes) or 0 for sizes in probes) for each in places]
        fit = Fit(probes, {}, others)
        fit.learn(columns)
        splits = next(filter(None, map(fit.splits, columns)), None)
        if splits is None:
            break
        probes.append(others.sizes[max(splits, key=splits.__getitem__)])
    probes += others.sizes[:CHECKS]
    columns = [tuple(value_of(each, sizes) or 0 for sizes in probes) for each in places]
    fit = Fit(probes, {}, others, held=CHECKS)
    fit.learn(columns)
    assert fit.best(columns[-1]) == places[-1]


def test_a_rule_over_other_places_that_was_not_checked_is_not_shown() -> None:
    others = Elsewhere(*PLAN.compared(()))
    probes = [*PLAN.probes, *others.sizes[:60]]
    side, count = "(H + 13)//16", "((H + 13)//16)*((W + 13)//16)"
    for held, shown in ((0, None), (CHECKS, count)):
        fit = Fit(probes, {}, others, held=held)
        columns = [
            tuple(value_of(text, sizes) or 0 for sizes in probes)
            for text in (side, side.replace("H", "W"), count)
        ]
        fit.learn(columns)
        assert fit.best(columns[-1]) == shown
        assert fit.best(columns[0]) == side


def test_what_chance_has_made_of_a_place_does_not_hold_in_the_checks() -> None:
    others = Elsewhere(*PLAN.compared(()))
    probes = [*PLAN.probes, *others.sizes[:6]]
    columns = [tuple(value_of(text, sizes) or 0 for sizes in probes) for text in ("H//14", "W//14")]
    right = tuple(a * b for a, b in zip(*columns))
    wrong = (*right[:-1], right[-1] + 1)
    fit = Fit(probes, {}, others, held=CHECKS)
    fit.learn([*columns, wrong])
    assert fit.best(wrong) is None


def test_rivals_are_looked_for_at_each_size_of_a_symbol() -> None:
    inside, beyond = PLAN.compared(())
    assert {each["H"] for each in inside} == set(range(75, 257))
    assert all(each["W"] > 320 for each in beyond)
    others = Elsewhere(inside, beyond)
    assert others.splits(["(H + 5)//16", "(H + 6)//16"])
    assert not others.splits(["ceil(ceil(H/2)/2)", "ceil(H/4)"])
    ends = ["H", "min(H, 256)"]
    assert min(others.splits(ends)) >= others.beyond
    others.refuse(max(others.splits(ends)))  # it does not run there: a table ends
    assert not others.splits(ends)


def test_limits_are_kept_where_rules_are_compared() -> None:
    inside, beyond = PLAN.compared(["H <= 300", "W % 2 == 0"])
    assert inside and all(each["W"] % 2 == 0 for each in inside)
    assert all(each["H"] <= 300 for each in beyond)

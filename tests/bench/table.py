"""The tables that the bench prints: ratios first, then what they are made of."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.table import Table
from rich.text import Text

from tests.bench.branched import TARGET_MIB as SHAPES_MIB
from tests.bench.branched import TARGET_S as SHAPES_S
from tests.bench.branched import Branched
from tests.bench.entropy import CONDITION, FACTORS, LEAST_CHANGE, Detection
from tests.bench.forks import Fork
from tests.bench.latency import TARGET_P50_MS, Latency
from tests.bench.layer_steps import TARGET_RATIO, LayerSteps
from tests.bench.located import NUMERIC, Located
from tests.bench.overhead import NAN_INF, Overhead
from tests.bench.spread import Spread
from tests.bench.start import TARGET_S, Starts
from tests.bench.traced import Traced
from tests.bench.values import TARGET_MS, Viewed


def latency_table(rows: Sequence[Latency]) -> Table:
    """Requests through ours, stock debugpy, and stock debugpy with TCP_NODELAY ("no delay")."""
    table = _table(
        "Protocol latency, `tensorpoint dap` with NaN/Inf armed beside debugpy's adapter (ms)",
        "what the editor waits for",
        [
            *("ours / stock", "ours / no delay", f"p50 ≤ {TARGET_P50_MS:.0f} ms"),
            *("ours p50", "p90", "stock p50", "p90", "no delay p50", "p90"),
        ],
    )
    for row in rows:
        measured = (row.ours, row.stock, row.stock_no_delay)
        table.add_row(
            row.what,
            f"{row.ratio:.2f}",
            f"{row.ratio_no_delay:.2f}",
            _verdict(row.met),
            *(f"{value:.1f}" for item in measured for value in (item.p50, item.p90)),
        )
    return table


def values_table(rows: Sequence[Viewed]) -> Table:
    """Values that an editor asks for; where stock debugpy gave no answer, the least ratio."""
    table = _table(
        "Values while paused, `tensorpoint dap` beside debugpy's adapter (ms, p50)",
        "what the editor asks for",
        ["ours / stock", f"≤ {TARGET_MS:.0f} ms", "ours", "stock", "rounds"],
    )
    for row in rows:
        silent = row.stock is None
        table.add_row(
            row.what,
            f"{'< ' if silent else ''}{row.ratio:.4f}",
            _verdict(row.met),
            f"{row.ours:.1f}",
            "no answer in 10 s" if row.stock is None else f"{row.stock:.1f}",
            str(row.rounds),
        )
    return table


def layer_steps_table(steps: LayerSteps) -> Table:
    """A step by layers beside a step by lines."""
    table = _table(
        "Steps by layers beside steps by lines, nothing armed (ms)",
        "",
        ["layer / line", f"≤ {TARGET_RATIO:.0f}", "layer p50", "line p50", "rounds"],
    )
    table.add_row(
        "step → stopped",
        f"{steps.ratio:.2f}",
        _verdict(steps.met),
        f"{steps.layer_ms:.1f}",
        f"{steps.line_ms:.1f}",
        str(steps.rounds),
    )
    return table


def start_table(starts: Starts) -> Table:
    """From F5 to the stop in a layer, with the resident process, without, and stock debugpy."""
    table = _table(
        f"F5 → stopped in a layer of a Llama script (s); zygote {starts.zygote_mib:.0f} MiB",
        "",
        ["of cold", f"≤ {TARGET_S} s", "median", "least", "most", "rounds"],
    )
    for row in (starts.resident, starts.cold, starts.stock):
        resident = row is starts.resident
        table.add_row(
            row.what,
            f"{row.median / starts.cold.median:.3f}",
            _verdict(starts.met) if resident else "",
            *(f"{value:.2f}" for value in (row.median, row.least, row.most)),
            str(row.rounds),
        )
    return table


def forks_table(rows: Sequence[Fork]) -> Table:
    """What the resident process and kept weights give besides a quick start."""
    columns = ["ratio", "with", "without", "rounds"]
    table = _table("With the resident process, or what was kept, and without", "", columns)
    for row in rows:
        table.add_row(
            f"{row.what} ({row.unit})",
            f"{row.ratio:.3f}",
            f"{row.resident:.3g}",
            f"{row.plain:.3g}",
            str(row.rounds),
        )
    return table


def overhead_table(title: str, rows: Sequence[Overhead]) -> Table:
    """Training steps beside the base's; the columns about hooks only where they were measured."""
    accounted = any(row.share is not None for row in rows)
    columns = ["step / base", "IQR"]
    if accounted:
        columns += ["in hooks", "IQR", "target"]
    table = _table(title, "", [*columns, "step ms", "rounds"])
    model = None
    for row in rows:
        if model is not None and row.model != model:
            table.add_section()
        model = row.model
        ratio = ["1", "base"] if row.is_base else [f"{row.ratio.median:.3f}", _range(row.ratio)]
        share = ["", "", ""]
        if row.share is not None:
            share = [
                f"{row.share.median:.2%}",
                f"{row.share.low:.2%}–{row.share.high:.2%}",
                "" if row.target is None else f"≤ {row.target:.1%} {_verdict(bool(row.met))}",
            ]
        table.add_row(
            f"{row.model}: {row.what}",
            *ratio,
            *(share if accounted else []),
            f"{row.step_ms:.0f}",
            str(row.rounds),
        )
    return table


def detection_table(rows: Sequence[Detection]) -> Table:
    """False stops per head and step, and for each factor the runs that were found, with delays."""
    table = _table(
        f"`{CONDITION}`: stops in undisturbed training, and after the query and key projections of "
        f"a layer were multiplied, of the runs where that changed its entropy by {LEAST_CHANGE}",
        "",
        ["false stops", "looked at exactly", *(f"×{factor:g}: found, delay" for factor in FACTORS)],
    )
    for row in rows:
        table.add_row(
            row.what,
            f"{row.false_stops} / {row.looks}",
            f"{row.confirmed} layers",
            *(_found(*row.delays(factor)) for factor in FACTORS),
        )
    return table


def located_table(rows: Sequence[Located], costs: Sequence[Overhead]) -> Table:
    """How many planted faults each finder named by operation and line, and what it costs."""
    models = list(dict.fromkeys(row.model for row in costs))
    table = _table(
        "Planted faults named by operation and line, beside the cost of a step (step / plain)",
        "",
        ["all", "without gradients", "in training", "of gradients", "numeric cases", *models],
    )
    for finder in dict.fromkeys(row.finder for row in rows):
        of_it = [row for row in rows if row.finder == finder and row.family != NUMERIC]
        named = NAN_INF if finder == "tensorpoint" else finder
        steps = {row.model: f"{row.ratio.median:.2f}" for row in costs if named in row.what}
        table.add_row(
            finder,
            _share(of_it),
            _share([row for row in of_it if not row.trains]),
            _share([row for row in of_it if row.trains and not row.of_gradients]),
            _share([row for row in of_it if row.of_gradients]),
            _share([row for row in rows if row.finder == finder and row.family == NUMERIC]),
            *(steps.get(model, "") for model in models),
        )
    return table


def traced_table(rows: Sequence[Traced]) -> Table:
    """How long hints take after an edit."""
    table = _table(
        "Shapes after an edit, in seconds",
        "file",
        [
            *("hints", "target", "symbols and faults", "cold, hints", "cold / hints"),
            *("import alone", "≤ import + 1 s"),
        ],
    )
    for row in rows:
        table.add_row(
            row.name,
            f"{row.hints:.2f}",
            f"≤ {row.target_s:g} {_verdict(row.met)}",
            f"{row.thorough:.2f}",
            f"{row.cold:.2f}",
            f"{row.cold / row.hints:.0f}",
            f"{row.import_alone:.2f}",
            _verdict(row.met_cold),
        )
    return table


def branched_table(rows: Sequence[Branched]) -> Table:
    """What it costs to see the other side of each branch, in time and memory."""
    table = _table(
        "The other side of N branches on sizes, each by a run of its own",
        "branches",
        [
            "faults found",
            "paths",
            "runs",
            "s",
            f"s of the processor (16: ≤ {SHAPES_S:g})",
            "in Z3",
            f"MiB more (16: ≤ {SHAPES_MIB:g})",
            "target",
        ],
    )
    for row in rows:
        table.add_row(
            str(row.branches),
            f"{row.found} of {row.planted}",
            f"{2**row.branches:,}",
            str(row.runs),
            f"{row.seconds:.2f}",
            f"{row.cpu_seconds:.2f}",
            f"{row.solver_seconds:.2f}",
            f"{row.mib:.1f}",
            "" if row.met is None else _verdict(row.met),
        )
    return table


def _share(rows: Sequence[Located]) -> str:
    return f"{sum(row.exact for row in rows)} of {len(rows)}"


def _found(delays: Sequence[int], changed: int, unchanged: int) -> str:
    if not changed:
        return f"none of {unchanged} changed"
    shown = ", ".join(map(str, sorted(delays)))
    return f"{len(delays)} of {changed}" + (f", {shown}" if delays else "")


def page(*parts: Table | str) -> Stack:
    """All tables, with the sentences around them."""
    return Stack(*(Text(part) if isinstance(part, str) else part for part in parts))


def as_markdown(*parts: Table | str) -> str:
    """The tables as they are in docs/benchmarks.md."""
    return "\n\n".join(part if isinstance(part, str) else _markdown(part) for part in parts) + "\n"


def _markdown(part: Table) -> str:
    cells = [[column.header, *column.cells] for column in part.columns]
    plain = [[Text.from_markup(f"{cell}").plain for cell in column] for column in cells]
    head, *rows = (f"| {' | '.join(row)} |" for row in zip(*plain, strict=True))
    return "\n".join([f"**{part.title}**", "", head, "|---" * len(cells) + "|", *rows])


def _table(title: str, first: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _range(values: Spread) -> str:
    return f"{values.low:.3f}–{values.high:.3f}"


def _verdict(met: bool) -> str:
    return "[green]met[/]" if met else "[yellow]not met[/]"

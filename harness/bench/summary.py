"""The summary of a run on a terminal: every number with its depth, cache state and spread, caveats first."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from harness.bench.caveats import Caveat
from harness.bench.cells import TWIN
from harness.bench.statistics import CONFIDENCE, Comparison, GroupSummary, Side, Spread, noise_of
from harness.bench.store import Results

FILE_COLUMNS = 112  # a file or a pipe has no width of its own
ADVICE = "Quote the depth, the cache state and the spread with every number: the gain is another one elsewhere."


def print_summary(
    results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat], console: Console | None = None
) -> None:
    """Caveats, one table per workload and cache state, and the claims."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(width=max(console.width, FILE_COLUMNS))
    for caveat in found:
        console.print(f"! {caveat.name}: {caveat.text}", markup=False, highlight=False)
    for workload in results.plan.matrix.workloads:
        for state in results.plan.matrix.states:
            own = [s for s in summaries if s.group.workload == workload and s.group.state == state]
            if own:
                console.print(_table(own, f"{workload.kind} of {workload.tokens} tokens, {state}"))
    console.print(*claims(summaries), sep="\n", markup=False, highlight=False)
    console.print(ADVICE, markup=False, highlight=False)


def _table(summaries: Sequence[GroupSummary], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("depth", justify="right", no_wrap=True)
    table.add_column("arm", no_wrap=True)
    for column in ("tokens/s", "spread", "times baseline", "disk MB", "rows unique"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    for summary in summaries:
        compared = {comparison.arm: comparison for comparison in summary.comparisons}
        for side in summary.sides.values():
            if not side.arm.endswith(TWIN):
                table.add_row(*_row(summary, side, compared.get(side.arm)))
        table.add_section()
    return table


def _row(summary: GroupSummary, side: Side, comparison: Comparison | None) -> tuple[str, ...]:
    speeds = sorted(cell["tokens_per_s"] for cell in side.cells)
    disk = side.middle("used", "disk_bytes")
    unique, total = side.middle("rows", "unique"), side.middle("rows", "total")
    if comparison is None:
        noise = noise_of(summary.twin_ratio)
        verdict = f"baseline, itself within {noise:.2f}x" if noise else "baseline"
    else:
        verdict = comparison.verdict
    return (
        str(summary.group.depth),
        side.arm,
        short(side.speed.median),
        f"{short(speeds[0])}..{short(speeds[-1])}",
        "" if comparison is None or comparison.ratio is None else ratio_text(comparison.ratio),
        "" if disk is None else f"{disk / 1e6:,.1f}",
        "" if unique is None or total is None else f"{unique:.0f}/{total:.0f}",
        verdict,
    )


def short(value: float) -> str:
    """A number with three digits that count: 12.3, 456, 7,890, 12.3k, 4.56M."""
    for factor, letter in ((1e6, "M"), (1e4, "k")):
        if value >= factor:
            scaled = value / (1e3 if letter == "k" else factor)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{letter}"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}"


def ratio_text(spread: Spread) -> str:
    """A ratio with its interval."""
    return f"{spread.median:.2f} ({interval_text(spread)})"


def interval_text(spread: Spread) -> str:
    """An interval as low..high, or why there is none."""
    if spread.low is None or spread.high is None:
        return f"none from {spread.count}"
    return f"{spread.low:.2f}..{spread.high:.2f}"


def claims(summaries: Sequence[GroupSummary]) -> list[str]:
    """One sentence per claimed difference; one that says so when nothing is claimed."""
    lines = []
    for summary in summaries:
        for comparison in summary.comparisons:
            if comparison.claims and comparison.ratio is not None:
                lines.append(claim_text(comparison))
    return lines or ["No difference is claimed."]


def claim_text(comparison: Comparison) -> str:
    """A claimed difference in one sentence, with everything that must be quoted with it."""
    ratio = comparison.ratio
    assert ratio is not None
    return (
        f"{comparison.group.title}: {comparison.arm} is {ratio.median:.2f} times as fast as {comparison.baseline} "
        f"({CONFIDENCE:.0%} interval {interval_text(ratio)}, {ratio.count} pairs)"
    )

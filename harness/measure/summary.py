"""The summary of a run, on a terminal and as Markdown: every number with its depth, cache state and spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from harness.measure.caveats import Caveat
from harness.measure.cells import TWIN
from harness.measure.statistics import CONFIDENCE, Comparison, GroupSummary, Side, Spread, noise_of
from harness.measure.store import Results

COLUMNS = ("depth", "arm", "tokens/s", "spread", "times baseline", "disk MB", "rows unique", "verdict")
_IN_WORDS = ("arm", "verdict")  # all other columns are numbers
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
    for title, own in panels(results, summaries):
        console.print(_table(own, title))
    console.print(*claims(summaries), sep="\n", markup=False, highlight=False)
    console.print(ADVICE, markup=False, highlight=False)


def panels(results: Results, summaries: Sequence[GroupSummary]) -> Iterator[tuple[str, list[GroupSummary]]]:
    """The groups that belong into one table, over the depths, with its title: by workload and cache state."""
    for workload in results.plan.matrix.workloads:
        for state in results.plan.matrix.states:
            own = [s for s in summaries if s.group.workload == workload and s.group.state == state]
            if own:
                yield f"{workload.kind} of {workload.tokens} tokens, {state}", own


def markdown(results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat], machine: str) -> str:
    """The summary for a pull request: claims, what speaks against them, tables, and what it was measured on."""
    lines = [f"### plegate bench: {results.plan.model['file']}", ""]
    lines += [*(f"- **{claim}**" for claim in claims(summaries)), ""]
    if found:
        lines += ["What speaks against these numbers:", "", *(f"- {each.name}: {each.text}" for each in found), ""]
    for title, own in panels(results, summaries):
        lines += [f"{title}:", "", f"| {' | '.join(COLUMNS)} |"]
        lines.append("".join("|---" if column in _IN_WORDS else "|--:" for column in COLUMNS) + "|")
        lines += [f"| {' | '.join(row)} |" for summary in own for row in rows(summary)]
        lines.append("")
    return "\n".join([*lines, f"<sub>{machine}. {ADVICE}</sub>"]) + "\n"


def _table(summaries: Sequence[GroupSummary], title: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in _IN_WORDS else "right", no_wrap=column != "verdict")
    for summary in summaries:
        for row in rows(summary):
            table.add_row(*row)
        table.add_section()
    return table


def rows(summary: GroupSummary) -> list[tuple[str, ...]]:
    """The cells under `COLUMNS`, a row for each arm; the baseline's second run has none, it is the noise."""
    compared = {comparison.arm: comparison for comparison in summary.comparisons}
    arms = [side for side in summary.sides.values() if not side.arm.endswith(TWIN)]
    return [_row(summary, side, compared.get(side.arm)) for side in arms]


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


def timing_text(session: Mapping[str, Any]) -> str:
    """What a session took, beside what was predicted at its start for the cells that it finished."""
    cells, took, predicted = session["cells"], session["took_s"], session["predicted_for_cells_s"]
    part = "" if cells == session["of"] else f" of {session['of']}"
    off = f" ({took / predicted - 1:+.0%})" if predicted else ""
    return f"{cells}{part} cells took {took / 60:.1f} min; predicted at the start: {predicted / 60:.1f} min{off}"


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

"""The summary of a run, on a terminal and as Markdown: every number with its depth, cache state and spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console

from harness.engines.arms import TWIN
from harness.measure.caveats import Caveat
from harness.measure.statistics import CONFIDENCE, Comparison, GroupSummary, Side, Spread, noise_of
from harness.measure.store import Results
from harness.measure.worker.proof import LOADED
from harness.pages import numbers
from harness.pages.numbers import short
from harness.pages.tables import Column, markdown_table, print_line, print_table, screen, text_column

COLUMNS = (
    Column("depth"),
    text_column("arm"),
    Column("tokens/s"),
    Column("spread", 2),
    Column("times baseline"),
    Column("disk MB", 1),
    Column("rows unique", 0),
    text_column("verdict", wrap=True),
)
ADVICE = "Quote the depth, the cache state and the spread with every number: the gain is another one elsewhere."


def print_summary(
    results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat], console: Console | None = None
) -> None:
    """Caveats, one table per workload and cache state, and the claims."""
    console = console or screen()
    for caveat in found:
        print_line(f"! {caveat.name}: {caveat.text}", console)
    for title, own in panels(results, summaries):
        print_table(COLUMNS, table_rows(results, own), title=f"\n{title}", console=console)
    for line in (*claims(summaries), ADVICE):
        print_line(line, console)


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
        lines += [f"{title}:", "", *markdown_table(COLUMNS, table_rows(results, own)), ""]
    return "\n".join([*lines, f"<sub>{machine}. {ADVICE}</sub>"]) + "\n"


def table_rows(results: Results, summaries: Sequence[GroupSummary]) -> list[tuple[str, ...]]:
    """The rows under `COLUMNS`, one for each arm, groups apart; the baseline's second run has none, it is the noise."""
    rows: list[tuple[str, ...]] = []
    for summary in summaries:
        compared = {comparison.arm: comparison for comparison in summary.comparisons}
        arms = [side for side in summary.sides.values() if not side.arm.endswith(TWIN)]
        rows += [*((),) * bool(rows), *(_row(results, summary, side, compared.get(side.arm)) for side in arms)]
    return rows


def _row(results: Results, summary: GroupSummary, side: Side, comparison: Comparison | None) -> tuple[str, ...]:
    speeds = [cell["tokens_per_s"] for cell in side.cells]
    disk = side.middle("used", "disk_bytes")
    unique, total = side.middle("rows", "unique"), side.middle("rows", "total")
    if comparison is None:
        noise = noise_of(summary.twin_ratio)
        verdict = f"baseline, itself within {noise:.2f}x" if noise else "baseline"
    else:
        verdict = comparison.verdict
    return (
        str(summary.group.depth),
        results.plan.arm(side.arm).label + (f", {LOADED}" if _was_loaded(side) else ""),
        short(side.speed.median),
        f"{short(min(speeds))}..{short(max(speeds))}",
        "" if comparison is None or comparison.ratio is None else ratio_text(comparison.ratio),
        "" if disk is None else f"{disk / 1e6:,.1f}",
        "" if unique is None or total is None else f"{unique:.0f}/{total:.0f}",
        verdict,
    )


def _was_loaded(side: Side) -> bool:
    """Whether a server had read the whole table: its cold cells are none, and are not called so."""
    return any(cell["residency"].get("state") == LOADED for cell in side.cells)


def timing_text(session: Mapping[str, Any]) -> str:
    """What a session took, beside what its first repeat let expect for all the repeats that it made."""
    cells, took, repeats = session["cells"], session["took_s"], session.get("repeats_s", [])
    part = f" of {session['of']}" if session["of"] and cells != session["of"] else ""
    text = f"{cells}{part} cells took {numbers.seconds(took)}"
    if len(repeats) > 1:
        expected, found = repeats[0] * len(repeats), sum(repeats)
        text += f"; {len(repeats)} repeats, after the first {numbers.seconds(expected)} were predicted"
        text += f" ({found / expected - 1:+.0%})"
    return text


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
        f"({CONFIDENCE:.0%} interval {interval_text(ratio)}, {ratio.count} repeats)"
    )

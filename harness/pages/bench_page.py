"""The page of one benchmark: what is claimed, what speaks against it, plots over depth, tables, and the machine."""

from __future__ import annotations

from collections.abc import Sequence

from harness.engines.arms import TWIN
from harness.measure.caveats import Caveat
from harness.measure.statistics import CONFIDENCE, GroupSummary, Side, noise_of
from harness.measure.store import Results
from harness.measure.summary import ADVICE, claims, timing_text
from harness.pages import html
from harness.pages.bench_plots import plots
from harness.pages.figures import looks
from harness.pages.numbers import byte_size, count, interval, percent, ratio, seconds, short
from harness.pages.tables import Column, Row, text_column

_GROUP = (text_column("state"), text_column("workload"), Column("depth"), text_column("arm"))
_RATIOS = (
    *_GROUP,
    text_column("baseline"),
    *map(Column, ("ratio", "interval", "pairs", "itself")),
    text_column("verdict"),
    text_column("why", wrap=True),
)
_DETAILS = (
    *_GROUP,
    *map(Column, ("tokens/s", "spread", "cells", "rows unique/total", "gather", "waiting", "from disk", "over-read")),
    *map(Column, ("read calls", "major faults", "minor faults", "in flight", "peak", "anonymous", "device")),
)
_INVALID = (text_column("cell"), text_column("why", wrap=True))


def render(results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat]) -> str:
    """The whole page."""
    look = looks([arm.name for arm in results.plan.matrix.arms])
    return html.page(
        "bench.html.jinja",
        machine_rows(results),
        results=results,
        matrix=results.plan.matrix,
        caveats=found,
        claims=claims(summaries),
        advice=ADVICE,
        confidence=percent(CONFIDENCE),
        chance=percent(1 - CONFIDENCE),
        comparisons=sum(len(summary.comparisons) for summary in summaries),
        sessions=[timing_text(session) for session in results.timing.get("sessions", [])],
        legend=html.legend(look),
        sections=plots(results, summaries, look),
        baseline=next((summary.baseline for summary in summaries), results.plan.matrix.baseline.name),
        banded=any(noise_of(summary.twin_ratio) is not None for summary in summaries),
        tables={
            "ratios": (_RATIOS, _grouped([_ratio_rows(summary) for summary in summaries])),
            "details": (
                _DETAILS,
                _grouped([[_details(summary, side) for side in summary.sides.values()] for summary in summaries]),
            ),
            "invalid": (_INVALID, _invalid(results)),
        },
    )


def _grouped(groups: Sequence[Sequence[Row]]) -> list[Row]:
    """Their rows, with an empty one between two groups."""
    return [row for group in groups for row in ([], *group)][1:]


def _start(summary: GroupSummary, arm: str) -> list[str]:
    group = summary.group
    return [group.state, f"{group.workload.kind} {group.workload.tokens}", count(group.depth), arm]


def _ratio_rows(summary: GroupSummary) -> list[Row]:
    rows: list[Row] = []
    for each in summary.comparisons:
        found = each.ratio
        numbers = ["-"] * 3
        if found is not None:
            numbers = [ratio(found.median), interval(found.low, found.high), count(found.count)]
        rows.append([*_start(summary, each.arm), each.baseline, *numbers, ratio(each.noise), each.verdict, each.why])
    return rows


def _details(summary: GroupSummary, side: Side) -> Row:
    speeds = sorted(cell["tokens_per_s"] for cell in side.cells)
    return [
        *_start(summary, side.arm.replace(TWIN, " again")),
        short(side.speed.median),
        f"{short(speeds[0])}..{short(speeds[-1])}",
        count(len(side.cells)),
        f"{count(side.middle('rows', 'unique'))}/{count(side.middle('rows', 'total'))}",
        seconds(side.middle("gather", "wall_s")),
        seconds(side.middle("exposed_wait_s")),
        byte_size(side.middle("used", "disk_bytes")),
        ratio(side.over_read),
        count(side.middle("gather", "read_calls")),
        *(count(side.middle("used", name)) for name in ("major_faults", "minor_faults")),
        count(side.middle("gather", "effective_concurrency")),
        *(byte_size(side.middle("memory", name)) for name in ("peak_rss_bytes", "anonymous_bytes")),
        byte_size(side.middle("device", "peak_bytes")),
    ]


def _invalid(results: Results) -> list[Row]:
    rows: list[Row] = []
    for found in results.invalid.values():
        cell, work = found["cell"], found["cell"]["workload"]
        place = f"depth {cell['depth']}, repeat {cell['repeat'] + 1}, block {cell['block'] + 1}"
        rows.append(
            [f"{cell['arm']}, {cell['state']}, {work['kind']} {work['tokens']}, {place}", "; ".join(found["reasons"])]
        )
    return rows


def machine_rows(results: Results) -> list[Row]:
    """The machine and the model as pairs of name and value."""
    model, matrix = results.plan.model, results.plan.matrix
    device = next((cell["device"]["kind"] for cell in results.valid.values() if cell.get("device")), None)
    table = f"{count(model['table_rows'])} rows of {model['row_bytes']} bytes, {model['table_type']}, "
    table += f"{byte_size(model['table_bytes'])}, {model['rows_per_token']} rows per token"
    return [
        *html.machine_rows(results.plan.machine),
        ("computing device", device or "none: rows only"),
        ("model", f"{model['file']}, {model['layers']} layers, width {model['width']}"),
        ("table", table),
        ("noise pairs", f"{'yes' if matrix.twin else 'no'}; {results.repeats} repeats"),
    ]

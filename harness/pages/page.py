"""The page of one run: what is claimed, what speaks against it, plots over depth, tables, and the machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.measure.arms import TWIN
from harness.measure.caveats import Caveat
from harness.measure.statistics import CONFIDENCE, GroupSummary
from harness.measure.store import Results
from harness.measure.summary import ADVICE, claims, interval_text, timing_text
from harness.pages import html
from harness.pages.figures import looks
from harness.pages.html import legend, page
from harness.pages.numbers import short
from harness.pages.sections import plots


def render(results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat]) -> str:
    """The whole page as HTML that needs nothing else: no script, no font, no picture from elsewhere."""
    matrix = results.plan.matrix
    names = [arm.name for arm in matrix.arms]
    look = looks(names)
    return page(
        "bench.html.jinja",
        machine_rows(results),
        results=results,
        matrix=matrix,
        summaries=summaries,
        caveats=found,
        claims=claims(summaries),
        advice=ADVICE,
        confidence=f"{CONFIDENCE:.0%}",
        chance=f"{1 - CONFIDENCE:.0%}",
        comparisons=sum(len(summary.comparisons) for summary in summaries),
        timing_text=timing_text,
        legend=legend(look),
        sections=plots(results, summaries, look),
        ratio_rows=_ratio_rows(summaries),
        detail_rows=_detail_rows(summaries),
        invalid=list(results.invalid.values()),
    )


def _ratio_rows(summaries: Sequence[GroupSummary]) -> list[dict[str, Any]]:
    rows = []
    for summary in summaries:
        for place, comparison in enumerate(summary.comparisons):
            ratio = comparison.ratio
            rows.append(
                {
                    "first": place == 0,
                    "group": summary.group,
                    "arm": comparison.arm,
                    "baseline": comparison.baseline,
                    "ratio": "" if ratio is None else f"{ratio.median:.2f}",
                    "interval": "" if ratio is None else interval_text(ratio),
                    "pairs": "" if ratio is None else ratio.count,
                    "noise": "" if comparison.noise is None else f"{comparison.noise:.2f}",
                    "verdict": comparison.verdict,
                    "why": comparison.why,
                }
            )
    return rows


def _detail_rows(summaries: Sequence[GroupSummary]) -> list[dict[str, Any]]:
    rows = []
    for summary in summaries:
        for place, side in enumerate(summary.sides.values()):
            speeds = sorted(cell["tokens_per_s"] for cell in side.cells)
            rows.append(
                {
                    "first": place == 0,
                    "group": summary.group,
                    "arm": side.arm.replace(TWIN, " again"),
                    "speed": short(side.speed.median),
                    "spread": f"{short(speeds[0])}..{short(speeds[-1])}",
                    "cells": len(side.cells),
                    "unique": f"{side.middle('rows', 'unique') or 0:.0f}/{side.middle('rows', 'total') or 0:.0f}",
                    "gather_ms": _ms(side.middle("gather", "wall_s")),
                    "exposed_ms": _ms(side.middle("exposed_wait_s")),
                    "disk": _mb(side.middle("used", "disk_bytes")),
                    "over_read": "" if side.over_read is None else f"{side.over_read:.2f}",
                    "calls": _count(side.middle("gather", "read_calls")),
                    "major": _count(side.middle("used", "major_faults")),
                    "minor": _count(side.middle("used", "minor_faults")),
                    "in_flight": _count(side.middle("gather", "effective_concurrency")),
                    "peak": _mb(side.middle("memory", "peak_rss_bytes")),
                    "anonymous": _mb(side.middle("memory", "anonymous_bytes")),
                    "device": _mb(side.middle("device", "peak_bytes")),
                }
            )
    return rows


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"


def _mb(size_bytes: float | None) -> str:
    return "" if size_bytes is None else f"{size_bytes / 1e6:,.1f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def machine_rows(results: Results) -> list[tuple[str, str]]:
    """The machine and the model as pairs of name and value."""
    facts, model = results.plan.machine, results.plan.model
    device = next((c["device"]["kind"] for c in results.valid.values() if c.get("device")), None)
    return [
        *html.machine_rows(facts),
        ("computing device", device or "none: rows only"),
        ("model", f"{model['file']}, {model['layers']} layers, width {model['width']}"),
        (
            "table",
            f"{model['table_rows']:,} rows of {model['row_bytes']} bytes, {model['table_type']}, "
            f"{model['table_bytes'] / 2**30:.2f} GiB, {model['rows_per_token']} rows per token",
        ),
        ("noise pairs", f"{'yes' if results.plan.matrix.twin else 'no'}; {results.repeats} repeats"),
    ]

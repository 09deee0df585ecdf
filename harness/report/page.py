"""The page of one run: what is claimed, what speaks against it, plots over depth, tables, and the machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

from harness.bench.caveats import Caveat
from harness.bench.cells import COLD, TWIN
from harness.bench.statistics import CONFIDENCE, GroupSummary, Side
from harness.bench.store import Results
from harness.bench.summary import ADVICE, claims, interval_text, short
from harness.report.figures import Look, Series, bars, lines, looks, swatch

Panel = dict[str, str]


def render(results: Results, summaries: Sequence[GroupSummary], found: Sequence[Caveat]) -> str:
    """The whole page as HTML that needs nothing else: no script, no font, no picture from elsewhere."""
    matrix = results.plan.matrix
    names = [arm.name for arm in matrix.arms]
    look = looks(names)
    return template("bench.html.jinja").render(
        style=style(),
        results=results,
        matrix=matrix,
        summaries=summaries,
        caveats=found,
        claims=claims(summaries),
        advice=ADVICE,
        confidence=f"{CONFIDENCE:.0%}",
        legend=[(name, swatch(look[name])) for name in names],
        sections=_sections(results, summaries, look),
        ratio_rows=_ratio_rows(summaries),
        detail_rows=_detail_rows(summaries),
        invalid=list(results.invalid.values()),
        machine=machine_rows(results),
    )


def template(name: str) -> Any:
    """A template of this package; everything put into it is escaped unless it says it is safe."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("harness.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def style() -> str:
    """The style sheet of all pages."""
    return resources.files("harness.report").joinpath("style.css").read_text(encoding="utf-8")


def _sections(
    results: Results, summaries: Sequence[GroupSummary], look: dict[str, Look]
) -> list[dict[str, str | list[Panel]]]:
    """The plots under their headings; a heading without a panel is left out."""
    matrix = results.plan.matrix
    depths = [str(depth) if depth < 1024 else f"{depth / 1024:g}k" for depth in matrix.depths]
    places = list(range(len(matrix.depths)))

    def over_depth(value: Callable[[Side], Any], label: str, without: str = "") -> list[Panel]:
        panels = []
        for work in matrix.workloads:
            for state in matrix.states:
                if work.kind == without:
                    continue
                own = [s for s in summaries if s.group.workload == work and s.group.state == state]
                drawn = [line for name in look if (line := _line(name, own, list(matrix.depths), value)) is not None]
                if drawn:
                    picture = lines(
                        drawn, look, "depth (tokens)", label, ticks=places, tick_labels=depths, from_zero=True
                    )
                    panels.append({"caption": f"{work.kind} of {work.tokens}, {state}", "picture": picture})
        return panels

    sections: list[dict[str, str | list[Panel]]] = [
        {
            "title": "Speed over depth",
            "text": "Median tokens per second; bars from the slowest to the fastest repeat. Higher is better.",
            "panels": over_depth(_speed, "tokens/s"),
        },
        {
            "title": "Share of waiting for rows",
            "text": "Time in which nothing is computed because rows are not there yet, as a share of the whole. "
            "What a faster way of reading can gain is never more than this.",
            "panels": over_depth(_waiting, "share of time (%)", without="gather"),
        },
        {
            "title": "Tokens per second over time",
            "text": "Decoding, token by token: each point is the mean over eight tokens of the median repeat.",
            "panels": _over_time(results, summaries, look),
        },
        {
            "title": "Read amplification",
            "text": "Bytes that the device really read for each byte of a row that was asked for, cold, at the "
            "shallowest depth. A page of 4096 bytes is the least that can be read.",
            "panels": _bars(summaries, look, _amplification, "bytes read per byte wanted (log)", log=True),
        },
        {
            "title": "Effective concurrency",
            "text": "Reads in flight on average while rows were gathered, cold, at the shallowest depth. "
            "A mode whose reads are page faults cannot tell and is left out.",
            "panels": _bars(summaries, look, lambda s: s.middle("gather", "effective_concurrency"), "reads in flight"),
        },
    ]
    return [section for section in sections if section["panels"]]


def _line(
    name: str, summaries: Sequence[GroupSummary], depths: Sequence[int], value: Callable[[Side], Any]
) -> Series | None:
    x, points = [], []
    for summary in summaries:
        side = summary.sides.get(name)
        if side is not None and (point := value(side)) is not None:
            x.append(depths.index(summary.group.depth))
            points.append(point)
    if not points:
        return None
    middle, low, high = zip(*points, strict=True)
    return Series(name, x, middle, low, high)


def _speed(side: Side) -> tuple[float, float, float]:
    speeds = [cell["tokens_per_s"] for cell in side.cells]
    return side.speed.median, min(speeds), max(speeds)


def _waiting(side: Side) -> tuple[float, float, float] | None:
    shares = sorted(100 * c["exposed_wait_s"] / c["seconds"] for c in side.cells if c["exposed_wait_s"] is not None)
    return (shares[len(shares) // 2], shares[0], shares[-1]) if shares else None


def _amplification(side: Side) -> float | None:
    disk, rows, size = (
        side.middle(*path) for path in (("used", "disk_bytes"), ("rows", "unique"), ("rows", "row_bytes"))
    )
    return disk / (rows * size) if disk and rows and size else None


def _bars(
    summaries: Sequence[GroupSummary],
    look: dict[str, Look],
    value: Callable[[Side], float | None],
    label: str,
    log: bool = False,
) -> list[Panel]:
    panels = []
    cold = [summary for summary in summaries if summary.group.state == COLD]
    for work in dict.fromkeys(summary.group.workload for summary in cold):
        first = next(summary for summary in cold if summary.group.workload == work)
        values = {name: v for name in look if name in first.sides and (v := value(first.sides[name]))}
        if values:
            caption = f"{work.kind} of {work.tokens}, cold, depth {first.group.depth}"
            panels.append({"caption": caption, "picture": bars(values, look, label, log=log)})
    return panels


def _over_time(results: Results, summaries: Sequence[GroupSummary], look: dict[str, Look]) -> list[Panel]:
    """Speed along a decode, at both ends of the depths."""
    panels = []
    ends = {min(results.plan.matrix.depths), max(results.plan.matrix.depths)}
    for summary in summaries:
        group = summary.group
        if group.workload.kind != "decode" or group.depth not in ends:
            continue
        drawn = []
        for name in look:
            if (side := summary.sides.get(name)) is None:
                continue
            cell = sorted(side.cells, key=lambda c: c["seconds"])[len(side.cells) // 2]
            times = [seconds for _, seconds, _ in cell["steps"]]
            pieces = [times[start : start + 8] for start in range(0, len(times), 8)]
            speed = [len(piece) / sum(piece) for piece in pieces]
            drawn.append(Series(name, [8 * i + len(piece) / 2 for i, piece in enumerate(pieces)], speed))
        caption = f"decode of {group.workload.tokens}, {group.state}, depth {group.depth}"
        picture = lines(drawn, look, "token", "tokens/s", marks=False)
        panels.append({"caption": caption, "picture": picture})
    return panels


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
    ram = facts.get("ram_bytes")
    commit = facts.get("commit")
    return [
        ("processor", f"{facts.get('cpu') or 'unknown'}, {facts.get('cores')} cores"),
        ("memory", f"{ram / 2**30:.1f} GiB" if ram else "unknown"),
        ("computing device", device or "none: rows only"),
        ("kernel", f"{facts.get('system')} {facts.get('kernel')}"),
        ("storage", f"{facts.get('file_system') or 'unknown file system'} on {facts.get('disk') or 'an unknown disk'}"),
        ("versions", ", ".join(f"{k} {v}" for k, v in facts.get("versions", {}).items() if v)),
        (
            "code",
            f"{commit[:12]}{', with changes in no commit' if facts.get('dirty') else ''}" if commit else "no checkout",
        ),
        ("model", f"{model['file']}, {model['layers']} layers, width {model['width']}"),
        (
            "table",
            f"{model['table_rows']:,} rows of {model['row_bytes']} bytes, {model['table_type']}, "
            f"{model['table_bytes'] / 2**30:.2f} GiB, {model['rows_per_token']} rows per token",
        ),
        ("noise pairs", f"{'yes' if results.plan.matrix.twin else 'no'}; {results.plan.matrix.repeats} repeats"),
    ]

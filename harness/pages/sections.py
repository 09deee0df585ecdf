"""The plots of a page under their headings: over depth, over time, and what reading cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.measure.cells import COLD
from harness.measure.statistics import CONFIDENCE, GroupSummary, Side, Spread, noise_of
from harness.measure.store import Results
from harness.pages.figures import Look, Series, bars, lines

Panel = dict[str, str]


def plots(
    results: Results, summaries: Sequence[GroupSummary], look: dict[str, Look]
) -> list[dict[str, str | list[Panel]]]:
    """The plots under their headings; a heading without a panel is left out."""
    matrix = results.plan.matrix
    depths = [str(depth) if depth < 1024 else f"{depth / 1024:g}k" for depth in matrix.depths]
    places = list(range(len(matrix.depths)))
    base = next((summary.baseline for summary in summaries), matrix.baseline.name)
    banded = any(noise_of(summary.twin_ratio) is not None for summary in summaries)
    band = f" The grey band is what {base} differs from itself by." if banded else ""

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
            "title": "Gain over depth",
            "text": f"How many times as fast as {base}, with the {CONFIDENCE:.0%} intervals of the paired ratios."
            f"{band} What is left of a gain depends on the depth.",
            "panels": _gains(results, summaries, look, depths),
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


def _gains(
    results: Results, summaries: Sequence[GroupSummary], look: dict[str, Look], labels: Sequence[str]
) -> list[Panel]:
    """The ratios of every arm over depth, one panel per workload and cache state."""
    matrix, panels = results.plan.matrix, []
    for work in matrix.workloads:
        for state in matrix.states:
            own = [s for s in summaries if s.group.workload == work and s.group.state == state]
            found: dict[str, list[tuple[int, Spread]]] = {}
            band = []
            for summary in own:
                place = matrix.depths.index(summary.group.depth)
                if (noise := noise_of(summary.twin_ratio)) is not None:
                    band.append((place, noise))
                for comparison in summary.comparisons:
                    if comparison.ratio is not None:
                        found.setdefault(comparison.arm, []).append((place, comparison.ratio))
            drawn = [_ratio_line(name, points) for name, points in found.items()]
            if drawn:
                places = list(range(len(matrix.depths)))
                label = "times baseline"
                picture = lines(
                    drawn, look, "depth (tokens)", label, ticks=places, tick_labels=labels, from_zero=False, band=band
                )
                panels.append({"caption": f"{work.kind} of {work.tokens}, {state}", "picture": picture})
    return panels


def _ratio_line(name: str, points: Sequence[tuple[int, Spread]]) -> Series:
    x = [place for place, _ in points]
    ratios = [ratio for _, ratio in points]
    low = [ratio.median if ratio.low is None else ratio.low for ratio in ratios]
    high = [ratio.median if ratio.high is None else ratio.high for ratio in ratios]
    return Series(name, x, [ratio.median for ratio in ratios], low, high)


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
        first = min((s for s in cold if s.group.workload == work), key=lambda s: s.group.depth)
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

"""The plots of a benchmark under their headings: over depth, over time, and what reading cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.measure.cells import COLD
from harness.measure.statistics import GroupSummary, Side, noise_of
from harness.measure.store import Results
from harness.pages.figures import Look, Series, bars, lines
from harness.pages.html import Panel

Points = list[tuple[int, float, float, float]]
"""Places on the axis of depths, with a middle, a lowest and a highest value."""
Groups = Sequence[GroupSummary]


def plots(results: Results, summaries: Groups, look: dict[str, Look]) -> dict[str, list[Panel]]:
    """The plots by the section of the page that they belong to; a section without any is left out."""
    over_depth = _OverDepth(results, summaries, look)
    found = {
        "speed": over_depth.panels(_sides(_speed), "tokens/s"),
        "gain": over_depth.panels(_gains, "times baseline", banded=True),
        "waiting": over_depth.panels(_sides(_waiting), "share of time (%)", without="gather"),
        "over_time": _over_time(results, summaries, look),
        "amplification": _bars(summaries, look, _amplification, "bytes read per byte wanted (log)", log=True),
        "concurrency": _bars(summaries, look, _concurrency, "reads in flight"),
    }
    return {name: panels for name, panels in found.items() if panels}


class _OverDepth:
    """Panels of lines over the depths, one for each workload and cache state."""

    def __init__(self, results: Results, summaries: Groups, look: dict[str, Look]) -> None:
        self.matrix, self.summaries, self.look = results.plan.matrix, summaries, look

    def panels(
        self,
        of: Callable[[GroupSummary, str], tuple[float, float, float] | None],
        label: str,
        without: str = "",
        banded: bool = False,
    ) -> list[Panel]:
        """of: the values of an arm in a group; without: a kind of workload that has none."""
        depths, panels = list(self.matrix.depths), []
        labels = [str(depth) if depth < 1024 else f"{depth / 1024:g}k" for depth in depths]
        for work, state in ((work, state) for work in self.matrix.workloads for state in self.matrix.states):
            own = [s for s in self.summaries if s.group.workload == work and s.group.state == state]
            drawn = []
            for name in self.look if work.kind != without else ():
                points: Points = [(depths.index(s.group.depth), *v) for s in own if (v := of(s, name)) is not None]
                if points:
                    drawn.append(Series(name, *zip(*points, strict=True)))
            band = [(depths.index(s.group.depth), noise) for s in own if (noise := noise_of(s.twin_ratio)) is not None]
            if drawn:
                picture = lines(
                    drawn, self.look, "depth (tokens)", label, ticks=range(len(depths)), tick_labels=labels,
                    from_zero=not banded, band=band if banded else None,
                )  # fmt: skip
                panels.append(Panel(f"{work.kind} of {work.tokens}, {state}", picture))
        return panels


def _sides(
    value: Callable[[Side], tuple[float, float, float] | None],
) -> Callable[[GroupSummary, str], tuple[float, float, float] | None]:
    """The value of the arm's own cells."""
    return lambda summary, name: value(summary.sides[name]) if name in summary.sides else None


def _gains(summary: GroupSummary, name: str) -> tuple[float, float, float] | None:
    ratio = next((each.ratio for each in summary.comparisons if each.arm == name), None)
    if ratio is None:
        return None
    low, high = (ratio.median if end is None else end for end in (ratio.low, ratio.high))
    return ratio.median, low, high


def _speed(side: Side) -> tuple[float, float, float]:
    speeds = [cell["tokens_per_s"] for cell in side.cells]
    return side.speed.median, min(speeds), max(speeds)


def _waiting(side: Side) -> tuple[float, float, float] | None:
    shares = sorted(100 * c["exposed_wait_s"] / c["seconds"] for c in side.cells if c["exposed_wait_s"] is not None)
    return (shares[len(shares) // 2], shares[0], shares[-1]) if shares else None


def _amplification(side: Side) -> float | None:
    disk = side.middle("used", "disk_bytes")
    rows, size = side.middle("rows", "unique"), side.middle("rows", "row_bytes")
    return disk / (rows * size) if disk and rows and size else None


def _concurrency(side: Side) -> float | None:
    return side.middle("gather", "effective_concurrency")


def _bars(
    summaries: Groups, look: dict[str, Look], value: Callable[[Side], float | None], label: str, log: bool = False
) -> list[Panel]:
    panels = []
    cold = [summary for summary in summaries if summary.group.state == COLD]
    for work in dict.fromkeys(summary.group.workload for summary in cold):
        first = min((s for s in cold if s.group.workload == work), key=lambda s: s.group.depth)
        values = {name: v for name in look if name in first.sides and (v := value(first.sides[name]))}
        if values:
            caption = f"{work.kind} of {work.tokens}, cold, depth {first.group.depth}"
            panels.append(Panel(caption, bars(values, look, label, log=log)))
    return panels


def _over_time(results: Results, summaries: Groups, look: dict[str, Look]) -> list[Panel]:
    """Speed along a decode, at both ends of the depths."""
    panels = []
    ends = {min(results.plan.matrix.depths), max(results.plan.matrix.depths)}
    for summary in summaries:
        group, drawn = summary.group, []
        if group.workload.kind != "decode" or group.depth not in ends:
            continue
        for name in (name for name in look if name in summary.sides):
            cells: list[dict[str, Any]] = sorted(summary.sides[name].cells, key=lambda cell: cell["seconds"])
            times = [seconds for _, seconds, _ in cells[len(cells) // 2]["steps"]]
            pieces = [times[start : start + 8] for start in range(0, len(times), 8)]
            middles = [8 * place + len(piece) / 2 for place, piece in enumerate(pieces)]
            drawn.append(Series(name, middles, [len(piece) / sum(piece) for piece in pieces]))
        caption = f"decode of {group.workload.tokens}, {group.state}, depth {group.depth}"
        panels.append(Panel(caption, lines(drawn, look, "token", "tokens/s", marks=False)))
    return panels

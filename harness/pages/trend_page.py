"""The trend as a page: the verdict, then every cell over the commits, one line per mode."""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure.trend.compare import Verdict
from harness.measure.trend.runs import PROBE, BenchRun
from harness.measure.trend.text import COLUMNS, headline, notes, rows
from harness.pages.figures import Look, Series, lines, looks
from harness.pages.html import Panel, legend, page


def render(verdict: Verdict, runs: Sequence[BenchRun]) -> str:
    """One HTML file with everything in it."""
    modes = list(dict.fromkeys(c.info["mode"] for run in runs for c in run.cells.values() if not c.probe))
    look = looks(modes)
    return page(
        "trend.html.jinja",
        [(name.replace("_", " "), str(value)) for name, value in verdict.new.facts.items()],
        verdict=verdict,
        headline=headline(verdict),
        notes=notes(verdict),
        columns=COLUMNS,
        slower=rows(verdict.slower),
        faster=rows(verdict.faster),
        all=rows(verdict.changes),
        legend=legend(look),
        panels=_panels(runs, look),
    )


def _panels(runs: Sequence[BenchRun], look: dict[str, Look]) -> list[Panel]:
    """One panel per workload, depth and cache state; the probes have one of their own."""
    groups: dict[tuple[str, int, str], dict[str, str]] = {}
    probes = {}
    for run in runs:
        for name, cell in run.cells.items():
            if cell.probe:
                probes[cell.info["mode"]] = name
                continue
            place = (cell.info["workload"], cell.info["depth"], cell.info["state"])
            groups.setdefault(place, {})[cell.info["mode"]] = name
    panels = []
    for (workload, depth, state), names in sorted(groups.items()):
        panels.append(_panel(runs, f"{workload}, {state}, depth {depth}", names, look))
    if probes:
        panels.append(_panel(runs, f"{PROBE}s: {', '.join(probes)}", probes, looks(list(probes))))
    return panels


def _panel(runs: Sequence[BenchRun], caption: str, names: dict[str, str], look: dict[str, Look]) -> Panel:
    drawn = []
    for mode, name in names.items():
        points = [(place, 1e3 * run.cells[name].value) for place, run in enumerate(runs) if name in run.cells]
        drawn.append(Series(mode, [x for x, _ in points], [y for _, y in points]))
    step = -(-len(runs) // 4)  # more labels than this run into each other
    ticks = list(range(0, len(runs), step))
    labels = [runs[tick].label for tick in ticks]
    values = [y for line in drawn for y in line.y]
    apart = max(values) > 20 * min(values)  # cells of a panel may lie three orders of magnitude apart
    picture = lines(drawn, look, "commit", "ms, lower is better", ticks=ticks, tick_labels=labels, log_y=apart)
    return Panel(caption, picture)

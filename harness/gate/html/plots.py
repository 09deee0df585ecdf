"""The page's plots: what reading cost in each mode, and how far every token's choice was from being another."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from harness.gate.verdicts import GateResult
from harness.pages.figures import Series, bars, lines, looks, swatch

MOST_LINES = 6  # prompts of one plot; more lines say nothing


@dataclass(frozen=True)
class Panel:
    """A plot with what it shows, and what each line of it is."""

    caption: str
    picture: str
    legend: list[tuple[str, str]] = field(default_factory=list)


def mode_panels(result: GateResult) -> list[Panel]:
    """Time and calls by mode: not a benchmark (the page cache is warm), but a mode that is far off shows."""
    look = looks([mode.name for mode in result.modes])
    counters = {mode.name: mode.counters for mode in result.modes if mode.counters.get("rows_requested")}
    if not counters:
        return []
    row_us = {name: found["wall_s"] / found["rows_requested"] * 1e6 for name, found in counters.items()}
    calls = {name: found["read_calls"] / found["rows_requested"] for name, found in counters.items()}
    return [
        Panel("Microseconds a row, all batches of this run (warm)", bars(row_us, look, "us a row")),
        Panel("Read calls a row", bars(calls, look, "calls a row")),
    ]


def margin_panels(result: GateResult) -> list[Panel]:
    """For each case: the sorted margins of each prompt, on a log scale, with the margin that is needed."""
    panels = []
    for case in dict.fromkeys(line.case for line in result.margins):
        mine = [line for line in result.margins if line.case == case][:MOST_LINES]
        series = []
        for line in mine:
            ranked = sorted(max(margin, 1e-6) for margin in line.margins)
            share = [100 * (place + 1) / len(ranked) for place in range(len(ranked))]
            series.append(Series(line.prompt, share, ranked))
        names = [line.prompt for line in mine]
        if mine[0].needed is not None:
            names.append("needed")
            series.append(Series("needed", [0, 100], [mine[0].needed] * 2))
        look = looks(names)
        picture = lines(series, look, "steps, smallest margin first, %", "margin", log_y=True, marks=False)
        few = "" if len(mine) == len([line for line in result.margins if line.case == case]) else ", the first ones"
        legend = [(name, swatch(replace(each, shape=""))) for name, each in look.items()]
        panels.append(
            Panel(f"{case}: margins of {len(mine)} prompt{'s' if len(mine) > 1 else ''}{few}", picture, legend)
        )
    return panels

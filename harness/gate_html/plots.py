"""The page's plots: what reading cost in each mode, and how far every token's choice was from being another."""

from __future__ import annotations

from harness.report.figures import Series, bars, lines, looks
from harness.verdicts import GateResult

MOST_LINES = 6  # prompts of one plot; more lines say nothing


def mode_panels(result: GateResult) -> list[tuple[str, str]]:
    """Time and calls by mode: not a benchmark (the page cache is warm), but a mode that is far off shows."""
    look = looks([mode.name for mode in result.modes])
    counters = {mode.name: mode.counters for mode in result.modes if mode.counters.get("rows_requested")}
    if not counters:
        return []
    row_us = {name: found["wall_s"] / found["rows_requested"] * 1e6 for name, found in counters.items()}
    calls = {name: found["read_calls"] / found["rows_requested"] for name, found in counters.items()}
    return [
        ("Microseconds a row, all batches of this run (warm)", bars(row_us, look, "us a row")),
        ("Read calls a row", bars(calls, look, "calls a row")),
    ]


def margin_panels(result: GateResult) -> list[tuple[str, str]]:
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
        picture = lines(series, looks(names), "steps, smallest margin first, %", "margin", log_y=True, marks=False)
        panels.append((f"{case}: margins of {len(mine)} prompts ({', '.join(names)})", picture))
    return panels

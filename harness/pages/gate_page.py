"""The gate's result as one HTML page: verdicts with their controls, what differs, counters, margins; and as JUnit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.cases.case import LEVELS
from harness.environment import environment
from harness.gate.checks import CHECKS, CONTROL, GOLDEN, MODE, Finding
from harness.gate.verdicts import CHANGED, GateResult, MarginLine, ModeVerdict
from harness.pages import gate_text
from harness.pages.figures import Series, bars, lines, looks
from harness.pages.html import FACTS, Panel, legend, machine_rows, page
from harness.pages.junit import Test, as_junit
from harness.pages.numbers import byte_size, count, ratio, seconds, short
from harness.pages.tables import Column, Row, text_column

MOST_LINES = 6  # prompts of one plot; more lines say nothing
_VERDICTS = (text_column("mode"), text_column("verdict"), text_column("control"), *map(Column, (*LEVELS, "time")))
_COUNTERS = (
    text_column("mode"),
    *map(Column, ("batches", "rows", "asked for", "from device", "read calls", "minor faults", "major faults")),
    *map(Column, ("planning", "reading", "copying", "per row")),
)
_MARGINS = (
    text_column("case"),
    text_column("prompt"),
    *map(Column, ("steps", "smallest", "at step", "median", "needed", "times needed")),
)
_CASES = (
    text_column("case"),
    text_column("what it is about", wrap=True),
    *map(Column, ("prompts", "tokens generated", "bound")),
    text_column("why this bound", wrap=True),
)
_CHECKS = (text_column("check"), text_column("level"), text_column("what it compares", wrap=True))


def gate_as_html(result: GateResult) -> str:
    """The whole page."""
    found = [("any mode", finding) for finding in result.findings]
    found += [(mode.name, finding) for mode in result.modes for finding in mode.ordered]
    return page(
        "gate.html.jinja",
        machine_rows(environment()),
        result=result,
        described=gate_text.described(result),
        summary=gate_text.summary(result),
        wall=seconds(result.wall_s),
        again=gate_text.repeat_command(result) if result.exit_code == 1 else None,
        tables={
            "verdicts": (_VERDICTS, [_verdict(mode) for mode in result.modes]),
            "counters": (_COUNTERS, [_counters(mode) for mode in result.modes if mode.counters]),
            "evidence": (FACTS, [(mode.name, _evidence(mode.evidence)) for mode in result.modes if mode.evidence]),
            "margins": (_MARGINS, [_margins(line) for line in result.margins]),
            "cases": (_CASES, [_case(case) for case in result.cases]),
            "checks": (_CHECKS, [(check.name, check.level, check.about) for check in CHECKS.values()]),
        },
        found=found,
        notes=[(mode.name, note) for mode in result.modes for note in mode.notes],
        mode_panels=_mode_panels(result),
        margin_panels=_margin_panels(result),
    )


def _verdict(mode: ModeVerdict) -> Row:
    levels = [gate_text.cell(mode, level) for level in LEVELS]
    return [mode.name, mode.verdict, mode.control, *levels, seconds(mode.wall_s)]


def _counters(mode: ModeVerdict) -> Row:
    """What the mode counted of itself, over all that it read in this run."""
    found = mode.counters
    rows = found.get("rows_requested")
    return [
        mode.name if mode.effective == mode.name.partition("@")[0] else f"{mode.name} (ran as {mode.effective})",
        count(found.get("batches")),
        count(rows),
        byte_size(found.get("bytes_asked")),
        byte_size(found.get("bytes_device")),
        *(count(found.get(name)) for name in ("read_calls", "minor_faults", "major_faults")),
        *(seconds(found.get(name)) for name in ("plan_s", "read_s", "copy_s")),
        seconds(found["wall_s"] / rows if rows and found.get("wall_s") else None),
    ]


def _evidence(found: dict[str, Any]) -> str:
    parts = [f"{found['rows']:,} different rows"]
    parts += [f"mapping with advice {name}" for name in found["mappings"]]
    parts += [f"{number} {name} descriptors" for name, number in found["descriptors"].items()]
    parts += [f"{found['rings']} rings"] if found["rings"] else []
    parts += [f"{found['read_calls']} read calls"]
    parts += [f"{number} {name}" for name, number in sorted(found["system_calls"].items())]
    parts += [f"{found['advised_pages']} of {found['pages']} pages advised"] if found["advised_pages"] else []
    return ", ".join(parts)


def _margins(line: MarginLine) -> Row:
    smallest, ranked = min(line.margins), sorted(line.margins)
    times = ratio(smallest / line.needed) if line.needed else ratio(None)
    step, median = line.margins.index(smallest), ranked[len(ranked) // 2]
    return [
        line.case,
        line.prompt,
        count(len(ranked)),
        short(smallest),
        count(step),
        short(median),
        short(line.needed),
        times,
    ]


def _case(case: Any) -> Row:
    reason = f"{case.metric}: {case.reason}"
    return [case.id, case.about, count(len(case.prompts)), count(case.generate), f"{case.bound:g}", reason]


def _mode_panels(result: GateResult) -> list[Panel]:
    """Time and calls by mode: not a benchmark (the page cache is warm), but a mode that is far off shows."""
    look = looks([mode.name for mode in result.modes])
    counters = {mode.name: mode.counters for mode in result.modes if mode.counters.get("rows_requested")}
    row_us = {name: found["wall_s"] / found["rows_requested"] * 1e6 for name, found in counters.items()}
    calls = {name: found["read_calls"] / found["rows_requested"] for name, found in counters.items()}
    return [
        Panel("Microseconds per row, all batches of this run (warm)", bars(row_us, look, "us per row")),
        Panel("Read calls per row", bars(calls, look, "calls per row")),
    ][: 2 * bool(counters)]


def _margin_panels(result: GateResult) -> list[Panel]:
    """For each case: the sorted margins of each prompt, on a log scale, with the margin that is needed."""
    panels = []
    for case in dict.fromkeys(line.case for line in result.margins):
        own = [line for line in result.margins if line.case == case]
        shown = own[:MOST_LINES]
        series = []
        for line in shown:
            ranked = sorted(max(margin, 1e-6) for margin in line.margins)
            series.append(
                Series(line.prompt, [100 * place / len(ranked) for place in range(1, len(ranked) + 1)], ranked)
            )
        if shown[0].needed is not None:
            series.append(Series("needed", [0, 100], [shown[0].needed] * 2))
        look = looks([line.name for line in series])
        picture = lines(series, look, "steps, smallest margin first (%)", "margin", log_y=True, marks=False)
        what = f"{len(shown)} of {len(own)} prompts" if len(own) > 1 else "its prompt"
        unmarked = {name: replace(each, shape="") for name, each in look.items()}
        panels.append(Panel(f"{case}: margins of {what}", picture, legend(unmarked)))
    return panels


def gate_as_junit(result: GateResult) -> str:
    """A test suite for each mode, a test for each level. A level that was not run is skipped, with the reason."""
    suites = {"goldens": (0.0, _about_goldens(result))}
    suites |= {mode.name: (mode.wall_s, _about_mode(mode)) for mode in result.modes}
    note = f"{gate_text.summary(result)}\nagain: {gate_text.repeat_command(result)}"
    return as_junit("plegate gate", suites, note)


def _test(name: str, found: list[Finding], skipped: str | None = None) -> Test:
    if not found:
        return Test(name, skipped=skipped)
    return Test(name, (found[0].check, [f"{finding.check}: {finding.message}" for finding in found]))


def _about_goldens(result: GateResult) -> list[Test]:
    """One test for each case's golden, one for everything else that no mode is the cause of."""
    about = [finding for finding in result.findings if finding.level == GOLDEN]
    why = None if result.goldens else "nothing is recorded for prompts of one's own"
    tests = [_test(case.id, [finding for finding in about if finding.case == case.id], why) for case in result.cases]
    unpacking = _test("unpacking", [finding for finding in result.findings if finding not in about])
    return [Test("same files", (CHANGED, [result.changed]) if result.changed else None), *tests, unpacking]


def _about_mode(mode: ModeVerdict) -> list[Test]:
    unread = "not compared: nothing is recorded, other modes run it, or they are compared with this one"
    skipped = {level: None if mode.compared(level) else unread for level in LEVELS}
    if mode.changed:
        skipped = dict.fromkeys(LEVELS, "a file was changed before it was judged")
    skipped |= {MODE: "; ".join(mode.notes) or None, CONTROL: None if mode.rows_compared else unread}
    return [
        _test(level, [finding for finding in mode.findings if finding.level == level], skipped[level])
        for level in (MODE, *LEVELS, CONTROL)
    ]

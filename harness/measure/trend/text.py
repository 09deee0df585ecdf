"""The trend as Markdown for a pull request, as lines on a terminal, and as plain values for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.measure.statistics import CONFIDENCE
from harness.measure.trend.compare import FACTOR, STEADY, Change, Verdict
from harness.measure.trend.runs import BenchRun
from harness.pages.numbers import interval, ratio, seconds
from harness.pages.tables import Column, markdown_table, text_column

COLUMNS = (text_column("cell"), *map(Column, ("before", "now", "factor", "interval", "limit")))
SCHEMA = "plegate.trend/2"


def headline(verdict: Verdict) -> str:
    """The verdict in one line."""
    if not (verdict.slower or verdict.missing or verdict.everything_slower):
        return f"No regression: {len(verdict.changes)} cells compared with {_runs(verdict)}."
    parts = []
    if verdict.slower:
        parts.append(f"{len(verdict.slower)} of {len(verdict.changes)} cells are slower")
    if verdict.missing:
        parts.append(f"{len(verdict.missing)} cells are missing")
    if verdict.everything_slower:
        parts.append(f"the middle of all cells is {verdict.whole:.2f} times as slow, and the machine is not")
    return f"{', '.join(parts)}, compared with {_runs(verdict)}."


def _runs(verdict: Verdict) -> str:
    count = len(verdict.earlier)
    return f"the run of {verdict.earlier[-1].label}" if count == 1 else f"{count} earlier runs of this machine"


def notes(verdict: Verdict) -> list[str]:
    """What else there is to know."""
    lines = []
    if verdict.new.accepted:
        lines.append(f"Accepted: {verdict.new.accepted}")
    if crept := [change.cell.name for change in verdict.slower if change.crept]:
        lines.append(f"Slower than in the first runs, little by little, and not than in the last: {', '.join(crept)}.")
    moved = {name: ratio for name, ratio in verdict.probes.items() if not 1 / STEADY <= ratio <= STEADY}
    if moved:
        named = ", ".join(f"{name} {ratio:.2f}" for name, ratio in moved.items())
        lines.append(
            f"The machine itself was not as usual (probes, which run none of our code, took so many times as long: "
            f"{named}); what that explains is taken out of the factors."
        )
    if verdict.least > FACTOR:
        lines.append(f"Cells differ much in this run: factors below {verdict.least:.2f} are not reported.")
    if verdict.busy:
        lines.append(f"{len(verdict.busy)} earlier runs are left out: the machine was busy with something else.")
    if verdict.added:
        lines.append(f"New, with nothing to compare with: {', '.join(verdict.added)}.")
    if verdict.new.dirty:
        lines.append("The new run had changes that are in no commit.")
    return lines


def markdown(verdict: Verdict) -> str:
    """The report for a pull request."""
    facts = verdict.new.facts
    machine = f"{facts['cpu']}, {facts['cores']} cores, {facts['ram_gib']} GiB, kernel {facts['kernel']}, "
    machine += f"{facts['file_system']}, {facts['device']}, jax {facts['jax']}"
    lines = [f"### plegate trend: {verdict.new.label}", "", f"**{headline(verdict)}**", ""]
    lines += _titled("Slower", verdict.slower)
    if verdict.missing:
        lines += ["Missing from the new run:", "", *(f"- `{name}`" for name in verdict.missing), ""]
    lines += _titled("Faster", verdict.faster)
    lines += [*notes(verdict), ""] if notes(verdict) else []
    lines.append(
        f"<sub>{machine}. Reported: a factor of {FACTOR} or more (more where runs are noisy) "
        f"whose {CONFIDENCE:.0%} interval over the repeats excludes 1.</sub>"
    )
    return "\n".join(lines) + "\n"


def _titled(title: str, changes: Sequence[Change]) -> list[str]:
    return [f"{title}:", "", *markdown_table(COLUMNS, rows(changes)), ""] if changes else []


def rows(changes: Sequence[Change]) -> list[list[str]]:
    """The rows under `COLUMNS`, the interval over the repeats."""
    return [
        [
            change.cell.name,
            seconds(change.before_s),
            seconds(change.now_s),
            ratio(change.factor),
            interval(change.spread.low, change.spread.high),
            ratio(change.limit),
        ]
        for change in changes
    ]


def as_json(verdict: Verdict) -> dict[str, Any]:
    """Everything that the report says, and every cell. Units: seconds; factors above 1 are slower."""
    return {
        "schema": SCHEMA,
        "regressed": verdict.regressed,
        "headline": headline(verdict),
        "notes": notes(verdict),
        "machine": verdict.new.facts,
        "run": _run(verdict.new),
        "earlier": [_run(run) for run in verdict.earlier],
        "slower": [change.cell.name for change in verdict.slower],
        "faster": [change.cell.name for change in verdict.faster],
        "missing": verdict.missing,
        "added": verdict.added,
        "middle_factor": verdict.whole,
        "probes": verdict.probes,
        "cells": [
            {
                "cell": change.cell.name,
                **{name: change.cell.info[name] for name in ("mode", "state", "depth", "workload")},
                "before_s": change.before_s,
                "now_s": change.now_s,
                "factor": change.factor,
                "limit": change.limit,
                "interval": [change.spread.low, change.spread.high],
                "crept": change.crept,
                "compared_with": [run.path.name for run in change.runs],
            }
            for change in verdict.changes
        ],
    }


def _run(run: BenchRun) -> dict[str, Any]:
    return {"file": run.path.name, "commit": run.commit, "dirty": run.dirty, "when": run.when, "accepted": run.accepted}

"""The trend as Markdown, for a pull request, and as lines on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from harness.measure.trend.compare import FACTOR, SIGNIFICANCE, STEADY, Change, Verdict
from harness.pages.numbers import ratio, seconds
from harness.pages.tables import Column, markdown_table, text_column

COLUMNS = (text_column("cell"), *map(Column, ("before", "now", "factor", "limit", "p")))


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
        told = ", ".join(f"{name} {ratio:.2f}" for name, ratio in moved.items())
        lines.append(
            f"The machine itself was not as usual (probes, which run none of our code, took so many times as long: "
            f"{told}); what that explains is taken out of the factors."
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
        f"with p < {SIGNIFICANCE}.</sub>"
    )
    return "\n".join(lines) + "\n"


def _titled(title: str, changes: Sequence[Change]) -> list[str]:
    return [f"{title}:", "", *markdown_table(COLUMNS, rows(changes)), ""] if changes else []


def rows(changes: Sequence[Change]) -> list[list[str]]:
    """The rows under `COLUMNS`; p is empty where the factor is within its limit and none was computed."""
    return [
        [
            change.cell.name,
            seconds(change.before_s),
            seconds(change.now_s),
            ratio(change.factor),
            ratio(change.limit),
            "" if change.p is None else f"{change.p:.1g}",
        ]
        for change in changes
    ]

"""The trend as Markdown, for a pull request, and as lines on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp

from harness.trend.compare import FACTOR, SIGNIFICANCE, Change, Verdict


def headline(verdict: Verdict) -> str:
    """The verdict in one line."""
    if not verdict.regressed:
        return f"No regression: {len(verdict.changes)} cells compared with {_runs(verdict)}."
    parts = []
    if verdict.slower:
        parts.append(f"{len(verdict.slower)} of {len(verdict.changes)} cells are slower")
    if verdict.missing:
        parts.append(f"{len(verdict.missing)} cells are missing")
    if verdict.everything_slower:
        parts.append(f"the whole run is {verdict.drift:.2f} times as slow, and the probes are not")
    return f"{', '.join(parts)}, compared with {_runs(verdict)}."


def _runs(verdict: Verdict) -> str:
    count = len(verdict.earlier)
    return f"the run of {verdict.earlier[-1].label}" if count == 1 else f"the last {count} runs of this machine"


def notes(verdict: Verdict) -> list[str]:
    """What else there is to know."""
    lines = []
    if abs(verdict.drift - 1) > 0.05:
        probes = "" if verdict.probes is None else f", the probes, which run none of our code, {verdict.probes:.2f}"
        lines.append(
            f"The whole run took {verdict.drift:.2f} times as long{probes}; this is taken out of every factor."
        )
    if (least := exp(3 * verdict.scatter)) > FACTOR:
        lines.append(f"The runs are noisy: factors below {least:.2f} are not reported.")
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
    lines += _table("Slower", verdict.slower)
    if verdict.missing:
        lines += ["Missing from the new run:", "", *(f"- `{name}`" for name in verdict.missing), ""]
    lines += _table("Faster", verdict.faster)
    lines += [*notes(verdict), ""] if notes(verdict) else []
    lines.append(
        f"<sub>{machine}. Reported: a factor of {FACTOR} or more (more where runs are noisy) "
        f"with p < {SIGNIFICANCE}.</sub>"
    )
    return "\n".join(lines) + "\n"


def _table(title: str, changes: Sequence[Change]) -> list[str]:
    if not changes:
        return []
    lines = [f"| {title} | before | now | factor | limit | p |", "|---|--:|--:|--:|--:|--:|"]
    lines += [
        f"| `{change.cell.name}` | {seconds(change.before_s)} | {seconds(change.now_s)} | {change.factor:.2f} "
        f"| {change.limit:.2f} | {change.p:.1g} |"
        for change in changes
    ]
    return [*lines, ""]


def seconds(value: float) -> str:
    """A time with three digits that count."""
    for factor, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e9:.3g} ns"

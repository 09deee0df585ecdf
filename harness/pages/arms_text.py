"""What judging arms found, as a table for people, as Markdown for a pull request, and as JSON for machines."""

from __future__ import annotations

from typing import Any

from harness.cases.case import Case
from harness.environment import environment
from harness.gate.arm_compare import MOST_CLOSE, Apart
from harness.gate.arm_evidence import ArmEvidence
from harness.gate.arm_verdicts import UNDECIDED, ArmsResult, ArmVerdict, kind_of
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, UNSTEADY
from harness.pages.gate_text import SCHEMA, cases_as_json
from harness.pages.numbers import byte_size, count, percent, seconds, short
from harness.pages.tables import Column, Row, markdown_table, print_line, print_table, text_column

COLUMNS = (
    text_column("arm"),
    text_column("kind", 2),
    Column("tokens", 5),
    Column("agree", 4),
    Column("close calls", 3),
    Column("logprobs", 1),
    Column("KL", 0),
    Column("to ours", 0),
    text_column("control", 6),
    text_column("verdict"),
)
MOST_SHOWN = 8  # differences of an arm in words; all are in the JSON


def print_arms(result: ArmsResult) -> None:
    """A line for each arm, the details of every difference, and the verdict."""
    for line in (result.model, described(result), *result.notes):
        print_line(line)
    print_table(COLUMNS, [cells(arm) for arm in result.arms])
    for arm in result.arms:
        for line in details(arm):
            first, *more = line.split("\n")  # a server's last lines
            for part in (f"{arm.arm.name}: {first}", *more):
                print_line(part)
    for line in (*result.findings, *result.alike):
        print_line(line)
    if result.exit_code == 1:
        print_line(f"again: {result.repeat}")
    print_line(summary(result))


def described(result: ArmsResult) -> str:
    """Prompts, and what they are compared with."""
    prompts = sum(len(case.prompts) for case in result.cases)
    right = next((arm.against for arm in result.arms if arm.against), "nothing")
    with_what = f"arm {right}" if right in {arm.arm.name for arm in result.arms} else right
    return f"{', '.join(case.id for case in result.cases)}: {prompts} prompts, ids compared with {with_what}"


def cells(arm: ArmVerdict) -> Row:
    """The arm's row under `COLUMNS`."""
    control = "failed" if arm.controls else "-" if arm.not_run else "steady"
    return [
        arm.arm.name,
        kind_of(arm.arm),
        count(arm.steps or None),
        percent(arm.agreement),
        count(len(arm.close_calls)) if arm.steps else "-",
        short(arm.apart.largest if arm.apart else None),
        short(arm.apart.kl if arm.apart else None),
        short(arm.ours.largest if arm.ours else None),
        control,
        arm.verdict,
    ]


def details(arm: ArmVerdict) -> list[str]:
    """What is to be said of an arm beyond its line, the cause before its consequences."""
    lines = [*arm.notes[:1], *(f"not run: {line}" for line in [arm.not_run] if line), *arm.controls, *arm.findings]
    lines += [f"first difference: {one.message()}" for one in arm.clear[:1]]
    lines += [f"then: {one.message()}" for one in arm.clear[1:MOST_SHOWN]]
    left = len(arm.clear) - MOST_SHOWN
    lines += [f"and {left} more differences"] * (left > 0)
    lines += [f"close call: {one.message()}" for one in arm.close_calls[:MOST_SHOWN]]
    if arm.strict and arm.clear:
        lines.append(f"it must be equal to {arm.against}: {arm.strict}; --close-calls relaxes that")
    lines += [f"diagnosis: {arm.diagnosis}"] if arm.diagnosis else []
    if arm.noise is not None and arm.differences:
        lines.append(f"noise of the pair: margins of steps that agree change by {arm.noise:.3g} (99.9th percentile)")
    lines += [f"state {name}: {found}" for name, found in arm.states.items()]
    lines += [f"drafts: {arm.accepted:,} of {arm.drafted:,} drafted tokens accepted"] * bool(arm.drafted)
    for name, found in ((arm.against, arm.apart), ("ours", arm.ours)):
        lines += [f"logprobs against {name}: {_apart(found)}"] if found else []
    lines += [f"evidence: {evidence(arm.evidence)}"] if arm.evidence else []
    return lines + arm.notes[1:]


def _apart(found: Apart) -> str:
    return (
        f"largest difference {found.largest:.2g}, median {found.median:.2g}, KL divergence {found.kl:.2g} a step, "
        f"{found.steps:,} steps"
    )


def evidence(found: ArmEvidence) -> str:
    """What the kernel saw, in a line."""
    shares = ", ".join(
        f"{percent(share)} {when}"
        for when, share in (("before it started", found.before), ("when ready", found.loaded), ("after", found.after))
        if share is not None
    )
    parts = [found.way, f"table in memory: {shares}" if shares else "what is in memory cannot be asked here"]
    parts += [f"{byte_size(size)} of the {name} mapping in the process" for name, size in found.mappings.items()]
    parts += [
        f"while answering {count(found.read_calls)} read calls, {byte_size(found.read_bytes)} from the device, "
        f"{count(found.major_faults)} major and {count(found.minor_faults)} minor faults"
    ]
    return "; ".join([*parts, f"peak memory {byte_size(found.peak_bytes)}"])


def summary(result: ArmsResult) -> str:
    """The verdict in one sentence."""
    words = (EQUAL, DIFFERENT, UNSTEADY, UNDECIDED, NOT_RUN)
    found = {word: [arm for arm in result.arms if arm.verdict == word] for word in words}
    if result.changed:
        return f"verdict: changed. {result.changed}"
    if result.findings:
        return f"verdict: different. {result.findings[0]}"
    calls = sum(len(arm.close_calls) for arm in result.arms)
    told = f", {calls} close calls" if calls else ""
    tokens = sum(arm.steps - len(arm.close_calls) for arm in result.arms)
    if len(found[EQUAL]) == len(result.arms):
        if not tokens:
            return "verdict: equal to itself. Nothing was there to compare its ids with: give another arm or a golden."
        return f"verdict: equal on {tokens:,} tokens{told}."
    rest = ", ".join(f"{len(arms)} {name}" for name, arms in found.items() if arms and name != EQUAL)
    word = DIFFERENT if found[DIFFERENT] or found[UNSTEADY] else UNDECIDED if found[UNDECIDED] else "incomplete"
    why = f" More than {MOST_CLOSE:.0%} of the steps are close calls." if word == UNDECIDED else ""
    equal = f"{len(found[EQUAL])} of {len(result.arms)} arms equal"
    return f"verdict: {word}. {equal} on {tokens:,} tokens{told}, {rest}.{why}"


def arms_as_markdown(result: ArmsResult) -> str:
    """For a pull request: the table, what ran under each name, and every detail."""
    lines = [f"**{summary(result)}**", "", f"`{result.model}`; {described(result)}; {seconds(result.wall_s)}", ""]
    lines += [*markdown_table(COLUMNS, [cells(arm) for arm in result.arms]), ""]
    for arm in result.arms:
        facts = f" ({arm.facts.version}; SHA-256 {arm.facts.sha256[:12]})" if arm.facts else ""
        lines.append(f"- **{arm.arm.name}**: `{arm.command or arm.arm.label}`{facts}")
        lines += [f"  - {' '.join(line.split())}" for line in details(arm)]
    lines += [f"- {line}" for line in (*result.findings, *result.alike, *result.notes)]
    return "\n".join(lines) + "\n"


def arms_as_json(result: ArmsResult) -> dict[str, Any]:
    """The result as plain values, under the schema of the gate."""
    cases: list[Case] = result.cases
    return {
        "schema": SCHEMA,
        "verdict": summary(result),
        "exit_code": result.exit_code,
        "model": result.model,
        "sha256": result.sha256,
        "engine": "arms",
        "wall_s": round(result.wall_s, 3),
        "again": result.repeat,
        "cases": cases_as_json(cases, result.goldens),
        "findings": [],
        "modes": [],
        "margins": [],
        "notes": [*result.findings, *result.notes],
        "arms": [arm.as_dict() for arm in result.arms],
        "alike": result.alike,
        "environment": environment(),
    }

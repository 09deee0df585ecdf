"""The gate's result as a table for people, and as JSON for machines (`harness/schema/gate.json` describes it)."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fast.rows import MODES
from harness.cases.case import LEVELS, Case
from harness.cases.registry import cases
from harness.environment import environment
from harness.gate.checks import CHECKS, Finding
from harness.gate.golden_check import GoldenCheck
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, UNSTEADY, GateResult, ModeVerdict
from harness.pages.numbers import count
from harness.pages.tables import Column, markdown_table, print_line, print_table, text_column

SCHEMA = "plegate.gate/2"
COLUMNS = (
    text_column("mode"),
    *(Column(name, leave_out=place) for place, name in enumerate(LEVELS, 1)),
    text_column("control", 0),
    text_column("verdict"),
)


def print_gate(result: GateResult) -> None:
    """One line for each mode, the details of every difference, and the verdict."""
    print_line(result.model)
    print_line(described(result))
    for note in result.notes:
        print_line(note)
    print_table(COLUMNS, [cells(mode) for mode in result.modes])
    for finding in result.findings:
        print_line(f"{finding.level}: {finding.message}")
    for mode in result.modes:
        for line in details(mode):
            print_line(f"{mode.name}: {line}")
    if result.exit_code == 1:
        print_line(f"again: {repeat_command(result)}")
    print_line(summary(result))


def described(result: GateResult) -> str:
    """Cases, prompts and what they are compared with, in a line."""
    prompts = sum(len(case.prompts) for case in result.cases)
    names = ", ".join(case.id for case in result.cases)
    return f"{names}: {prompts} prompts, engine {result.engine}, {_against(result)}"


def _against(result: GateResult) -> str:
    if result.goldens:
        return "compared with goldens"
    if any(mode.tokens_compared for mode in result.modes):
        return "tokens compared with the first mode's"
    if any(case.generate for case in result.cases):
        return "tokens compared with nothing: only one mode ran them"
    return "rows compared, no tokens"


def cell(mode: ModeVerdict, level: str) -> str:
    """What a level compared and found: a number, `different`, or `-` where it was not run."""
    return DIFFERENT if mode.found_at(level) else count(mode.compared(level) or None)


def cells(mode: ModeVerdict) -> list[str]:
    """The mode's row under `COLUMNS`."""
    return [mode.name, *(cell(mode, level) for level in LEVELS), mode.control, mode.verdict]


def details(mode: ModeVerdict) -> list[str]:
    """What is to be said of a mode beyond its line in the table, the cause before its consequences."""
    return [f"{finding.level}: {finding.message}" for finding in mode.ordered] + mode.notes


def summary(result: GateResult) -> str:
    """The verdict in one sentence."""
    if result.changed:
        return f"verdict: changed. {result.changed}."
    found = {name: sum(mode.verdict == name for mode in result.modes) for name in (EQUAL, DIFFERENT, UNSTEADY, NOT_RUN)}
    if result.findings:
        return (
            f"verdict: different. {result.findings[0].level}: what is recorded, or the file, is not what was expected."
        )
    if found[EQUAL] == len(result.modes):
        modes = f"{found[EQUAL]} mode{'s' if found[EQUAL] > 1 else ''}"
        tokens = ", and the same tokens" if any(mode.tokens_compared for mode in result.modes) else ""
        unseen = next((f" But {mode.unseen}." for mode in result.modes if mode.unseen), "")
        return f"verdict: equal. {modes} gave the same rows, byte for byte{tokens}.{unseen}"
    rest = ", ".join(f"{number} {name}" for name, number in found.items() if number and name != EQUAL)
    word = "different" if found[DIFFERENT] or found[UNSTEADY] else "incomplete"
    return f"verdict: {word}. {found[EQUAL]} of {len(result.modes)} modes equal, {rest}."


def repeat_command(result: GateResult) -> str:
    """The one command that shows the first difference again, with as little around it as possible."""
    bad = next((mode for mode in result.modes if mode.findings), None)
    finding = bad.ordered[0] if bad is not None else next(iter(result.findings), None)
    if not result.goldens or finding is None or not finding.case or result.repeat.startswith("plegate golden"):
        return result.repeat
    words = ["plegate", "gate"]
    if not any(case.id == finding.case and case.model == "nano" for case in result.cases):
        words.append(result.model)
    words += ["--case", finding.case]
    if bad is not None:
        at = result.repeat.find(bad.name.partition("@")[0] + "@")
        given = result.repeat[at:].split()[0].strip("'") if at >= 0 and "@" in bad.name else bad.name
        words += ["--mode", given]
    return shlex.join(words)


def gate_as_json(result: GateResult) -> dict[str, Any]:
    """The result as plain values; `schema` names the layout."""
    return {
        "schema": SCHEMA,
        "verdict": summary(result),
        "exit_code": result.exit_code,
        "model": result.model,
        "sha256": result.sha256,
        "engine": result.engine,
        "wall_s": round(result.wall_s, 3),
        "again": repeat_command(result),
        "cases": cases_as_json(result.cases, result.goldens),
        "findings": [_finding(finding) for finding in result.findings],
        "changed": result.changed,
        "modes": [_mode(mode) for mode in result.modes],
        "margins": [asdict(line) for line in result.margins],
        "notes": result.notes,
        "environment": environment(),
    }


def cases_as_json(cases: Sequence[Case], goldens: Mapping[str, bool]) -> list[dict[str, Any]]:
    """What was run, as plain values."""
    return [
        {
            "id": case.id,
            "about": case.about,
            "generate": case.generate,
            "golden": goldens.get(case.id, False),
            "metric": case.metric,
            "bound": case.bound,
            "reason": case.reason,
            "prompts": [{"name": prompt.name, "ids": list(prompt.ids)} for prompt in case.prompts],
        }
        for case in cases
    ]


def gate_as_markdown(result: GateResult) -> str:
    """For a pull request: the verdict, the table, and every detail."""
    lines = [f"**{summary(result)}**", "", f"`{result.model}`; {described(result)}", ""]
    lines += [*markdown_table(COLUMNS, [cells(mode) for mode in result.modes]), ""]
    lines += [f"- {finding.level}: {finding.message}" for finding in result.findings]
    lines += [f"- {mode.name}: {line}" for mode in result.modes for line in details(mode)]
    return "\n".join([*lines, *(f"- {note}" for note in result.notes)]) + "\n"


def _finding(finding: Finding) -> dict[str, Any]:
    return {"level": finding.level, **asdict(finding)}


def _mode(mode: ModeVerdict) -> dict[str, Any]:
    return {
        "mode": mode.name,
        "effective_mode": mode.effective,
        "verdict": mode.verdict,
        "first_level": mode.first_level,
        "rows_compared": mode.rows_compared,
        "ple_compared": mode.ple_compared,
        "logits_compared": mode.logits_compared,
        "tokens_compared": mode.tokens_compared,
        "row_difference": _detail(mode, "packed rows"),
        "token_difference": _detail(mode, "tokens"),
        "control": [finding.message for finding in mode.controls],
        "findings": [_finding(finding) for finding in mode.ordered],
        "not_run": mode.not_run,
        "unseen": mode.unseen,
        "copy": mode.copy,
        "fallback_reason": mode.fallback_reason,
        "counters": mode.counters,
        "evidence": mode.evidence,
        "wall_s": round(mode.wall_s, 3),
    }


def _detail(mode: ModeVerdict, check: str) -> dict[str, Any] | None:
    return next((dict(finding.detail) for finding in mode.findings if finding.check == check), None)


def print_modes() -> None:
    """Print every registered mode with the first line of its documentation."""
    about = {name: (inspect.getdoc(reader) or "").split("\n")[0].split(" Raises:")[0] for name, reader in MODES.items()}
    print_table([text_column("mode"), text_column("how it reads", wrap=True)], list(about.items()))


def print_cases() -> None:
    """Print every registered case, and every check with its level."""
    columns = [text_column("case"), text_column("model", 1), Column("prompts", 0), Column("tokens", 2)]
    rows = [
        (case.id, case.model, count(len(case.prompts)), count(case_tokens(case)), case.about)
        for case in cases().values()
    ]
    print_table([*columns, text_column("what it is about", wrap=True)], rows)
    checks = [(check.name, check.level, check.about) for check in CHECKS.values()]
    columns = [text_column("check"), text_column("level", 0), text_column("what it compares", wrap=True)]
    print_table(columns, checks, title="checks")


def case_tokens(case: Case) -> int:
    """Tokens of all prompts and answers."""
    return sum(len(prompt.ids) + case.generate for prompt in case.prompts)


def print_check(check: GoldenCheck) -> None:
    """A line for each case, the detail of every difference, and the verdict."""
    rows = [(case.id, case.model, check.verdict(case)) for case in check.cases]
    print_table([text_column("case"), text_column("model", 0), text_column("verdict")], rows, title="goldens")
    for model, reason in check.missing.items():
        print_line(f"{model}: {reason}")
    for finding in check.findings:
        print_line(f"{finding.level}: {finding.message}")
    for mode in check.result.modes if check.result is not None else ():
        for note in mode.notes:
            print_line(f"{mode.name}: {note}")
    if check.result is not None and check.result.changed:
        print_line(f"changed: {check.result.changed}")
    equal = sum(verdict == EQUAL for *_, verdict in rows)
    print_line(f"verdict: {equal} of {len(rows)} cases answer as recorded.")

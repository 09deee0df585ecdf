"""The gate's result as a table for people, and as JSON for machines (`harness/schema/gate.json` describes it)."""

from __future__ import annotations

import inspect
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fast.rows import MODES
from harness.atomic import write_json, write_text
from harness.cases.case import LOGITS, PLE, ROWS, TOKENS
from harness.cases.registry import cases
from harness.environment import environment
from harness.gate.checks import CHECKS, Finding
from harness.gate.verdicts import DIFFERENT, EQUAL, STYLES, UNSTEADY, GateResult, ModeVerdict
from harness.pages.fitted_table import Column, print_fitted

SCHEMA = "plegate.gate/1"
LEVEL_COLUMNS = (ROWS, PLE, LOGITS, TOKENS)


def print_gate(result: GateResult) -> None:
    """One line for each mode, the story of every difference, and the verdict."""
    console = Console(highlight=False)
    console.print(Text(f"{result.model}\n{described(result)}"))
    levels = [Column(name, leave_out=place) for place, name in enumerate(LEVEL_COLUMNS, 1)]
    columns = [Column("mode", justify="left"), *levels, Column("control", 0, "left"), Column("verdict", justify="left")]
    print_fitted(console, columns, [_cells(mode) for mode in result.modes])
    for finding in result.findings:
        console.print(Text(f"{finding.level}: {finding.story}"))
    for mode in result.modes:
        for line in stories(mode):
            console.print(Text(f"{mode.name}: {line}"))
    if result.exit_code == 1:
        console.print(Text(f"again: {repeat_command(result)}"))
    console.print(Text(summary(result)))


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
    if mode.found_at(level):
        return DIFFERENT
    compared = mode.compared(level)
    return f"{compared:,}" if compared else "-"


def _cells(mode: ModeVerdict) -> list[str | Text]:
    levels: list[str | Text] = []
    for level in LEVEL_COLUMNS:
        text = cell(mode, level)
        levels.append(Text(text, style=STYLES[DIFFERENT] if text == DIFFERENT else ""))
    return [mode.name, *levels, mode.control, Text(mode.verdict, style=STYLES[mode.verdict])]


def stories(mode: ModeVerdict) -> list[str]:
    """What is to be said of a mode beyond its line in the table, the cause before its consequences."""
    lines = [f"{finding.level}: {finding.story}" for finding in mode.ordered]
    return lines + mode.notes


def summary(result: GateResult) -> str:
    """The verdict in one sentence."""
    count = {name: sum(mode.verdict == name for mode in result.modes) for name in STYLES}
    if result.findings:
        return (
            f"verdict: different. {result.findings[0].level}: what is recorded, or the file, is not what was expected."
        )
    if count[EQUAL] == len(result.modes):
        modes = f"{count[EQUAL]} mode{'s' if count[EQUAL] > 1 else ''}"
        tokens = ", and the same tokens" if any(mode.tokens_compared for mode in result.modes) else ""
        unseen = next((f" But {mode.unseen}." for mode in result.modes if mode.unseen), "")
        return f"verdict: equal. {modes} gave the same rows, byte for byte{tokens}.{unseen}"
    rest = ", ".join(f"{number} {name}" for name, number in count.items() if number and name != EQUAL)
    word = "different" if count[DIFFERENT] or count[UNSTEADY] else "incomplete"
    return f"verdict: {word}. {count[EQUAL]} of {len(result.modes)} modes equal, {rest}."


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
        "cases": [
            {
                "id": case.id,
                "about": case.about,
                "generate": case.generate,
                "golden": result.goldens.get(case.id, False),
                "metric": case.metric,
                "bound": case.bound,
                "reason": case.reason,
                "prompts": [{"name": prompt.name, "ids": list(prompt.ids)} for prompt in case.prompts],
            }
            for case in result.cases
        ],
        "findings": [_finding(finding) for finding in result.findings],
        "modes": [_mode(mode) for mode in result.modes],
        "margins": [asdict(line) for line in result.margins],
        "environment": environment(),
    }


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
        "control": [finding.story for finding in mode.controls],
        "findings": [_finding(finding) for finding in mode.ordered],
        "not_run": mode.not_run,
        "unseen": mode.unseen,
        "fallback_reason": mode.fallback_reason,
        "counters": mode.counters,
        "evidence": mode.evidence,
        "wall_s": round(mode.wall_s, 3),
    }


def _detail(mode: ModeVerdict, check: str) -> dict[str, Any] | None:
    return next((dict(finding.detail) for finding in mode.findings if finding.check == check), None)


def write_reports(result: GateResult, json_file: Path | None, html_file: Path | None, junit_file: Path | None) -> None:
    """Each report that was asked for, whole or not at all. Raises: InputError for a place that cannot be written."""
    if json_file is not None:
        write_json(json_file, gate_as_json(result))
    if junit_file is not None:
        from harness.gate.junit import gate_as_junit

        write_text(junit_file, gate_as_junit(result))
    if html_file is not None:
        from harness.gate.html.page import gate_as_html

        write_text(html_file, gate_as_html(result))


def mode_list() -> None:
    """Print every registered mode with the first line of its documentation."""
    table = Table(box=None)
    table.add_column("mode", style="bold")
    table.add_column("how it reads")
    for name, reader in MODES.items():
        table.add_row(name, (inspect.getdoc(reader) or "").split("\n")[0].split(" Raises:")[0])
    Console(highlight=False).print(table)


def case_list() -> None:
    """Print every registered case, and every check with its level."""
    table = Table(box=None)
    for name in ("case", "model", "prompts", "tokens", "about"):
        table.add_column(name)
    for case in cases().values():
        tokens = sum(len(prompt.ids) + case.generate for prompt in case.prompts)
        table.add_row(case.id, case.model, str(len(case.prompts)), f"{tokens:,}", case.about)
    console = Console(highlight=False)
    console.print(table)
    checks = Table(box=None)
    for name in ("check", "level", "what it compares"):
        checks.add_column(name)
    for check in CHECKS.values():
        checks.add_row(check.name, check.level, check.about)
    console.print(checks)

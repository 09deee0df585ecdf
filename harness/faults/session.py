"""The mutation session: every fault in a process of its own, and a table of what caught it.

It fails when a fault is not caught by the check that the table names, at that check's level, with the words that find
it; when that check still names it after it was taken out; when a check is proven by no fault; and when anything is
found where nothing was planted. So taking any one check out of the gate makes the session fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from harness.faults.faults import FAULTS, Fault
from harness.faults.trial import Caught, TrialResult
from harness.gate.checks import CHECKS
from harness.pages.numbers import ABSENT, seconds
from harness.pages.tables import Column, print_line, print_table, text_column
from model_file.errors import InputError

NOTHING = "nothing planted"
LIMIT_S = 600


@dataclass(frozen=True)
class Row:
    """One line of the table. problem: None when the proof holds."""

    fault: str
    caught: Caught | None
    without: Caught | None
    problem: str | None
    wall_s: float


def judge(fault: Fault | None, result: TrialResult) -> str | None:
    """What is wrong with a fault's proof, None when it holds."""
    whole, without = result.whole, result.without
    if fault is None:
        return None if whole.check is None else f"found without any fault: {whole.check}: {whole.story}"
    expected = CHECKS[fault.check]
    if whole.check is None:
        return f"slipped through, expected {fault.check!r} to catch it"
    if whole.check != fault.check:
        return f"caught by {whole.check!r} ({whole.level}), expected {fault.check!r} ({expected.level}): {whole.story}"
    missing = [words for words in fault.named if words not in whole.story]
    if missing:
        return f"its story lacks {missing}: {whole.story}"
    if without.check == fault.check:
        return f"still caught by {fault.check!r} although that check was taken out"
    return None


def unproven(faults: Sequence[Fault]) -> list[str]:
    """Checks that no fault proves."""
    return [name for name in CHECKS if name not in {fault.check for fault in faults}]


def run_session(only: Sequence[str], without: Sequence[str], console: Console) -> int:
    """Run all faults, or those named; print the table; 0 when every proof holds, 1 when one does not.

    without: checks taken out of every run, to see that the session fails. Raises: InputError for an unknown name.
    """
    chosen: list[Fault | None] = [None, *FAULTS]
    names = [fault.name if fault else NOTHING for fault in chosen]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise InputError(f"--only {unknown[0]!r}: no such fault, expected one of: {', '.join(names)}")
    if only:
        chosen = [fault for fault in chosen if (fault.name if fault else NOTHING) in only]
    rows = []
    for fault in chosen:
        row = _run(fault, without)
        rows.append(row)
        print_line(f"{row.fault}: {'proven' if row.problem is None else row.problem} ({row.wall_s:.0f} s)", console)
    _print(rows, console)
    problems = [f"{row.fault}: {row.problem}" for row in rows if row.problem]
    if not only:
        problems += [f"check {name!r} is proven by no fault" for name in unproven(FAULTS)]
    for problem in problems:
        print_line(problem, console)
    total = sum(row.wall_s for row in rows)
    good = len(rows) - len([row for row in rows if row.problem])
    print_line(f"{good} of {len(rows)} proofs hold, {len(CHECKS)} checks, {total:.0f} s", console)
    return 1 if problems else 0


def _run(fault: Fault | None, without: Sequence[str]) -> Row:
    name = fault.name if fault else NOTHING
    started = time.perf_counter()
    command = [sys.executable, "-m", "harness.faults.trial", name, *without]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, cwd=Path(__file__).parents[2], check=False
        )
    except subprocess.TimeoutExpired:  # one that hangs proves nothing; the others still can
        wall_s = time.perf_counter() - started
        return Row(name, None, None, f"the trial was stopped after {LIMIT_S:g} s, expected it to end by itself", wall_s)
    wall_s = time.perf_counter() - started
    if done.returncode:
        return Row(name, None, None, f"the trial ended with {done.returncode}: {done.stderr.strip()[-600:]}", wall_s)
    content = json.loads(done.stdout.strip().splitlines()[-1])
    result = TrialResult(Caught(**content["whole"]), Caught(**content["without"]))
    return Row(name, result.whole, result.without, judge(fault, result), wall_s)


def _print(rows: Sequence[Row], console: Console) -> None:
    columns = [text_column("fault"), text_column("caught by"), text_column("level", 1), Column("in", 0)]
    cells = [
        (
            row.fault,
            (row.caught.check if row.caught else None) or ABSENT,
            (row.caught.level if row.caught else None) or ABSENT,
            seconds(row.caught.wall_s if row.caught else None),
            "" if row.fault == NOTHING or row.without is None else _later(row.without),
            "failed" if row.problem else "yes",
        )
        for row in rows
    ]
    columns += [text_column("without that check", 2), text_column("as expected")]
    print_table(columns, cells, title="planted faults", console=console)


def _later(caught: Caught) -> str:
    return "slips through" if caught.check is None else f"seen as {caught.check}"

"""The mutation session: every fault in a process of its own, and a table of what caught it.

It fails when a fault is not caught by the check that it names, with the words that find it; when that check still names
it after it was taken out; when a check is proven by no fault; and when anything is found where nothing was planted. So
taking any one check out of the gate makes the session fail.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.faults.child import in_child
from harness.faults.fault import Fault, faults
from harness.gate.checks import CHECKS
from harness.pages.numbers import seconds
from harness.pages.tables import Column, print_line, print_table, text_column
from model_file.errors import InputError

NOTHING = "nothing planted"
LIMIT_S = 900
COLUMNS = (
    text_column("fault"),
    text_column("caught by"),
    text_column("level"),
    Column("in"),
    text_column("without it"),
)


@dataclass(frozen=True)
class Row:
    """One line of the table. said: check, message and seconds of each run. problem: None when the proof holds."""

    fault: str
    said: list[Any]
    problem: str | None
    wall_s: float


def judge(fault: Fault | None, said: Sequence[Any]) -> str | None:
    """What is wrong with a fault's proof, None when it holds. said: check and message of each run of the gate."""
    if said and len(said[-1]) == 2:  # the process did not come to its end
        return f"the trial ended with {said[-1][0]}: {said[-1][1][-600:]}"
    if fault is None:
        return None if said[0][0] is None else f"found without any fault: {said[0][0]}: {said[0][1]}"
    *proofs, last = [*said, (None, "")] if fault.case is None else said
    for place, (check, message, *_) in enumerate(proofs):
        where = "" if fault.case else ("--quick: ", "the whole gate: ")[place]
        if check is None:
            return f"{where}slipped through, expected {fault.check or 'any check'!r} to catch it"
        if fault.check and check != fault.check:
            levels = CHECKS[check].level, CHECKS[fault.check].level
            return f"{where}caught by {check!r} ({levels[0]}), expected {fault.check!r} ({levels[1]}): {message}"
        missing = [words for words in fault.named if words not in message]
        if missing:
            return f"{where}its message lacks {missing}: {message}"
    if fault.check and last[0] == fault.check:
        return f"still caught by {fault.check!r} although that check was taken out"
    return None


def unproven(faults: Iterable[Fault]) -> list[str]:
    """Checks that no fault proves."""
    return [name for name in CHECKS if name not in {fault.check for fault in faults}]


def run_session(only: Sequence[str], without: Sequence[str]) -> int:
    """Run all faults, or those named; print the table; 0 when every proof holds, 1 when one does not.

    without: checks taken out of every run, to see that the session fails. Raises: InputError for an unknown name.
    """
    names = [NOTHING, *faults()]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise InputError(f"--only {unknown[0]!r}: no such fault, expected one of: {', '.join(names)}")
    rows = []
    for name in [name for name in names if not only or name in only]:
        row = _run(name, without)
        rows.append(row)
        print_line(f"{row.fault}: {row.problem or 'proven'} ({seconds(row.wall_s)})")
    print_table(COLUMNS, [_cells(row) for row in rows], title="planted faults")
    problems = [f"{row.fault}: {row.problem}" for row in rows if row.problem]
    if not only:
        problems += [f"check {name!r} is proven by no fault" for name in unproven(faults().values())]
    for problem in problems:
        print_line(problem)
    total = sum(row.wall_s for row in rows)
    good = sum(row.problem is None for row in rows)
    print_line(f"{good} of {len(rows)} proofs hold, {len(CHECKS)} checks, {seconds(total)}")
    return 1 if problems else 0


def _run(name: str, without: Sequence[str]) -> Row:
    fault = faults().get(name)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="plegate-mutation-") as scratch:
        work = ("harness.faults.judged", "say_trial")
        arguments = (name if fault else "", tuple(without))
        said = in_child(work, (*arguments, True), LIMIT_S, Path(scratch))
        if fault is not None and fault.case is None and said[-1][0] in CHECKS:
            said += in_child(work, (*arguments, False), LIMIT_S, Path(scratch))
    return Row(name, said, judge(fault, said), time.perf_counter() - started)


def _cells(row: Row) -> list[str]:
    check = row.said[0][0]
    if check not in CHECKS:
        return [row.fault, "-", "-", "-", ""]
    fault = faults().get(row.fault)
    later = row.said[-1][0]
    after = "found by --quick too" if fault is None or fault.case is None else f"seen as {later}" if later else "unseen"
    return [row.fault, check, CHECKS[check].level, seconds(row.said[0][2]), after]

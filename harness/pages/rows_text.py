"""The rows gate's result as a table, and as JSON."""

from __future__ import annotations

from typing import Any

from fast.rows.syscalls import PAGE_BYTES
from harness.environment import environment
from harness.gate.rows_only import RowsResult
from harness.gate.verdicts import EQUAL, ModeVerdict
from harness.pages.numbers import byte_size, count, short
from harness.pages.tables import Column, Row, print_line, print_table, text_column

SCHEMA = "plegate.rows/2"
COLUMNS = (
    text_column("mode"),
    Column("cold\nrows/s", 5),
    Column("warm\nrows/s", 4),
    Column("over-\nread", 3),
    Column("calls", 1),
    Column("major\nfaults", 2),
    Column("in\nflight", 0),
    text_column("verdict"),
)


def print_rows(result: RowsResult) -> None:
    """What was compared, one line for each mode, the details of every difference, and the verdict."""
    table = result.table
    kind = f"{table.type.name}, {byte_size(table.size_bytes)}"
    print_line(f"{result.model}: {result.architecture}, {count(table.rows)} rows of {table.row_bytes} bytes ({kind})")
    print_line("rows compared: " + ", ".join(f"{batch.name} {count(batch.ids.size)}" for batch in result.batches))
    for note in result.notes:
        print_line(note)
    print_table(COLUMNS, [_cells(mode) for mode in result.modes])
    for finding in result.findings:
        print_line(f"{finding.level}: {finding.message}")
    for mode in result.modes:
        for line in details(mode):
            print_line(f"{mode.name}: {line}")
    for line in result.scan.lines() if result.scan else ():
        print_line(f"scan: {line}")
    if result.changed:
        print_line(f"changed: {result.changed}")
    equal = sum(mode.verdict == EQUAL for mode in result.modes)
    against = f" as in {result.against}" if result.against else ""
    print_line(f"{equal} of {len(result.modes)} modes give the rows{against} byte for byte; {result.coverage}")


def _cells(mode: ModeVerdict) -> Row:
    cold, warm = mode.timed.get("cold"), mode.timed.get("warm")
    shown = cold or warm or {}
    device = cold and cold["bytes_device"]
    over_read = None if not cold or device is None else device / (cold["pages_unique"] * PAGE_BYTES)
    return [
        mode.name,
        *(short(found["rows_requested"] / found["wall_s"] if found else None) for found in (cold, warm)),
        "-" if over_read is None else f"{over_read:.1f}x",
        count(shown.get("read_calls")),
        count(shown.get("major_faults")),
        count(shown.get("effective_concurrency") or None),
        mode.verdict,
    ]


def details(mode: ModeVerdict) -> list[str]:
    """What a person must know of a mode beside its line in the table."""
    lines = []
    for finding in mode.ordered:
        lines.append(f"{finding.level}: {finding.message}")
        if "found_row" in finding.detail:
            lines.append(f"row {finding.detail['row']}: found    {finding.detail['found_row']}")
            lines.append(f"row {finding.detail['row']}: expected {finding.detail['expected_row']}")
    lines += mode.notes
    if mode.not_cold and mode.cold_required:
        lines.append(f"not cold: {mode.not_cold}")
    return lines


def rows_as_json(result: RowsResult) -> dict[str, Any]:
    """The result as plain values."""
    table = result.table
    return {
        "schema": SCHEMA,
        "exit_code": result.exit_code,
        "model": result.model,
        "against": result.against,
        "architecture": result.architecture,
        "table": {
            "type": table.type.name,
            "rows": table.rows,
            "row_width": table.row_width,
            "row_bytes": table.row_bytes,
            "shards": [segment.path.name for segment in table.segments],
        },
        "seed": result.seed,
        "batches": [
            {"name": b.name, "rows": int(b.ids.size), "unique": len(set(b.ids.tolist())), "rows_per_token": b.heads}
            for b in result.batches
        ],
        "notes": result.notes,
        "rows_sampled": result.rows_sampled,
        "scan": result.scan.as_json() if result.scan else None,
        "whole_table": result.whole.as_json() if result.whole else None,
        "findings": [{"level": finding.level, **vars(finding)} for finding in result.findings],
        "changed": result.changed,
        "modes": [
            {
                "name": mode.name,
                "verdict": mode.verdict,
                "effective_mode": mode.effective,
                "fallback_reason": mode.fallback_reason,
                "not_run": mode.not_run,
                "rows_compared": mode.rows_compared,
                "findings": [{"level": finding.level, **vars(finding)} for finding in mode.ordered],
                "control": mode.control,
                "not_cold": mode.not_cold,
                "counters": mode.timed,
                "evidence": mode.evidence,
            }
            for mode in result.modes
        ],
        "environment": environment(),
    }

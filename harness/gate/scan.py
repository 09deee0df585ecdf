"""What is in a table that no comparison shows: values that are not finite, rows of zeros, bytes never written."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fast.rows import Table
from harness.gate.whole_table import blocks
from harness.oracle import Packed, values_of

BLOCK_BYTES = 2 << 20  # packed; as float32 up to 16 times as much


@dataclass(frozen=True)
class Scan:
    """Rows of each kind, the first of them (-1: none) with its place, and the bytes that were never written.

    unpacked: whether the `gguf` package unpacks the type; else nothing is known of not finite values, and a row of
    zeros is one of zero bytes. unwritten: ranges in the files, as (path, first byte, byte behind the last).
    """

    rows: int
    size_bytes: int
    unpacked: bool
    not_finite: int
    first_not_finite: int
    not_finite_at: str
    zero: int
    first_zero: int
    zero_at: str
    unwritten_bytes: int
    unwritten: list[tuple[str, int, int]]

    @property
    def sound(self) -> bool:
        """No value that is not finite, and every byte was written; rows of zeros may be meant."""
        return not (self.not_finite or self.unwritten_bytes)

    def lines(self) -> list[str]:
        """A sentence for each kind."""
        at = {"not_finite": self.not_finite_at, "zero": self.zero_at}
        first = {name: f", the first is row {getattr(self, f'first_{name}')} ({at[name]})" for name in at}
        lines = [f"{self.zero:,} of {self.rows:,} rows are all zero{first['zero'] * bool(self.zero)}"]
        if self.unpacked:
            shown = first["not_finite"] * bool(self.not_finite)
            lines.insert(0, f"{self.not_finite:,} of {self.rows:,} rows hold NaN or infinity{shown}")
        else:
            lines.append("NaN and infinity were not looked for: the gguf package does not unpack this type")
        if self.unwritten:
            path, start, end = self.unwritten[0]
            lines.append(
                f"{self.unwritten_bytes / self.size_bytes:.1%} of the table was never written (a download that is not "
                f"finished, or space that was only allocated), first bytes {start} to {end - 1} of {path}"
            )
        return lines

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"sound": self.sound, **asdict(self)}


def never_written(table: Table) -> list[tuple[str, int, int]]:
    """Ranges of the table's bytes; to be asked before anything reads them."""
    return [
        (str(segment.path), *each)
        for segment in table.segments
        for each in _unwritten(
            segment.path, segment.offset_bytes, segment.offset_bytes + segment.rows * table.row_bytes
        )
    ]


def scan_table(table: Table, holes: list[tuple[str, int, int]], report: Callable[[str], None]) -> Scan:
    """Unpack every row by the `gguf` package. holes: what `never_written` found before."""
    block_rows, reported = max(1, BLOCK_BYTES // table.row_bytes), -1
    bad = {"not_finite": [0, -1], "zero": [0, -1]}
    unpacked = True
    for start, block in zip(range(0, table.rows, block_rows), blocks(table, block_rows), strict=True):
        if (percent := 100 * start // table.rows) != reported:
            report(f"scanning the table: {percent}%")
            reported = percent
        found = values_of(block, table.type)
        unpacked = found is not None
        for name, rows in _kinds(block, found).items():
            bad[name][0] += int(rows.sum())
            if bad[name][1] < 0 and rows.any():
                bad[name][1] = start + int(rows.argmax())
    (not_finite, first_bad), (zero, first_zero) = bad.values()
    places = [_place(table, first_bad), _place(table, first_zero)]
    lost = sum(stop - start for _, start, stop in holes)
    return Scan(
        table.rows,
        table.size_bytes,
        unpacked,
        not_finite,
        first_bad,
        places[0],
        zero,
        first_zero,
        places[1],
        lost,
        holes,
    )


def _kinds(block: Packed, values: np.ndarray | None) -> dict[str, np.ndarray]:
    if values is None:
        return {"zero": np.asarray(~block.any(axis=1))}
    return {"not_finite": ~np.isfinite(values).all(axis=1), "zero": (values == 0).all(axis=1)}


def _place(table: Table, row: int) -> str:
    if row < 0:
        return ""
    segment, offset = table.place(row)
    return f"at byte {offset} of {segment.path}"


def _unwritten(path: Path, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges of bytes within [start, end) that are holes or unwritten extents (SEEK_HOLE), in order.

    To be asked before they are read: a page that was read counts as written to some file systems. Empty where the file
    system does not say.
    """
    found = []
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while start < end:
            hole = min(end, os.lseek(descriptor, start, os.SEEK_HOLE))
            try:
                start = min(end, os.lseek(descriptor, hole, os.SEEK_DATA)) if hole < end else end
            except OSError:  # no data behind it
                start = end
            if start > hole:
                found.append((hole, start))
    except (OSError, AttributeError):
        return []
    finally:
        os.close(descriptor)
    return found

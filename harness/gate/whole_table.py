"""Are two tables the same? Every byte of both, read in order in large blocks: no sample can answer that.

Plain positional reads, as everywhere on the gate's own side; memory: two blocks, however large the tables are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import Table
from harness.oracle import naming
from model_file.errors import InputError

BLOCK_BYTES = 8 << 20


@dataclass(frozen=True)
class WholeTable:
    """What comparing two tables to their ends found; `different` rows of `rows`, and the first of them.

    row, byte (inside the row), found, expected: -1 where no row differs. file, offset_bytes: where that row starts.
    """

    rows: int
    different: int = 0
    row: int = -1
    byte: int = -1
    found: int = -1
    expected: int = -1
    file: str = ""
    offset_bytes: int = -1
    original: str = ""
    original_offset_bytes: int = -1

    def message(self) -> str:
        """One sentence: how many rows were compared and, where some differ, the first one with its place and bytes."""
        if not self.different:
            return f"whole tables compared: all {self.rows:,} rows equal"
        return (
            f"whole tables compared: {self.different:,} of {self.rows:,} rows different, first row {self.row} "
            f"(at byte {self.offset_bytes} of {self.file}, {self.original_offset_bytes} of {self.original}), byte "
            f"{self.byte} of the row: found 0x{self.found:02x}, expected 0x{self.expected:02x}"
        )

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        return {"message": self.message(), **asdict(self)}


def compare_whole(own: Table, original: Table, report: Callable[[str], None]) -> WholeTable:
    """Compare two tables of the same type and shape from the first byte to the last.

    Raises: InputError for a file that has become shorter since it was opened.
    """
    different, first, reported = 0, None, -1
    block_rows = max(1, BLOCK_BYTES // own.row_bytes)
    for start, mine, right in zip(
        range(0, own.rows, block_rows), blocks(own, block_rows), blocks(original, block_rows), strict=True
    ):
        percent = 100 * start // own.rows
        if percent != reported:
            report(f"whole tables: {percent}%")
            reported = percent
        if np.array_equal(mine, right):
            continue
        unequal = mine != right
        bad = np.flatnonzero(unequal.any(axis=1))
        different += bad.size
        if first is None:
            index = int(bad[0])
            byte = int(np.flatnonzero(unequal[index])[0])
            first = start + index, byte, int(mine[index, byte]), int(right[index, byte])
    if first is None:
        return WholeTable(own.rows)
    segment, offset = own.place(first[0])
    other, other_offset = original.place(first[0])
    return WholeTable(own.rows, different, *first, str(segment.path), offset, str(other.path), other_offset)


def blocks(table: Table, block_rows: int) -> Iterator[npt.NDArray[np.uint8]]:
    """The table's rows in order, `block_rows` at a time, the last block what is left; one buffer, filled again."""
    block = np.empty((min(block_rows, table.rows), table.row_bytes), np.uint8)
    with ExitStack() as stack:
        files = []
        for segment in table.segments:
            descriptor = os.open(segment.path, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            files.append((descriptor, segment))
        for start in range(0, table.rows, block_rows):
            stop = min(start + block_rows, table.rows)
            for descriptor, segment in files:
                low, high = max(start, segment.first_row), min(stop, segment.first_row + segment.rows)
                if low < high:
                    offset = segment.offset_bytes + (low - segment.first_row) * table.row_bytes
                    _read(descriptor, block[low - start : high - start].reshape(-1), offset, str(segment.path))
            yield block[: stop - start]


def _read(descriptor: int, out: npt.NDArray[np.uint8], offset: int, path: str) -> None:
    done = 0
    while done < out.size:
        with naming(Path(path), offset + done):
            count = os.preadv(descriptor, [out.data[done:]], offset + done)
        if not count:
            raise InputError(
                f"{path}: ends at byte {offset + done}, expected {out.size - done} more bytes of the table: it was "
                "longer when it was opened; is it still being written?"
            )
        done += count

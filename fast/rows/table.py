"""The table: which bytes of which files hold row i, and the checks every id passes before any arithmetic on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from fast.rows.syscalls import PAGE_BYTES
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.tensors import TABLE

Ids = npt.NDArray[np.int64]
_FEW = 32
_INT64, _UINT64 = np.dtype(np.int64), np.dtype(np.uint64)


@dataclass(frozen=True)
class Segment:
    """A run of consecutive rows in one file. Units: offset_bytes from the start of the file."""

    path: Path
    offset_bytes: int
    first_row: int
    rows: int


@dataclass(frozen=True)
class Table:
    """A packed table, row i at `segment.offset_bytes + (i - segment.first_row) * row_bytes` of its segment's file.

    Units: row_width in values, row_bytes in bytes.
    Raises: InputError when segments leave a gap, or a file ends before its last row.
    """

    type: gguf.GGMLQuantizationType
    rows: int
    row_width: int
    row_bytes: int
    segments: tuple[Segment, ...]
    name: str = TABLE  # for messages

    def __post_init__(self) -> None:
        block, block_bytes = gguf.GGML_QUANT_SIZES[self.type]
        if self.row_width % block or self.row_width // block * block_bytes != self.row_bytes:
            raise InputError(
                f"table of {self.type.name}: {self.row_width} values take {self.row_bytes} bytes, expected a multiple "
                f"of {block} values at {block_bytes} bytes each"
            )
        expected = 0
        for segment in self.segments:
            if segment.first_row != expected or segment.rows < 1:
                raise InputError(
                    f"{segment.path}: rows {segment.first_row}..{segment.first_row + segment.rows - 1} found, "
                    f"expected the next segment to start at row {expected}"
                )
            expected += segment.rows
            check_file_holds(self, segment, segment.path.stat().st_size)
        if expected != self.rows:
            raise InputError(f"the table's segments hold {expected} rows, expected {self.rows}")

    @property
    def size_bytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.row_bytes

    def place(self, row: int) -> tuple[Segment, int]:
        """The segment of a row and the row's offset in that segment's file."""
        for segment in self.segments:
            if row < segment.first_row + segment.rows:
                return segment, segment.offset_bytes + (row - segment.first_row) * self.row_bytes
        raise InputError(f"row {row} does not exist, the table has {self.rows} rows")

    def segment_of(self, ids: Ids) -> npt.NDArray[np.intp]:
        """Index of each id's segment."""
        starts = np.array([segment.first_row for segment in self.segments], dtype=np.int64)
        return np.searchsorted(starts, ids, side="right") - 1

    def offsets(self, ids: Ids) -> npt.NDArray[np.int64]:
        """File offset of each checked id in its segment's file. 64-bit: rows * row_bytes fits because the file does."""
        if len(self.segments) == 1:
            offsets = ids * np.int64(self.row_bytes)
            offsets += self.segments[0].offset_bytes
            return offsets
        bases = np.array([s.offset_bytes - s.first_row * self.row_bytes for s in self.segments], dtype=np.int64)
        return ids * np.int64(self.row_bytes) + bases[self.segment_of(ids)]

    def pages(self) -> int:
        """Pages of 4 KiB that hold at least one byte of the table."""
        return sum(
            (s.offset_bytes + s.rows * self.row_bytes - 1) // PAGE_BYTES - s.offset_bytes // PAGE_BYTES + 1
            for s in self.segments
        )


def locate_table(gguf_file: GgufFile, name: str = TABLE) -> Table:
    """Describe the table `name` of an opened file; a GGUF tensor lies in one shard, so there is one segment.

    Raises: InputError when there is no such tensor, it is not two-dimensional, or its file ends too early.
    """
    info = gguf_file.tensors.get(name)
    if info is None:
        found = ", ".join(str(path) for path in gguf_file.paths)
        raise InputError(
            f"{found}: no tensor named {name} among {len(gguf_file.tensors)}, expected the lazily read table of a "
            f"qwen4exp, gemma3n or gemma4 model (architecture found: {gguf_file.architecture})"
        )
    if len(info.shape) != 2:
        raise InputError(f"{info.path}: {name} has shape {info.shape}, expected two dimensions (rows, width)")
    rows, width = info.shape
    if not rows:
        raise InputError(f"{info.path}: {name} has no rows")
    block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
    segment = Segment(info.path, info.offset_bytes, 0, rows)
    return Table(info.type, rows, width, width // block * block_bytes, (segment,))


def check_file_holds(table: Table, segment: Segment, size_bytes: int) -> None:
    """Raise InputError, naming the first row that is cut off, when the file is shorter than its segment."""
    end = segment.offset_bytes + segment.rows * table.row_bytes
    if size_bytes < end:
        inside = max(0, (size_bytes - segment.offset_bytes) // table.row_bytes)
        row_end = segment.offset_bytes + (inside + 1) * table.row_bytes
        raise InputError(
            f"{segment.path}: {table.name} row {segment.first_row + inside} ends at byte {row_end}, file has "
            f"{size_bytes} bytes (the table ends at {end}): truncated download? compare its size with the publisher's"
        )


def check_ids(ids: Any, rows: int) -> Ids:
    """Row ids as int64[n], every one inside the table; nothing is rounded, wrapped or clipped.

    Raises: InputError for another dtype (floats lose ids above 2^24), more than one axis, or the first id outside.
    """
    if type(ids) is np.ndarray and 0 < ids.size <= _FEW and ids.ndim == 1 and ids.flags.c_contiguous:
        # For few ids Python's own numbers are faster than any array operation.
        if ids.dtype is _INT64 and max(numbers := ids.tolist()) < rows and min(numbers) >= 0:
            return ids
        if ids.dtype is _UINT64 and max(ids.tolist()) < rows:
            return ids.view(np.int64)
    array = np.asarray(ids)
    if array.ndim != 1:
        raise InputError(f"row ids have shape {array.shape}, expected one axis")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise InputError(f"row ids have dtype {array.dtype}, expected int64 or uint64 (floats round large ids)")
    if array.dtype != np.int64:
        if array.dtype.kind == "u" and array.dtype.itemsize == 8:
            # A negative int64 and an id of 2^63 and more are the same bits: one unsigned comparison refuses both.
            array = np.ascontiguousarray(array, dtype=np.uint64).view(np.int64)
        else:
            array = array.astype(np.int64)
    array = np.ascontiguousarray(array)
    if int(array.view(np.uint64).max()) >= rows:
        given = np.asarray(ids)
        bad = int(np.argmax(array.view(np.uint64) >= rows))
        raise InputError(f"row id {given[bad]} at position {bad} of {array.size}: the table has rows 0 to {rows - 1}")
    return array


def open_read_only(path: Path, flags: int = 0) -> int:
    """A descriptor of its own for reading: advice and read-ahead state are per open file, not shared between modes."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)

"""Raw tables of random bytes for the row tests, and an oracle that shares no code with the readers: os.pread."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from fast.rows import RowReader, RowSettings, Segment, Table, open_rows

Type = gguf.GGMLQuantizationType
# Every type that the model maker writes; wide rows where a block is 256 values.
WIDTHS = {
    Type.F32: 160,
    Type.F16: 160,
    Type.BF16: 160,
    Type.Q8_0: 160,
    Type.Q5_0: 160,
    Type.Q5_1: 160,
    Type.Q4_0: 160,
    Type.IQ4_NL: 160,
    Type.Q6_K: 256,
    Type.Q4_K: 256,
    Type.IQ1_S: 256,
}


def row_bytes_of(type: Type) -> int:
    """Bytes of a test row of this type."""
    block, block_bytes = gguf.GGML_QUANT_SIZES[type]
    return WIDTHS[type] // block * block_bytes


def make_table(folder: Path, type: Type = Type.IQ4_NL, rows: tuple[int, ...] = (3000,), seed: int = 7) -> Table:
    """A table of random bytes in one file per entry of `rows`; offsets and ends are odd on purpose.

    Segments start at odd multiples of 32, so that rows cross pages and blocks, and each file ends with its last row,
    inside a block: the last aligned window is a partial one.
    """
    rng = np.random.default_rng(seed)
    size = row_bytes_of(type)
    segments = []
    first = 0
    for index, count in enumerate(rows):
        path = folder / f"{type.name}-{index}.table"
        offset = 32 * (3 + 2 * index)
        path.write_bytes(rng.bytes(offset + count * size))
        segments.append(Segment(path, offset, first, count))
        first += count
    return Table(type, first, WIDTHS[type], size, tuple(segments))


def pread_rows(table: Table, ids: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """Each row by its own os.pread, with Python's own integers for the place."""
    out = np.empty((len(ids), table.row_bytes), np.uint8)
    descriptors = [os.open(segment.path, os.O_RDONLY) for segment in table.segments]
    try:
        for position, row in enumerate(ids.tolist()):
            owner = max(i for i, segment in enumerate(table.segments) if segment.first_row <= row)
            segment = table.segments[owner]
            place = segment.offset_bytes + (row - segment.first_row) * table.row_bytes
            data = os.pread(descriptors[owner], table.row_bytes, place)
            assert len(data) == table.row_bytes
            out[position] = np.frombuffer(data, np.uint8)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return out


def open_mode(table: Table, mode: str, settings: RowSettings) -> RowReader:
    """Open a mode, for tests that are about how it reads; skips, by name, where another would run in its place."""
    reader = open_rows(table, mode, settings)
    if reader.fallback_reason is not None:
        reader.close()
        pytest.skip(f"mode {mode} cannot run here: {reader.fallback_reason}")
    return reader


def open_descriptors() -> int:
    """Descriptors this process holds now."""
    return len(list(Path("/proc/self/fd").iterdir()))

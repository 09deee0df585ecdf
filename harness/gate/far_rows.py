"""A sparse table of more than 2^32 rows in two files, with rows written where a number cut short would confuse them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from fast.rows import Segment, Table
from harness.oracle import Ids

ROWS = (1 << 32) + (1 << 25)
WIDTH, ROW_BYTES = 32, 18  # one block of IQ4_NL: the smallest packed row, so that most file systems hold such a file
FIRST = 12_345
SECOND = 1 << 32, 64  # the first row of the second file, and the byte that it begins at
_BITS = (16, 24, 32)


@dataclass(frozen=True)
class FarRows:
    """The table, and the rows written in it."""

    table: Table
    ids: Ids


def colliding_ids() -> list[int]:
    """Rows with equal low 16, 24 or 32 bits, and both sides of 2^31 and 2^32."""
    found = [FIRST + (step << bits) for bits in _BITS for step in range(33) if FIRST + (step << bits) < ROWS]
    edges = [edge + side for edge in (1 << 31, 1 << 32) for side in (-1, 0, 1)]
    return list(dict.fromkeys([*found, *edges, ROWS - 1]))


@contextmanager
def far_rows(folder: Path | None) -> Iterator[FarRows]:
    """The table in files without a name, so that a kill leaves none. folder: where, None for the temporary one.

    Raises: OSError where the file system holds no such file, or no /proc opens it again.
    """
    (start, offset), ids = SECOND, colliding_ids()
    sizes = (start * ROW_BYTES, offset + (ROWS - start) * ROW_BYTES)
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile(dir=folder, prefix="far-rows-")) for _ in sizes]
        for file, size in zip(files, sizes, strict=True):
            os.truncate(file.fileno(), size)
        first, second = (Path(f"/proc/{os.getpid()}/fd/{file.fileno()}") for file in files)
        segments = (Segment(first, 0, 0, start), Segment(second, offset, start, ROWS - start))
        table = Table(gguf.GGMLQuantizationType.IQ4_NL, ROWS, WIDTH, ROW_BYTES, segments)
        for place, row in enumerate(ids):
            content = np.random.Philox(key=place + 1).random_raw(3).view(np.uint8)[:ROW_BYTES].copy()
            content[1] = 0x2C  # the scale, a small number
            os.pwrite(files[row >= start].fileno(), content.tobytes(), table.place(row)[1])
        for file in files:
            os.fsync(file.fileno())  # a page that is not written yet cannot be evicted
        yield FarRows(table, np.array(ids, np.uint64))

"""What the device can do: random reads past the page cache at a given depth, with nothing of a mode around them."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

import numpy as np

from fast.rows import syscalls
from fast.rows.io_uring import Ring
from fast.rows.kernel_aio import KernelAio
from fast.rows.reader import ModeUnavailable
from fast.rows.reads import BatchReader, PreadLoop, Reads, ReadStats
from fast.rows.table import Table
from fast.rows.table_files import TableFiles
from fast.rows.uncached import private_memory

_SLOTS = 1024  # buffers shared by all reads of a probe: what they hold is never looked at


@dataclass(frozen=True)
class DeviceRate:
    """Result of a probe. `concurrency` is the average number of reads in flight; `method` what carried them."""

    reads: int
    read_bytes: int
    seconds: float
    concurrency: float
    method: str

    @property
    def reads_per_s(self) -> float:
        """Reads per second."""
        return self.reads / self.seconds


class DeviceProbe:
    """Random aligned O_DIRECT reads inside the table's byte range, so that the same blocks of the same device answer.

    Raises: ModeUnavailable where the file system has no O_DIRECT: the device cannot be told from the page cache then.
    """

    def __init__(self, table: Table, read_bytes: int = syscalls.PAGE_BYTES) -> None:
        self._table = table
        self._files = TableFiles(table, direct=True)
        self._size = max(read_bytes, self._files.align_bytes)
        self._buffer = private_memory(_SLOTS * self._size)

    def run(self, reads: int, depth: int, seed: int) -> DeviceRate:
        """Read `reads` different blocks (as many as there are) chosen by the seed, at most `depth` at a time."""
        rng = np.random.default_rng(seed)
        segment = max(self._table.segments, key=lambda s: s.rows)
        first = segment.offset_bytes // self._size
        blocks = max(1, (segment.offset_bytes + segment.rows * self._table.row_bytes) // self._size - first)
        chosen = np.sort(rng.choice(blocks, min(reads, blocks), replace=False)) + first
        place = syscalls.address_of(self._buffer) + np.arange(chosen.size, dtype=np.int64) % _SLOTS * self._size
        files = self._files.of_segments(np.full(chosen.size, self._table.segments.index(segment), np.intp))
        batch = Reads(files, chosen * self._size, place, self._size, self._buffer, np.ones(chosen.size, np.int64))
        reader, method = _best_reader(depth)
        started = perf_counter()
        stats: ReadStats = reader.read(batch)
        seconds = perf_counter() - started
        reader.close()
        return DeviceRate(int(chosen.size), self._size, seconds, stats.service_s / seconds, method)

    def close(self) -> None:
        """Release files and memory."""
        self._files.close()
        self._buffer = np.empty(0, np.uint8)


def _best_reader(depth: int) -> tuple[BatchReader, str]:
    """The way to keep most reads in flight that this machine allows."""
    try:
        return Ring(depth), "io_uring"
    except ModeUnavailable:
        pass
    try:
        return KernelAio(depth), "kernel AIO"
    except ModeUnavailable:
        return PreadLoop(), "pread, one at a time"

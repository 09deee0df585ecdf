"""Modes `direct` and `direct-uncached`: explicit positional reads by a pool of workers, rows deduplicated per batch.

A worker takes a slice of the batch and reads it with one io_submit: the reads run one after the other inside the
kernel, without the interpreter between them, so the number of workers is the number of reads in flight. Where kernel
AIO is refused the workers call pread row by row instead, and `fallback_reason` says so.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from time import perf_counter

import numpy as np

from fast.rows import syscalls
from fast.rows.calibrate import worker_count
from fast.rows.counters import GatherCounters
from fast.rows.kernel_aio import KernelAio
from fast.rows.plan import GatherPlan
from fast.rows.reader import ModeUnavailable, PackedRows, RowReader
from fast.rows.reads import PreadLoop, Reads, ReadStats
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.table_files import TableFiles
from fast.rows.uncached import WindowReader

_SLICE_READS = 256  # largest slice a worker takes at once, and the size of its AIO context
_SLICES_PER_WORKER = 4  # slices are smaller than a worker's share, so that a slow read does not hold up the batch


class ReadPool:
    """Workers that carry out slices of a batch of reads; threads and AIO contexts appear when they are first needed."""

    def __init__(self, settings: RowSettings, workers: int) -> None:
        self.workers = workers
        self._call = settings.syscall
        self._inline = settings.inline_rows
        self._executor: ThreadPoolExecutor | None = None
        self._contexts: SimpleQueue[KernelAio] = SimpleQueue()
        self._pid = os.getpid()
        self.refused: str | None = None
        self._put(self._get())  # the probe

    def read(self, reads: Reads, nowait_first: bool = True) -> ReadStats:
        """Carry out all reads: a small batch on this thread, a large one on the workers."""
        if self._pid != os.getpid():  # a forked child has neither the threads nor the contexts
            self._executor, self._contexts, self._pid = None, SimpleQueue(), os.getpid()
        if reads.count <= self._inline:
            return self._slice(reads, nowait_first)
        if self._executor is None:
            self._executor = ThreadPoolExecutor(self.workers, "plegate-read")
        size = max(1, min(_SLICE_READS, -(-reads.count // (self.workers * _SLICES_PER_WORKER))))
        futures = [
            self._executor.submit(self._slice, reads.subset(slice(start, start + size)), False)
            for start in range(0, reads.count, size)
        ]
        stats = ReadStats()
        try:
            for future in futures:
                done = future.result()
                stats.calls += done.calls
                stats.bytes_asked += done.bytes_asked
                stats.service_s += done.service_s
        finally:
            # The workers write to the caller's memory: leave only when none of them can any more.
            for future in futures:
                if not future.cancel():
                    future.exception()
        return stats

    def _slice(self, reads: Reads, nowait_first: bool) -> ReadStats:
        context = self._get()
        if context is None:
            return PreadLoop().read(reads)
        try:
            return context.read(reads, nowait_first)
        finally:
            self._put(context)

    def _get(self) -> KernelAio | None:
        try:
            return self._contexts.get_nowait()
        except Empty:
            pass
        if self.refused is None:
            try:
                return KernelAio(_SLICE_READS, self._call)
            except ModeUnavailable as reason:
                self.refused = str(reason)
        return None

    def _put(self, context: KernelAio | None) -> None:
        if context is not None:
            self._contexts.put(context)

    def close(self) -> None:
        """Stop the threads and destroy the contexts."""
        if self._pid == os.getpid():
            if self._executor:
                self._executor.shutdown()
            while True:
                try:
                    self._contexts.get_nowait().close()
                except Empty:
                    break
        self._executor = None


def row_reads(files: TableFiles, ids: Ids, out: PackedRows, unplanned_rows: int) -> tuple[Reads, GatherPlan | None]:
    """Reads that put each row at its place in `out`. A small batch has no plan: a row asked for twice is read twice."""
    row_bytes = files.table.row_bytes
    base = syscalls.address_of(out)
    if ids.size <= unplanned_rows:
        addresses = np.arange(base, base + ids.size * row_bytes, row_bytes, dtype=np.int64)
        return Reads(files.of_rows(ids), files.table.offsets(ids), addresses, row_bytes), None
    plan = GatherPlan(files.table, ids)
    addresses = plan.places * row_bytes
    addresses += base
    return Reads(files.of_segments(plan.segments), plan.offsets, addresses, row_bytes), plan


class DirectReader(RowReader):
    """Buffered positional reads; `workers` of them in flight."""

    name = "direct"

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._files: TableFiles | None = None
        self._pool: ReadPool | None = None
        super().__init__(table, settings)

    @property
    def workers(self) -> int:
        """Reads in flight at most."""
        return self._pool.workers if self._pool else 0

    def _open(self) -> None:
        self._files = TableFiles(self.table, random=True)
        self._pool = ReadPool(self.settings, worker_count(self.table, self.settings))
        if self._pool.refused:
            self.fallback_reason = f"{self._pool.refused}; workers call pread row by row"

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._files is not None and self._pool is not None
        started = perf_counter()
        reads, plan = row_reads(self._files, ids, out, self.settings.inline_rows)
        planned = perf_counter()
        stats = self._pool.read(reads)
        read = perf_counter()
        if plan is not None:
            plan.fill_repeats(out)
        counters.plan_s += planned - started
        counters.read_s += read - planned
        counters.copy_s += perf_counter() - read
        counters.read_calls += stats.calls
        counters.bytes_asked += stats.bytes_asked
        counters.service_s = stats.service_s

    def _close(self) -> None:
        if self._pool:
            self._pool.close()
        if self._files:
            self._files.close()


class DirectUncachedReader(DirectReader):
    """The same with O_DIRECT: aligned windows, the page cache stays clean, and nothing is warm the second time."""

    name = "direct-uncached"
    fallback = DirectReader
    keeps_rows = False

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._windows: WindowReader | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._files = TableFiles(self.table, direct=True)
        self._windows = WindowReader(self._files, self.settings)
        self._pool = ReadPool(self.settings, worker_count(self.table, self.settings))
        if self._pool.refused:
            self.fallback_reason = f"{self._pool.refused}; workers call pread window by window"

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._windows is not None and self._pool is not None
        pool = self._pool
        self._windows.read(ids, out, counters, lambda reads: pool.read(reads, nowait_first=False))

    def _close(self) -> None:
        super()._close()
        if self._windows:
            self._windows.close()

"""Modes `direct` and `direct-uncached`: explicit positional reads by a pool of workers, rows deduplicated per batch.

A worker takes a slice of the batch and gives it to the kernel in one io_submit, without the interpreter between the
reads: first with RWF_NOWAIT, which copies the cached rows and starts reading the missing ones, then a second time for
the missing ones, which are now in flight together. So a slice is as large as one io_submit takes: slices of a few rows
took twice as long for 256 rows cold, and four times as long warm.

Where kernel AIO is refused, the workers call pread row by row instead, and `fallback_reason` says so. Then there is one
read in flight for each worker, and slices are small; that reaches a third of the speed on two busy cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from fast.rows import syscalls
from fast.rows.buffered import read_buffered
from fast.rows.counters import GatherCounters
from fast.rows.kernel_aio import SHARED, ContextPool, KernelAio
from fast.rows.reader import KernelView, ModeUnavailable, PackedRows, RowReader
from fast.rows.reads import PreadLoop, Reads, ReadStats
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.table_files import TableFiles
from fast.rows.uncached import WindowReader
from fast.rows.workers import Workers

_PREAD_SLICES_PER_WORKER = 4  # smaller than a worker's share, so that a slow read does not hold up the batch


class ReadPool:
    """Workers that carry out slices of a batch of reads; its threads start when they are first needed."""

    def __init__(self, settings: RowSettings) -> None:
        self.workers = settings.workers
        self._inline = settings.inline_rows
        self._slice_reads = settings.slice_reads
        self._threads = Workers(settings.workers)
        self._contexts = SHARED if settings.syscall is syscalls.call else ContextPool(settings.syscall)
        self.refused: str | None = None
        self.threads_refused: str | None = None
        context = self._context()  # the probe
        if context is not None:
            self._contexts.give_back(context)

    def read(self, reads: Reads, nowait_first: bool = True) -> ReadStats:
        """Carry out all reads: a small batch on this thread, a large one on the workers."""
        if reads.count <= self._inline:
            return self._slice(reads, nowait_first)
        size = self._slice_reads
        if self.refused is not None:
            size = min(size, -(-reads.count // (self.workers * _PREAD_SLICES_PER_WORKER)))
        parts = self._all(
            -(-reads.count // size),
            lambda part: self._slice(reads.subset(slice(part * size, (part + 1) * size)), nowait_first),
        )
        return ReadStats(
            calls=sum(part.calls for part in parts),
            bytes_asked=sum(part.bytes_asked for part in parts),
            service_s=sum(part.service_s for part in parts),
        )

    def _all(self, count: int, work: Callable[[int], ReadStats]) -> list[ReadStats]:
        """Every part, by the workers; by this thread where none can be started."""
        if self.threads_refused is None:
            try:
                return self._threads.run(count, work)
            except RuntimeError as error:  # Python's word for a refused clone(2)
                self.threads_refused = f"no thread can be started ({error}); one thread reads slice after slice"
        return [work(part) for part in range(count)]

    def _slice(self, reads: Reads, nowait_first: bool) -> ReadStats:
        context = self._context()
        if context is not None:
            try:
                return context.read(reads, nowait_first)
            except ModeUnavailable as reason:
                self.refused = str(reason)
            finally:
                self._contexts.give_back(context)
        return PreadLoop().read(reads)

    def _context(self) -> KernelAio | None:
        if self.refused is None:
            try:
                return self._contexts.take()
            except ModeUnavailable as reason:
                self.refused = str(reason)
        return None

    def close(self) -> None:
        """Stop the threads."""
        self._threads.close()
        if self._contexts is not SHARED:
            self._contexts.close()


class DirectReader(RowReader):
    """Buffered positional reads by a pool of workers."""

    name = "direct"
    alias: ClassVar[str | None] = "on-direct"
    kernel_view: ClassVar[KernelView | None] = KernelView("none", "cached", "reads")

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._files: TableFiles | None = None
        self._pool: ReadPool | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._files = TableFiles(self.table, random=True)
        self._pool = ReadPool(self.settings)
        self._note_refusal()

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._files is not None and self._pool is not None
        read_buffered(self._files, ids, out, counters, self.settings.inline_rows, self._pool.read)
        self._note_refusal()

    def _note_refusal(self) -> None:
        assert self._files is not None and self._pool is not None
        pread = f"{self._pool.refused}; workers call pread one read after the other" if self._pool.refused else None
        self._reason = "; ".join(filter(None, [self._files.refused, self._pool.threads_refused, pread])) or None

    def _close(self) -> None:
        if self._pool:
            self._pool.close()
        if self._files:
            self._files.close()


class DirectUncachedReader(DirectReader):
    """The same with O_DIRECT: aligned windows, the page cache stays clean, and nothing is warm the second time."""

    name = "direct-uncached"
    alias = None
    kernel_view = KernelView("none", "uncached", "reads")
    fallback = DirectReader
    keeps_rows = False

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._windows: WindowReader | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._files = TableFiles(self.table, direct=True)
        self._windows = WindowReader(self._files, self.settings)
        self._pool = ReadPool(self.settings)
        self._note_refusal()

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._windows is not None and self._pool is not None
        pool = self._pool
        self._windows.read(ids, out, counters, lambda reads: pool.read(reads, nowait_first=False))
        self._note_refusal()

    def _close(self) -> None:
        super()._close()
        if self._windows:
            self._windows.close()

"""Mode `auto`: per batch, the mapping where rows are resident and mapped, one ring submission where not."""

from __future__ import annotations

import _thread
import mmap
import os
import resource
import threading
from queue import SimpleQueue
from time import perf_counter

import numpy as np

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.mapped import MADV_RANDOM, TableMapping
from fast.rows.reader import PackedRows, RowReader
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.uring import UringReader
from reference.errors import InputError

SAMPLED_ROWS = 16  # mincore calls per large batch, 2 us each: a batch with 10% of its rows missing escapes 1 time in 5
FIRST_CHUNK_ROWS = 512  # what a sample that misled may cost: 512 serial faults
CHUNK_ROWS = 8192
# A row by the ring costs 0.9 us when it is cached, a minor fault 2 us, a major one 80 us: beyond these shares of a
# chunk the ring is the cheaper way for the rest of the batch.
MAX_MAJOR_SHARE = 0.0075
MAX_MINOR_SHARE = 0.4
TRUST_BATCHES = 3  # small batches in a row without a device read before the mapping is tried without asking
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class AutoReader(RowReader):
    """Chooses per batch, from what the kernel says and from what reads turned out to cost.

    How it decides:
    - Up to `inline_rows` rows (decode): one ring submission. It copies rows that are in the page cache while it is
      submitted and has all others in flight together, so no question is needed. After three such batches without a
      device read the next one is taken from the mapping (a quarter of the time); the first device read of such a batch,
      seen in the counters, sends the following ones back to the ring.
    - Larger batches: `mincore` is asked about a sample of 16 rows. One of them absent: the whole batch goes through the
      ring. All present: rows are taken from the mapping chunk by chunk, and the thread's page faults are looked at
      after each. Too many major faults (the sample misled) or minor ones (cached, but not in our page table, which
      costs more than a read): the ring gets the rest.
    - Rows that the ring served from or into the page cache are then touched by a helper thread, so that the mapping has
      them next time. `trim` undoes that, and a table trimmed or evicted is noticed by the rules above: nothing
      remembers residency, it is asked for or measured each time.
    Without io_uring, `direct` takes the ring's place.
    """

    name = "auto"

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._mapping: TableMapping | None = None
        self._reads: RowReader | None = None
        self._toucher: Toucher | None = None
        self._calm = 0
        super().__init__(table, settings)

    @property
    def fallback_reason(self) -> str | None:
        """Why something else takes the ring's place."""
        return self._reads.fallback_reason if self._reads else None

    def _open(self) -> None:
        self._mapping = TableMapping(self.table, MADV_RANDOM)
        self._reads = UringReader(self.table, self.settings)
        self._toucher = Toucher(self._mapping)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None
        self._mapping.check_size()
        if ids.size <= self.settings.inline_rows:
            self._read_small(ids, out, counters)
        else:
            self._read_large(ids, out, counters)

    def _read_small(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        self._calm = self._calm + 1 if self.last.bytes_device == 0 and not self.last.major_faults else 0
        if self._calm > TRUST_BATCHES:
            self._take(ids, out, counters)
        else:
            self._by_reads(ids, out, counters)

    def _read_large(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        started = perf_counter()
        resident = self._sample_is_resident(ids)
        counters.plan_s += perf_counter() - started
        at = 0
        size = FIRST_CHUNK_ROWS
        while resident and at < ids.size:
            part = slice(at, at + size)
            before = resource.getrusage(_THREAD)
            self._take(ids[part], out[part], counters)
            after = resource.getrusage(_THREAD)
            at = min(at + size, ids.size)
            rows = part.stop - part.start
            resident = (
                after.ru_majflt - before.ru_majflt <= MAX_MAJOR_SHARE * rows
                and after.ru_minflt - before.ru_minflt <= MAX_MINOR_SHARE * rows
            )
            size = CHUNK_ROWS
        if at < ids.size:
            self._by_reads(ids[at:], out[at:], counters)
            assert self._toucher is not None
            self._toucher.touch(ids[at:])

    def _sample_is_resident(self, ids: Ids) -> bool:
        """Ask the kernel about rows spread over the batch; false as soon as one is not in the page cache."""
        assert self._mapping is not None
        sample = ids[:: max(1, ids.size // SAMPLED_ROWS)][:SAMPLED_ROWS]
        offsets = self.table.offsets(sample)
        answer = np.zeros(1, np.uint8)
        for owner, offset in zip(self.table.segment_of(sample).tolist(), offsets.tolist(), strict=True):
            part = self._mapping.parts[owner]
            page = part.address + (offset - part.start_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if syscalls.mincore(page, 1, answer) < 0 or not answer[0] & 1:
                return False
        return True

    def _take(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None
        started = perf_counter()
        self._mapping.take(ids, out)
        counters.copy_s += perf_counter() - started
        counters.served_by = "mapping"

    def _by_reads(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._reads is not None
        self._reads._run(ids, out, counters)
        way = self._reads.effective_mode
        counters.served_by = f"{counters.served_by}+{way}" if counters.served_by else way

    def trim(self, budget_bytes: int = 0) -> int:
        """Drop our mapping's resident pages above the budget."""
        with self._lock:
            if self._toucher:
                self._toucher.forget()
            return self._mapping.drop(budget_bytes) if self._mapping else 0

    def _close(self) -> None:
        if self._toucher:
            self._toucher.close()
        if self._reads:
            self._reads.close()
        if self._mapping:
            self._mapping.close()


class Toucher:
    """A helper thread that touches rows in a mapping after they were read another way; it never holds anybody up.

    Mapping a cached page costs 2 us here, more than reading the row again: worth it from the second use on.
    """

    _SLICE_ROWS = 1024  # between slices it looks whether it should stop
    _WAITING = 4  # batches kept waiting; more than that are not touched

    def __init__(self, mapping: TableMapping) -> None:
        self._mapping = mapping
        self._queue: SimpleQueue[tuple[int, Ids] | None] = SimpleQueue()
        self._pid = 0  # the process that has the thread
        self._generation = 0
        self._busy = threading.Lock()

    def touch(self, ids: Ids) -> None:
        """Touch these rows soon."""
        if self._pid != os.getpid():
            self._queue, self._busy, self._pid = SimpleQueue(), threading.Lock(), os.getpid()
            _thread.start_new_thread(self._work, (self._queue,))  # as in `Workers`: safe against an interrupt
        if self._queue.qsize() < self._WAITING:
            self._queue.put((self._generation, ids.copy()))

    def _work(self, queue: SimpleQueue[tuple[int, Ids] | None]) -> None:
        scratch = np.empty((self._SLICE_ROWS, self._mapping.table.row_bytes), np.uint8)
        while (asked := queue.get()) is not None:
            generation, ids = asked
            for start in range(0, ids.size, self._SLICE_ROWS):
                if not self._touch_slice(generation, ids[start : start + self._SLICE_ROWS], scratch):
                    break

    def _touch_slice(self, generation: int, ids: Ids, scratch: PackedRows) -> bool:
        """Touch some rows; false when the rest of the batch should be left alone."""
        with self._busy:
            if self._generation != generation:
                return False
            try:
                self._mapping.check_size()
            except InputError:
                return False  # the next gather says so
            before = resource.getrusage(_THREAD).ru_majflt
            self._mapping.take(ids, scratch[: ids.size])
            # Many major faults: the rows have been evicted meanwhile, and reading them again is not worth it.
            return resource.getrusage(_THREAD).ru_majflt - before <= ids.size // 64

    def forget(self) -> None:
        """Stop touching what was asked for so far; when this returns no touch is running."""
        self._generation += 1
        with self._busy:
            self._generation += 1

    def close(self) -> None:
        """End the thread; the mapping may be closed afterwards."""
        self.forget()
        if self._pid == os.getpid():
            self._queue.put(None)
        self._pid = 0

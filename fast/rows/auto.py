"""Mode `auto`: per batch, the mapping where rows are resident and mapped, one ring submission where not."""

from __future__ import annotations

import mmap
import resource
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.mapped import MADV_RANDOM, TableMapping
from fast.rows.reader import ModeUnavailable, PackedRows, RowReader
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.uring import UringReader

SAMPLED_ROWS = 16  # mincore calls per large batch, 2 us each: a batch with 10% of its rows missing escapes 1 time in 5
FIRST_CHUNK_ROWS = 512  # what a sample that misled may cost: 512 serial faults
CHUNK_ROWS = 8192
# A row by the ring costs 0.9 us when it is cached, a minor fault 2 us, a major one 80 us: beyond these shares of a
# chunk the ring is the cheaper way for the rest of the batch.
MAX_MAJOR_SHARE = 0.0075
MAX_MINOR_SHARE = 0.4
MIN_SERVED_SHARE = 0.5
TRUST_BATCHES = 3  # small batches in a row without a device read before the mapping is tried without asking
_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class AutoReader(RowReader):
    """Chooses per batch, from what the kernel says and from what reads turned out to cost.

    How it decides:
    - Up to `inline_rows` rows (decode): one ring submission. It copies rows that are in the page cache while it is
      submitted and has all others in flight together, so no question is needed. After three such batches without a
      device read the next one is taken from the mapping (half of the time); the first device read of such a batch,
      seen in the counters, sends the following ones back to the ring.
    - Larger batches: `mincore` is asked about a sample of 16 rows. One of them absent: the whole batch goes through the
      ring. All present: rows are taken from the mapping chunk by chunk, and the thread's page faults are looked at
      after each. Too many major faults: the sample misled, and the ring gets the rest.
    - Many minor faults: the rows are cached, but not in our page table, and putting them there costs twice what the
      ring takes. That pays from the second use on: the ring gets the rest of the batch, unless it has served most of
      these pages before. (That memory decides about an investment, never about residency: what is resident is asked
      for or measured each time, so that a table trimmed or evicted behind our back is noticed.)
    Without io_uring, `direct` takes the ring's place.
    """

    name = "auto"

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._mapping: TableMapping | None = None
        self._reads: RowReader | None = None
        self._served: npt.NDArray[np.bool_] | None = None  # pages the ring has read or copied before
        self._calm = 0
        self._before = GatherCounters()  # the batch before: whoever meters it (a row cache, in front) fills them in
        super().__init__(table, settings)

    @property
    def fallback_reason(self) -> str | None:
        """Why something else takes the ring's place, or why there is no mapping."""
        return "; ".join(filter(None, [self._reason, self._reads.fallback_reason if self._reads else None])) or None

    def _open(self) -> None:
        try:
            self._mapping = TableMapping(self.table, MADV_RANDOM)
        except ModeUnavailable as reason:
            self._reason = f"{reason}; every row is read, none is taken from a mapping"
        self._reads = UringReader(self.table, self.settings)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        if self._mapping is None:
            self._by_reads(ids, out, counters)
            return
        self._mapping.check_size()
        if ids.size <= self.settings.inline_rows:
            self._read_small(ids, out, counters)
        else:
            self._read_large(ids, out, counters)
        self._before = counters

    def _read_small(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        self._calm = self._calm + 1 if self._before.bytes_device == 0 and not self._before.major_faults else 0
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
            size = CHUNK_ROWS
            resident = after.ru_majflt - before.ru_majflt <= MAX_MAJOR_SHARE * (part.stop - part.start)
            if after.ru_minflt - before.ru_minflt > MAX_MINOR_SHARE * (part.stop - part.start) and at < ids.size:
                resident = resident and self._were_served(ids[at:])
        if at < ids.size:
            self._by_reads(ids[at:], out[at:], counters)
            self._note_served(ids[at:])

    def _pages(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Page of each row's first byte, counted over all segments by row number: close enough for a memory of use."""
        return ids * np.int64(self.table.row_bytes) // mmap.PAGESIZE

    def _were_served(self, ids: Ids) -> bool:
        """Whether the ring has served most of these rows' pages before."""
        return self._served is not None and bool(self._served[self._pages(ids)].mean() > MIN_SERVED_SHARE)

    def _note_served(self, ids: Ids) -> None:
        if self._served is None:
            self._served = np.zeros(self.table.size_bytes // mmap.PAGESIZE + 1, np.bool_)
        self._served[self._pages(ids)] = True

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
            return self._mapping.drop(budget_bytes) if self._mapping else 0

    def _close(self) -> None:
        if self._reads:
            self._reads.close()
        if self._mapping:
            self._mapping.close()

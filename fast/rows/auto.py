"""Mode `auto`: per batch, the mapping where rows are resident and mapped, one ring submission where not."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from threading import get_ident
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters, thread_usage
from fast.rows.mapped import MADV_RANDOM, TableMapping
from fast.rows.prefetch import take_advised
from fast.rows.reader import ModeUnavailable, PackedRows, RowReader
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.uring import UringReader
from fast.rows.workers import Workers

SAMPLED_ROWS = 16  # mincore calls per large batch, 2 us each: a batch with 10% of its rows missing escapes 1 time in 5
# A row by the ring costs 0.9 us when it is cached, a minor fault 2 us, a major one 80 us: beyond these shares of a
# chunk the ring is the cheaper way for the rest of the batch.
MAX_MAJOR_SHARE = 0.0075
MAX_MINOR_SHARE = 0.4
MIN_SERVED_SHARE = 0.5
TRUST_BATCHES = 3  # small batches in a row without a device read before the mapping is tried without advice
NO_WAIT_S = 15e-6  # a copy that took less cannot have waited for a device, so that getrusage (0.7 us) is not asked
PART_ROWS = 2048  # a copy of 0.2 ms: what is worth waking a thread for
MAX_THREADS = 4
_REMEMBERED_PAGES = (1 << 26) - 1  # a bit mask: of a larger table several pages share one place


class AutoReader(RowReader):
    """Chooses per batch, from what the kernel says and from what reads turned out to cost.

    How it decides:
    - Up to `inline_rows` rows (decode): the pages are advised, which starts the reads of all that are missing, and the
      rows are copied from the mapping. That is right whether they are cached or not. After three such batches of one
      thread without a device read or a major fault (getrusage says both) the advice is left out, until the first batch
      that waits. Where no advice is taken, the ring reads.
    - Larger batches: `mincore` is asked about a sample of 16 rows. One of them absent: the whole batch goes through the
      ring. All present: rows are taken from the mapping chunk by chunk, by two threads or more, and their page faults
      are looked at after each. Too many major faults: the sample misled, and the ring gets the rest.
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
        self._threads: Workers | None = Workers(min(MAX_THREADS, _processors()))
        self._served: npt.NDArray[np.bool_] | None = None  # pages the ring has read or copied before
        self._calm = 0
        self._blind: str | None = None
        self._waits: tuple[int, ...] = (0, 0, 0)  # a thread, and what it had waited for when it was looked at last
        super().__init__(table, settings)

    @property
    def fallback_reason(self) -> str | None:
        """Why something else takes the ring's place, why there is no mapping, or what cannot be known of it."""
        parts = [super().fallback_reason, self._blind, self._reads.fallback_reason if self._reads else None]
        return "; ".join(filter(None, parts)) or None

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

    def _read_small(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None
        if self._calm >= TRUST_BATCHES:
            self._take(ids, out, counters)
            if counters.copy_s < NO_WAIT_S:
                return
        elif take_advised(self._mapping, ids, out, counters):
            counters.served_by = "prefetch"
        else:
            self._by_reads(ids, out, counters)
        before, self._waits = self._waits, (get_ident(), *_waits())
        self._calm = self._calm + 1 if self._waits == before and len(before) == 3 else 0

    def _read_large(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        started = perf_counter()
        resident = self._sample_is_resident(ids)
        counters.plan_s += perf_counter() - started
        at = 0
        size = self.settings.first_chunk_rows
        while resident and at < ids.size:
            part = slice(at, at + size)
            minor, major = self._take(ids[part], out[part], counters)
            at = min(at + size, ids.size)
            resident = major <= MAX_MAJOR_SHARE * size
            if minor > MAX_MINOR_SHARE * size and at < ids.size:
                resident = resident and self._were_served(ids[at:])
            size = self.settings.chunk_rows
        if at < ids.size:
            self._by_reads(ids[at:], out[at:], counters)
            self._note_served(ids[at:])

    def _pages(self, ids: Ids) -> npt.NDArray[np.int64]:
        """Page of each row's first byte, counted over all segments by row number: close enough for a memory of use."""
        return ids * np.int64(self.table.row_bytes) // mmap.PAGESIZE & _REMEMBERED_PAGES

    def _were_served(self, ids: Ids) -> bool:
        """Whether the ring has served most of these rows' pages before."""
        return self._served is not None and bool(self._served[self._pages(ids)].mean() > MIN_SERVED_SHARE)

    def _note_served(self, ids: Ids) -> None:
        if self._served is None:
            self._served = np.zeros(min(self.table.size_bytes // mmap.PAGESIZE, _REMEMBERED_PAGES) + 1, np.bool_)
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
            code = syscalls.mincore(page, 1, answer)
            if code < 0:
                name = part.segment.path.name
                self._blind = f"mincore of {name}: {syscalls.explain(code)}; every large batch is read, cached or not"
            if code < 0 or not answer[0] & 1:
                return False
        return True

    def _take(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> tuple[int, int]:
        """Copy from the mapping; a large chunk in parts by several threads. Returns their minor and major faults."""
        assert self._mapping is not None
        started = perf_counter()
        counters.served_by = "mapping"
        if ids.size <= self.settings.inline_rows:  # its caller looks at the faults itself
            self._mapping.take(ids, out)
            minor = major = 0
        else:
            parts = max(1, min(self._threads.threads if self._threads else 1, ids.size // PART_ROWS))
            step = -(-ids.size // parts)
            take = self._mapping.take

            def work(part: int) -> tuple[int, int]:
                place = slice(part * step, (part + 1) * step)
                return _faults_of(take, ids[place], out[place])

            found = self._in_parts(parts, work)
            minor, major = (sum(numbers) for numbers in zip(*found, strict=True))
        counters.copy_s += perf_counter() - started
        return minor, major

    def _in_parts(self, parts: int, work: Callable[[int], tuple[int, int]]) -> list[tuple[int, int]]:
        if parts > 1 and self._threads is not None:
            try:
                return self._threads.run(parts, work)
            except RuntimeError:  # Python's word for a refused clone(2): one thread does the same
                self._threads = None
        return [work(part) for part in range(parts)]

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
        if self._threads:
            self._threads.close()
        if self._reads:
            self._reads.close()
        if self._mapping:
            self._mapping.close()


def _processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # forbidden, or not Linux
        return 1


def _waits() -> tuple[int, ...]:
    """What this thread has waited for so far: blocks of the device, pages of a mapping; empty where nobody says."""
    usage = thread_usage()
    return (usage.ru_inblock, usage.ru_majflt) if usage else ()


def _faults_of(take: Callable[[Ids, PackedRows], None], ids: Ids, out: PackedRows) -> tuple[int, int]:
    """Take rows; this thread's minor and major faults meanwhile, 0 where nobody counts them."""
    before = thread_usage()
    take(ids, out)
    after = thread_usage()
    if before is None or after is None:
        return 0, 0
    return after.ru_minflt - before.ru_minflt, after.ru_majflt - before.ru_majflt

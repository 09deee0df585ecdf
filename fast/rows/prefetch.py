"""Mode `prefetch`: tell the kernel which pages the batch needs, all at once, then copy the rows from the mapping."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.mapped import MADV_RANDOM, MADV_WILLNEED, MappedReader, RandomReader, TableMapping
from fast.rows.plan import GatherPlan, Spans, cut
from fast.rows.reader import KernelView, ModeUnavailable, PackedRows
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table

IOVEC = np.dtype([("base", "i8"), ("length", "i8")])
# Errors of one range: its page is read when it is touched. Any other says that no advice is taken here.
_OF_ONE_RANGE = (errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.EBADF)


class Adviser:
    """Starts reads of many page ranges of our mappings: process_madvise on ourselves, madvise where there is none.

    Where neither does (not Linux) nothing happens and pages are read when they are touched.
    """

    def __init__(self, settings: RowSettings) -> None:
        self._call = settings.syscall
        self._batch = settings.advise_ranges
        self._pidfd = -1
        self._finalizer: weakref.finalize[..., Adviser] | None = None
        self._pid = 0
        self.method = "process_madvise" if syscalls.LINUX else "none"
        self.refused: str | None = None

    def willneed(self, addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> int:
        """Advise every range; returns the number of system calls. Addresses are page-aligned and mapped.

        `refused` says why there is a call for each range. Raises: ModeUnavailable when neither call takes advice.
        """
        if self.method == "process_madvise":
            calls = self._batched(addresses, lengths)
            if calls >= 0:
                return calls
            self.method = "madvise"
        if self.method == "madvise":
            for address, length in zip(addresses.tolist(), lengths.tolist(), strict=True):
                result = syscalls.madvise(address, length, MADV_WILLNEED)
                if result < 0 and -result not in _OF_ONE_RANGE:
                    raise ModeUnavailable(f"the kernel takes no advice: madvise: {syscalls.explain(result)}")
            return int(addresses.size)
        return 0

    def _batched(self, addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> int:
        """Up to 1024 ranges a call; -1 when the kernel or a container refuses the call."""
        if self._pidfd < 0 or self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
            self._pidfd = self._call("pidfd_open", self._pid, 0)
            if self._pidfd < 0:
                return self._refuse("pidfd_open", self._pidfd)
            self._finalizer = weakref.finalize(self, os.close, self._pidfd)
        vectors = np.empty(addresses.size, IOVEC)
        vectors["base"], vectors["length"] = addresses, lengths
        base = syscalls.address_of(vectors)
        at = calls = 0
        while at < vectors.size:
            count = min(self._batch, vectors.size - at)
            result = self._call("process_madvise", self._pidfd, base + at * IOVEC.itemsize, count, MADV_WILLNEED, 0)
            calls += 1
            if result < 0:
                if -result not in _OF_ONE_RANGE:
                    return self._refuse("process_madvise", result)
                at += 1
                continue
            # A partial success counts bytes: whole ranges done are those whose running sum fits into it.
            done = int(np.searchsorted(np.cumsum(lengths[at : at + count]), result, side="right"))
            at += max(done, 1)
        return calls

    def _refuse(self, call: str, code: int) -> int:
        self.refused = f"{call}: {syscalls.explain(code)}; madvise takes one range a call"
        return -1

    def close(self) -> None:
        """Release the descriptor that stands for this process."""
        if self._finalizer is not None:
            self._finalizer()
        self._pidfd = -1


def take_advised(mapping: TableMapping, ids: Ids, out: PackedRows, counters: GatherCounters) -> bool:
    """Advise each of a few rows, then copy them; false where no advice is taken, or the table has several segments.

    A call for each row, and no plan: the first read is under way while the others are asked for. One process_madvise
    starts them only when it has looked at all: 50 us later for 16 rows.
    """
    if len(mapping.parts) != 1:
        return False
    started = perf_counter()
    end, page = mapping.table.row_bytes + mmap.PAGESIZE - 1, -mmap.PAGESIZE
    asked = 0
    for place in (ids * mapping.table.row_bytes + mapping.parts[0].row_address).tolist():
        first = place & page
        length = (place + end & page) - first
        result = syscalls.madvise(first, length, MADV_WILLNEED)
        if result < 0 and -result not in _OF_ONE_RANGE:
            return False
        asked += length
    advised = perf_counter()
    mapping.take(ids, out)
    counters.copy_s = perf_counter() - advised
    counters.read_s = advised - started
    counters.read_calls = ids.size
    counters.bytes_asked = asked
    return True


class PagePlan:
    """The page ranges of a batch's rows, handed to the adviser a run of rows at a time.

    Ranges stay inside the mapping by construction, and are checked to: a row's pages are pages of its segment, which is
    mapped whole.
    """

    def __init__(self, plan: GatherPlan, mapping: TableMapping, range_pages: int) -> None:
        # The system's page, not the counters' unit: arm64 has pages of 16 and 64 KiB, and refuses advice inside one.
        page_bytes = mmap.PAGESIZE
        self._spans, self._span_of_row = plan.windows(page_bytes, joined=True)
        self._bases = np.array([part.address - part.start_bytes for part in mapping.parts], np.int64)
        self._max_bytes = range_pages * page_bytes
        ends = np.array([part.start_bytes + part.size_bytes for part in mapping.parts], np.int64)
        whole_pages = -(-ends // page_bytes) * page_bytes
        assert bool((self._spans.end <= whole_pages[self._spans.segment]).all()), "page range past the mapping"
        self._advised = 0

    def advise(self, stop_row: int, adviser: Adviser) -> tuple[int, int]:
        """Start reading the pages of the unique rows up to `stop_row`; returns (system calls, bytes asked for)."""
        stop = int(self._span_of_row[stop_row - 1]) + 1
        part = slice(self._advised, stop)
        spans = cut(Spans(self._spans.segment[part], self._spans.start[part], self._spans.end[part]), self._max_bytes)
        self._advised = stop
        if not spans.start.size:
            return 0, 0
        return adviser.willneed(self._bases[spans.segment] + spans.start, spans.lengths), int(spans.lengths.sum())


class PrefetchReader(MappedReader):
    """MADV_RANDOM mapping; WILLNEED for the merged page ranges of a batch's rows, then a copy.

    A large batch goes in runs of rows: while the device reads the pages of one run, the run before is copied. Where the
    kernel refuses advice, what is left of this mode is `mmap-random`.
    """

    name = "prefetch"
    alias = "on"
    fallback = RandomReader
    advice = MADV_RANDOM
    kernel_view = KernelView("random", "cached", "faults", advised=True)

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._adviser: Adviser | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        super()._open()
        self._adviser = Adviser(self.settings)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None and self._adviser is not None
        self._mapping.check_size()
        if ids.size <= self.settings.inline_rows and take_advised(self._mapping, ids, out, counters):
            return
        started = perf_counter()
        plan = GatherPlan(self.table, ids)
        pages = PagePlan(plan, self._mapping, self.settings.range_pages)
        counters.plan_s += perf_counter() - started
        count = plan.unique.size
        run = self.settings.advise_rows
        for start in range(0, count + run, run):
            if start < count:
                started = perf_counter()
                calls, asked = pages.advise(min(start + run, count), self._adviser)
                counters.read_s += perf_counter() - started
                counters.read_calls += calls
                counters.bytes_asked += asked
            if start:
                started = perf_counter()
                self._copy(plan, start - run, min(start, count), out)
                counters.copy_s += perf_counter() - started
        started = perf_counter()
        plan.fill_repeats(out)
        counters.copy_s += perf_counter() - started
        self._reason = self._adviser.refused

    def _copy(self, plan: GatherPlan, start: int, stop: int, out: PackedRows) -> None:
        """Copy unique rows [start, stop) to their places in the batch."""
        assert self._mapping is not None
        rows = np.empty((stop - start, self.table.row_bytes), np.uint8)
        self._mapping.take(plan.unique[start:stop], rows)
        item = np.dtype((np.void, self.table.row_bytes))
        out.view(item)[plan.places[start:stop], 0] = rows.view(item)[:, 0]

    def _close(self) -> None:
        super()._close()
        if self._adviser:
            self._adviser.close()

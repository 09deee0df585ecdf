"""Mode `prefetch`: tell the kernel which pages the batch needs, all at once, then copy the rows from the mapping."""

from __future__ import annotations

import errno
import os
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.mapped import MADV_WILLNEED, MappedReader, TableMapping
from fast.rows.plan import GatherPlan
from fast.rows.reader import PackedRows
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table

IOVEC = np.dtype([("base", "i8"), ("length", "i8")])
_MADV_RANDOM = 1


class Adviser:
    """Starts reads of many page ranges of our mappings: process_madvise on ourselves, madvise where there is none.

    Where neither does (not Linux) nothing happens and pages are read when they are touched.
    """

    def __init__(self, settings: RowSettings) -> None:
        self._call = settings.syscall
        self._batch = settings.advise_ranges
        self._pidfd = -1
        self._pid = 0
        self.method = "process_madvise" if syscalls.LINUX else "none"

    def willneed(self, addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> int:
        """Advise every range; returns the number of system calls. Addresses are page-aligned and mapped."""
        if self.method == "process_madvise":
            calls = self._batched(addresses, lengths)
            if calls is not None:
                return calls
            self.method = "madvise"
        if self.method == "madvise":
            for address, length in zip(addresses.tolist(), lengths.tolist(), strict=True):
                syscalls.madvise(address, length, MADV_WILLNEED)
            return int(addresses.size)
        return 0

    def _batched(self, addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> int | None:
        """Up to 1024 ranges a call; None when the kernel or a container refuses the call."""
        if self._pidfd < 0 or self._pid != os.getpid():
            self.close()
            self._pid = os.getpid()
            self._pidfd = self._call("pidfd_open", self._pid, 0)
            if self._pidfd < 0:
                return None
        vectors = np.empty(addresses.size, IOVEC)
        vectors["base"], vectors["length"] = addresses, lengths
        base = syscalls.address_of(vectors)
        at = calls = 0
        while at < vectors.size:
            count = min(self._batch, vectors.size - at)
            result = self._call("process_madvise", self._pidfd, base + at * IOVEC.itemsize, count, MADV_WILLNEED, 0)
            calls += 1
            if result < 0:
                if -result not in (errno.EAGAIN, errno.EINTR, errno.ENOMEM, errno.EBADF):
                    return None
                at += 1  # advice that could not be taken for one range: its page is read when it is touched
                continue
            # A partial success counts bytes: whole ranges done are those whose running sum fits into it.
            done = int(np.searchsorted(np.cumsum(lengths[at : at + count]), result, side="right"))
            at += max(done, 1)
        return calls

    def close(self) -> None:
        """Release the descriptor that stands for this process."""
        if self._pidfd >= 0 and self._pid == os.getpid():
            os.close(self._pidfd)
        self._pidfd = -1


def advise_plan(plan: GatherPlan, mapping: TableMapping, adviser: Adviser, range_pages: int) -> tuple[int, int]:
    """Start reading the pages of a plan's rows; returns (system calls, bytes asked for).

    Ranges stay inside the mapping by construction: a row's pages are pages of its segment, which is mapped whole.
    """
    spans = plan.page_ranges(range_pages)
    bases = np.array([part.address - part.start_bytes for part in mapping.parts], np.int64)
    ends = np.array([part.start_bytes + part.size_bytes for part in mapping.parts], np.int64)[spans.segment]
    assert bool((spans.end <= -(-ends // syscalls.PAGE_BYTES) * syscalls.PAGE_BYTES).all()), "range past the mapping"
    calls = adviser.willneed(bases[spans.segment] + spans.start, spans.lengths)
    return calls, int(spans.lengths.sum())


class PrefetchReader(MappedReader):
    """MADV_RANDOM mapping; per batch WILLNEED for the merged page ranges of its rows, then a copy in request order."""

    name = "prefetch"
    advice = _MADV_RANDOM

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._adviser: Adviser | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        super()._open()
        self._adviser = Adviser(self.settings)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None and self._adviser is not None
        self._mapping.check_size()
        started = perf_counter()
        plan = GatherPlan(self.table, ids)
        planned = perf_counter()
        calls, asked = advise_plan(plan, self._mapping, self._adviser, self.settings.range_pages)
        advised = perf_counter()
        counters.plan_s += planned - started
        counters.read_s += advised - planned
        counters.read_calls += calls
        counters.bytes_asked += asked
        super()._read(ids, out, counters)

    def _close(self) -> None:
        super()._close()
        if self._adviser:
            self._adviser.close()

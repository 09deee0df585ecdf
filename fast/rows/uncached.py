"""Reading rows past the page cache: aligned windows into staging memory, rows copied out of the windows."""

from __future__ import annotations

import contextlib
import errno
import mmap
from collections.abc import Callable
from time import perf_counter

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.plan import GatherPlan
from fast.rows.reader import ModeUnavailable, PackedRows
from fast.rows.reads import Reads, ReadStats
from fast.rows.settings import RowSettings
from fast.rows.table import Ids
from fast.rows.table_files import TableFiles

_MADV_WIPEONFORK = 18


def private_memory(size_bytes: int) -> npt.NDArray[np.uint8]:
    """Memory for O_DIRECT reads: page-aligned, which satisfies every device, and this process's alone.

    Without MAP_PRIVATE a child after a fork would write into the same pages. Wiped at a fork, no page is ever copied on
    write: before Linux 6.3 a read in flight during a fork could end in the page that only the child has then.
    """
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, size_bytes, flags)
    if syscalls.LINUX:
        with contextlib.suppress(OSError):  # before Linux 4.14
            memory.madvise(_MADV_WIPEONFORK)
    return np.frombuffer(memory, np.uint8)


class WindowReader:
    """Turns a batch into aligned windows, has them read in portions that fit the staging memory, copies the rows."""

    def __init__(self, files: TableFiles, settings: RowSettings) -> None:
        self._files = files
        self._row_bytes = files.table.row_bytes
        window = -(-self._row_bytes // files.align_bytes) * files.align_bytes + files.align_bytes
        self._capacity = max(settings.staging_bytes, window)
        self._staging = private_memory(self._capacity)

    def read(
        self, ids: Ids, out: PackedRows, counters: GatherCounters, carry_out: Callable[[Reads], ReadStats]
    ) -> None:
        """Fill `out`. Raises: ModeUnavailable when the device refuses the first aligned read (EINVAL)."""
        started = perf_counter()
        plan = GatherPlan(self._files.table, ids)
        spans, window_of_row = plan.windows(self._files.align_bytes, limit_bytes=self._capacity)
        ends = np.concatenate([[0], np.cumsum(spans.lengths)])
        last_row = np.append(np.flatnonzero(np.diff(window_of_row)), window_of_row.size - 1)
        needed = plan.offsets[last_row] + self._row_bytes - spans.start
        files = self._files.of_segments(spans.segment)
        counters.plan_s += perf_counter() - started
        service_s = 0.0
        first = 0
        while first < spans.start.size:
            stop = int(np.searchsorted(ends, ends[first] + self._capacity, side="right")) - 1
            assert stop > first, "a window is longer than the staging memory"
            part = slice(first, stop)
            slots = ends[part] - ends[first]
            reads = Reads(
                files if isinstance(files, int) else files[part],
                spans.start[part],
                slots + syscalls.address_of(self._staging),
                spans.lengths[part],
                self._staging,
                needed[part],
            )
            begun = perf_counter()
            try:
                stats = carry_out(reads)
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise ModeUnavailable(
                        f"O_DIRECT reads of {self._files.align_bytes} bytes are refused: {error}"
                    ) from error
                raise
            done = perf_counter()
            low, high = np.searchsorted(window_of_row, [first, stop])
            rows = slice(int(low), int(high))
            self._copy(plan, rows, slots[window_of_row[rows] - first] - spans.start[window_of_row[rows]], out)
            counters.read_s += done - begun
            counters.copy_s += perf_counter() - done
            counters.read_calls += stats.calls
            counters.bytes_asked += stats.bytes_asked
            service_s += stats.service_s
            first = stop
        begun = perf_counter()
        plan.fill_repeats(out)
        counters.copy_s += perf_counter() - begun
        counters.service_s = service_s

    def _copy(self, plan: GatherPlan, rows: slice, shift: np.ndarray, out: PackedRows) -> None:
        """Copy unique rows [rows] from staging to their places; `shift` turns a file offset into a staging offset."""
        item = np.dtype((np.void, self._row_bytes))
        # A row starts at any byte of the staging memory: an array of overlapping items, one per byte.
        anywhere = np.ndarray((self._capacity - self._row_bytes + 1,), item, self._staging, strides=(1,))
        out.view(item)[plan.places[rows], 0] = anywhere[plan.offsets[rows] + shift]

    def close(self) -> None:
        """Let go of the staging memory; it goes when nobody reads into it any more."""
        self._staging = np.empty(0, np.uint8)

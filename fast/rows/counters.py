"""What a gather did, in numbers, and the meter that takes them from the kernel."""

from __future__ import annotations

import os
import resource
from typing import Any

import numpy as np

from fast.rows.syscalls import LINUX, PAGE_BYTES
from fast.rows.table import Ids, Table

_RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


class GatherCounters:
    """One gather's numbers, or the sum over a reader's gathers.

    Units: bytes, counts and seconds as named. `wall_s` is what the caller waited. `bytes_device` is what the kernel
    says this process made the storage read (`/proc/self/io` read_bytes), None where there is no such file. `service_s`
    sums the time each read was in flight, None where the mode cannot see it (page faults and read-ahead by the kernel).
    What the kernel counts is None where the metering did not ask for it, and in a sum that has such a batch.
    `rows_unique` and `pages_unique` are counted when first read, from the batch's ids: counting costs as much as a warm
    copy. In a sum they cover `batches_counted` of `batches`.

    Attributes of the class are defaults: a gather sets only what differs, which costs it less than a constructor.
    """

    mode: str = ""
    effective_mode: str = ""
    fallback_reason: str | None = None
    served_by: str = ""  # for modes that choose per batch: what carried this one
    batches: int = 1
    batches_counted: int = 0
    rows_requested: int = 0
    bytes_useful: int = 0
    bytes_asked: int = 0
    bytes_device: int | None = None
    read_calls: int = 0
    minor_faults: int | None = None
    major_faults: int | None = None
    process_minor_faults: int | None = None
    process_major_faults: int | None = None
    cache_hits: int = 0
    plan_s: float = 0.0
    read_s: float = 0.0
    copy_s: float = 0.0
    wall_s: float = 0.0
    service_s: float | None = None
    _rows_unique: int = 0
    _pages_unique: int = 0
    _ids: bytes | None = None  # of the batch, as they were: the caller may reuse its array
    _table: Table | None = None

    @classmethod
    def none_yet(cls) -> GatherCounters:
        """The sum of no gathers."""
        counters = cls()
        vars(counters).update(dict.fromkeys(_METERED, 0), batches=0)
        return counters

    @property
    def rows_unique(self) -> int:
        """Different rows of the batch."""
        self._count()
        return self._rows_unique

    @property
    def pages_unique(self) -> int:
        """Different 4 KiB pages that hold a byte of the batch's rows."""
        self._count()
        return self._pages_unique

    @property
    def effective_concurrency(self) -> float | None:
        """Reads in flight on average: summed service time over wall time."""
        return self.service_s / self.wall_s if self.service_s is not None and self.wall_s else None

    def _count(self) -> None:
        if self._ids is None or self._table is None:
            return
        unique = np.unique(np.frombuffer(self._ids, np.int64))
        self._rows_unique = unique.size
        self._pages_unique = count_pages(self._table, unique)
        self.batches_counted = 1
        self._ids = None

    def add(self, other: GatherCounters) -> None:
        """Add another gather's numbers to this sum, or another sum's; a gather's unique counts may come later."""
        if other.mode:  # its counters were looked at: a sum
            self.mode, self.effective_mode, self.fallback_reason = (
                other.mode,
                other.effective_mode,
                other.fallback_reason,
            )
            self.add_unique(other)
        self.batches += other.batches
        self.rows_requested += other.rows_requested
        self.bytes_useful += other.bytes_useful
        self.bytes_asked += other.bytes_asked
        self.read_calls += other.read_calls
        self.cache_hits += other.cache_hits
        self.plan_s += other.plan_s
        self.read_s += other.read_s
        self.copy_s += other.copy_s
        self.wall_s += other.wall_s
        if self.minor_faults is None is other.minor_faults and self.service_s is None:
            return  # nothing metered any more: written out and cut short, this is a part of every small gather
        for name in _METERED:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, None if mine is None or theirs is None else mine + theirs)

    def add_unique(self, other: GatherCounters) -> None:
        """Add a batch's unique counts."""
        self._rows_unique += other._rows_unique
        self._pages_unique += other._pages_unique
        self.batches_counted += other.batches_counted

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        names = (*_NAMES, "rows_unique", "pages_unique", "batches_counted", "effective_concurrency")
        return {name: getattr(self, name) for name in names}


_NAMES = tuple(
    name for name in GatherCounters.__annotations__ if not name.startswith("_") and name != "batches_counted"
)
_METERED = (
    "bytes_device", "minor_faults", "major_faults", "process_minor_faults", "process_major_faults", "service_s"
)  # fmt: skip


def count_pages(table: Table, unique: Ids) -> int:
    """Different pages under sorted different rows; rows are in file order inside a segment, so pages ascend."""
    pages = 0
    owners = table.segment_of(unique)
    for index in range(len(table.segments)):
        ids = unique if len(table.segments) == 1 else unique[owners == index]
        if not ids.size:
            continue
        offsets = table.offsets(ids)
        first = offsets // PAGE_BYTES
        last = (offsets + table.row_bytes - 1) // PAGE_BYTES
        # A row adds its pages except the first one when the row before already touched it.
        pages += int((last - first + 1).sum() - np.count_nonzero(first[1:] == last[:-1]))
    return pages


def thread_usage() -> resource.struct_rusage | None:
    """What the kernel has counted of this thread: page faults, blocks read; None where getrusage is forbidden."""
    try:
        return resource.getrusage(_RUSAGE_THREAD)
    except OSError:
        return None


class Meter:
    """Takes the kernel's numbers before and after a gather; about 3 us a reading.

    The descriptor of `/proc/self/io` is opened once: its fields are read again by every pread.
    """

    def __init__(self) -> None:
        self._io = -1
        self._pid = 0
        self._before: tuple[int | None, ...] = ()
        self.refused: str | None = None

    def _device_bytes(self) -> int | None:
        if self._io < 0 or self._pid != os.getpid():
            # /proc/self is resolved at open: after a fork it must be opened again.
            self.close()
            self._pid = os.getpid()
            try:
                self._io = os.open("/proc/self/io", os.O_RDONLY | os.O_CLOEXEC) if LINUX else -1
            except OSError:
                self._io = -1
        if self._io < 0:
            return None
        try:
            return int(os.pread(self._io, 512, 0).split(b"\nread_bytes: ", 1)[1].split(b"\n", 1)[0])
        except OSError:
            return None

    def _look(self) -> tuple[int | None, ...]:
        """In the order of `_METERED`."""
        device = self._device_bytes()
        thread = thread_usage()
        if thread is None:
            self.refused = "getrusage is forbidden here: page faults are not counted"
            return device, None, None, None, None
        process = resource.getrusage(resource.RUSAGE_SELF)
        return device, thread.ru_minflt, thread.ru_majflt, process.ru_minflt, process.ru_majflt

    def start(self) -> None:
        """Remember where the counters stand."""
        self._before = self._look()

    def stop(self, counters: GatherCounters) -> None:
        """Put the differences since `start` into the counters."""
        for name, before, after in zip(_METERED, self._before, self._look(), strict=False):
            setattr(counters, name, None if before is None or after is None else after - before)

    def close(self) -> None:
        """Release the descriptor; in a child after a fork, its copy of the parent's."""
        io, self._io = self._io, -1  # in this order: a child forked in between must not close what is another's by then
        if io >= 0:
            os.close(io)

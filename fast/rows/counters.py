"""What a gather did, in numbers, and the meter that takes them from the kernel."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any

import numpy as np

from fast.rows.syscalls import LINUX, PAGE_BYTES
from fast.rows.table import Ids, Table

_RUSAGE_THREAD = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass
class GatherCounters:
    """One gather's numbers, or the sum over a reader's gathers.

    Units: bytes, counts and seconds as named. `bytes_device` is what the kernel says this process made the storage
    read (`/proc/self/io` read_bytes), None where there is no such file. `service_s` sums the time each read was in
    flight, None where the mode cannot see it (page faults and read-ahead by the kernel). `rows_unique` and
    `pages_unique` are counted when first read, from the batch's ids: counting costs as much as a warm copy. In a sum
    they cover `batches_counted` of `batches`.
    """

    mode: str = ""
    effective_mode: str = ""
    fallback_reason: str | None = None
    served_by: str = ""  # for modes that choose per batch: what carried this one
    batches: int = 0
    batches_counted: int = 0
    rows_requested: int = 0
    bytes_useful: int = 0
    bytes_asked: int = 0
    bytes_device: int | None = 0
    read_calls: int = 0
    minor_faults: int = 0
    major_faults: int = 0
    process_minor_faults: int = 0
    process_major_faults: int = 0
    cache_hits: int = 0
    plan_s: float = 0.0
    read_s: float = 0.0
    copy_s: float = 0.0
    dequantize_s: float = 0.0
    wall_s: float = 0.0
    service_s: float | None = None
    _rows_unique: int | None = field(default=None, repr=False)
    _pages_unique: int | None = field(default=None, repr=False)
    _ids: Ids | None = field(default=None, repr=False)
    _table: Table | None = field(default=None, repr=False)

    @property
    def rows_unique(self) -> int:
        """Different rows of the batch."""
        self._count()
        return self._rows_unique or 0

    @property
    def pages_unique(self) -> int:
        """Different 4 KiB pages that hold a byte of the batch's rows."""
        self._count()
        return self._pages_unique or 0

    @property
    def effective_concurrency(self) -> float | None:
        """Reads in flight on average: summed service time over wall time."""
        return self.service_s / self.wall_s if self.service_s is not None and self.wall_s else None

    def _count(self) -> None:
        if self._ids is None or self._table is None:
            return
        unique = np.unique(self._ids)
        self._rows_unique = unique.size
        self._pages_unique = count_pages(self._table, unique)
        self.batches_counted = 1
        self._ids = None

    def add(self, other: GatherCounters) -> None:
        """Add another gather's numbers to this sum."""
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in ("bytes_device", "service_s"):
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, None if mine is None or theirs is None else mine + theirs)
        if other.batches_counted:
            self.add_unique(other)
        self.mode, self.effective_mode, self.fallback_reason = other.mode, other.effective_mode, other.fallback_reason

    def add_unique(self, other: GatherCounters) -> None:
        """Add a batch's unique counts, known only once somebody asked for them."""
        self._rows_unique = (self._rows_unique or 0) + (other._rows_unique or 0)
        self._pages_unique = (self._pages_unique or 0) + (other._pages_unique or 0)
        self.batches_counted += other.batches_counted

    def as_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if not f.name.startswith("_")}
        values["rows_unique"] = self.rows_unique
        values["pages_unique"] = self.pages_unique
        values["batches_counted"] = self.batches_counted
        values["effective_concurrency"] = self.effective_concurrency
        return values


_SUMMED = tuple(
    f.name
    for f in fields(GatherCounters)
    if f.type in ("int", "float") and f.name != "batches_counted" and not f.name.startswith("_")
)


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


class Meter:
    """Takes the kernel's numbers before and after a gather; about 3 us a reading.

    The descriptor of `/proc/self/io` is opened once: its fields are read again by every pread.
    """

    def __init__(self) -> None:
        self._io = -1
        self._pid = 0
        self._thread = (0, 0)
        self._process = (0, 0)
        self._device: int | None = None
        self._started_s = 0.0

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

    def start(self) -> None:
        """Remember where the counters stand."""
        try:
            process, thread = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(_RUSAGE_THREAD)
        except OSError as error:
            raise OSError(error.errno, f"getrusage, which counts page faults: {error.strerror}") from None
        self._process = (process.ru_minflt, process.ru_majflt)
        self._thread = (thread.ru_minflt, thread.ru_majflt)
        self._device = self._device_bytes()
        self._started_s = perf_counter()

    def stop(self, counters: GatherCounters) -> None:
        """Put the differences since `start` into the counters."""
        counters.wall_s = perf_counter() - self._started_s
        device = self._device_bytes()
        thread, process = resource.getrusage(_RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
        counters.bytes_device = None if device is None or self._device is None else device - self._device
        counters.minor_faults = thread.ru_minflt - self._thread[0]
        counters.major_faults = thread.ru_majflt - self._thread[1]
        counters.process_minor_faults = process.ru_minflt - self._process[0]
        counters.process_major_faults = process.ru_majflt - self._process[1]

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the descriptor."""
        if self._io >= 0 and self._pid == os.getpid():
            os.close(self._io)
        self._io = -1

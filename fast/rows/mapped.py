"""Modes that take rows from a memory mapping: `mmap`, `mmap-sequential`, `mmap-random`.

The kernel reads a page when a row's first byte is touched: one fault at a time, plus whatever read-ahead the advice
allows. These are the slow halves the other modes are compared with; warm, with the pages in the page table, nothing is
faster.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from time import perf_counter
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters
from fast.rows.reader import KernelView, PackedRows, RowReader, unless_refused
from fast.rows.residency import mapping_resident_bytes
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Segment, Table, check_file_holds, open_read_only

MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED = 0, 1, 2, 3, 4
_NAMES = {MADV_RANDOM: "MADV_RANDOM", MADV_SEQUENTIAL: "MADV_SEQUENTIAL"}


class SegmentMapping:
    """One segment's bytes mapped read-only, as an array of rows. The mapping starts on the page of the first row."""

    def __init__(self, table: Table, segment: Segment, advice: int) -> None:
        self.segment = segment
        self.fd = open_read_only(segment.path)
        self._close_file = weakref.finalize(self, os.close, self.fd)  # also when a reader is dropped without `close`
        try:
            self.start_bytes = segment.offset_bytes // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
            self.end_bytes = end = segment.offset_bytes + segment.rows * table.row_bytes
            check_file_holds(table, segment, os.fstat(self.fd).st_size)
            with unless_refused("mmap", segment.path):
                self.map = mmap.mmap(self.fd, end - self.start_bytes, prot=mmap.PROT_READ, offset=self.start_bytes)
            if syscalls.LINUX and advice != MADV_NORMAL:
                with unless_refused(f"madvise({_NAMES[advice]})", segment.path):
                    self.map.madvise(advice)
            bytes_ = np.frombuffer(self.map, np.uint8)
            self.address = syscalls.address_of(bytes_)
            delta = segment.offset_bytes - self.start_bytes
            self.row_address = self.address + delta  # of row 0 of the segment
            self.rows: npt.NDArray[np.uint8] | None = bytes_[delta:].reshape(segment.rows, table.row_bytes)
        except BaseException:
            self._close_file()
            raise

    @property
    def size_bytes(self) -> int:
        """Bytes mapped."""
        return len(self.map)

    def close(self) -> None:
        """Unmap and close."""
        if self.rows is not None:
            self.rows = None
            with contextlib.suppress(BufferError):  # an interrupted copy's traceback may hold it: unmapped with that
                self.map.close()
            self._close_file()


class TableMapping:
    """All segments of a table, mapped with one advice, and the copy of rows out of them."""

    def __init__(self, table: Table, advice: int = MADV_NORMAL) -> None:
        self.table = table
        self.parts: list[SegmentMapping] = []
        try:
            for segment in table.segments:
                self.parts.append(SegmentMapping(table, segment, advice))
        except BaseException:
            self.close()
            raise

    def check_size(self) -> None:
        """Raise InputError when a file has become shorter: touching a page past its end kills the process (SIGBUS).

        A file cut between this check and the copy still does; only read-based modes are safe against that.
        """
        for part in self.parts:
            try:
                if os.lseek(part.fd, 0, os.SEEK_END) >= part.end_bytes:  # a third of what fstat costs
                    continue
            except OSError:  # forbidden here
                pass
            check_file_holds(self.table, part.segment, os.fstat(part.fd).st_size)

    def take(self, ids: Ids, out: PackedRows) -> None:
        """Copy rows in order. Ids are checked: mode="clip" only spares NumPy a second check and a buffer."""
        if len(self.parts) == 1:
            rows = self.parts[0].rows
            assert rows is not None
            rows.take(ids, axis=0, out=out, mode="clip")
            return
        owners = self.table.segment_of(ids)
        for index, part in enumerate(self.parts):
            mine = np.flatnonzero(owners == index)
            if mine.size and part.rows is not None:
                out[mine] = part.rows.take(ids[mine] - part.segment.first_row, axis=0, mode="clip")

    def drop(self, budget_bytes: int) -> int:
        """Take pages out of our page tables until at most `budget_bytes` are resident; returns the bytes dropped.

        The file's pages stay in the page cache: another process, and our next gather, find them there.
        """
        held = [mapping_resident_bytes(part.address) for part in self.parts]  # 50 ms each where JAX is loaded
        left = before = sum(held)
        for part, mine in zip(self.parts, held, strict=True):
            # A sixteenth at a time, so that a budget keeps most of what it allows.
            step = max(mmap.PAGESIZE, -(-part.size_bytes // 16) // mmap.PAGESIZE * mmap.PAGESIZE)
            if budget_bytes <= 0:
                step = part.size_bytes
            for start in range(0, part.size_bytes, step):
                if left <= budget_bytes:
                    return before - left
                syscalls.madvise(part.address + start, min(step, part.size_bytes - start), MADV_DONTNEED)
                now = mapping_resident_bytes(part.address)
                left, mine = left - mine + now, now
        return before - left

    def close(self) -> None:
        """Unmap everything."""
        for part in self.parts:
            part.close()
        self.parts = []


class MappedReader(RowReader):
    """Rows copied out of a mapping; subclasses differ in the advice the kernel gets."""

    name = "mmap"
    advice: ClassVar[int] = MADV_NORMAL
    kernel_view: ClassVar[KernelView | None] = KernelView("plain", "cached", "faults")

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._mapping: TableMapping | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._mapping = TableMapping(self.table, self.advice)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._mapping is not None
        self._mapping.check_size()
        started = perf_counter()
        self._mapping.take(ids, out)
        counters.copy_s = perf_counter() - started

    def trim(self, budget_bytes: int = 0) -> int:
        """Drop our mapping's resident pages above the budget."""
        with self._lock:
            return self._mapping.drop(budget_bytes) if self._mapping else 0

    def _close(self) -> None:
        if self._mapping:
            self._mapping.close()


class SequentialReader(MappedReader):
    """MADV_SEQUENTIAL: the kernel reads far ahead of each touched row, almost all of it in vain."""

    name = "mmap-sequential"
    advice = MADV_SEQUENTIAL
    kernel_view = KernelView("sequential", "cached", "faults")


class RandomReader(MappedReader):
    """MADV_RANDOM and nothing else: no over-read, but every row waits for its own page alone."""

    name = "mmap-random"
    advice = MADV_RANDOM
    kernel_view = KernelView("random", "cached", "faults")

"""The one interface of every access mode: ids in, packed rows out, in order, all of them or an error."""

from __future__ import annotations

import errno
import os
import threading
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters, Meter
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table, check_ids
from model_file.errors import InputError

PackedRows = npt.NDArray[np.uint8]
REFUSED = (errno.EPERM, errno.ENOSYS)
PRELOAD_ROWS = 65_536  # rows a preload reads at a time, so that it needs a bounded scratch buffer


class ModeUnavailable(Exception):
    """This machine, container or file system cannot run a mode; the message says what was refused."""


class ModeCannotRun(InputError):
    """A mode that this machine cannot run, where no other mode stands in for it; the message is for people."""

    exit_code = 3  # the input is good: something that was asked for could not be run


@contextmanager
def unless_refused(call: str, path: Path) -> Iterator[None]:
    """A call that is forbidden here, as by a container's seccomp profile, stops the mode and nothing else.

    Raises: ModeUnavailable in place of its OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        raise ModeUnavailable(f"{call} of {path.name}: {syscalls.explain(-error.errno)}") from error


class FallbackNotice(UserWarning):
    """A mode was asked for and another one runs in its place."""


class RowReader(ABC):
    """Reads packed rows of one table in one mode.

    A gather may be called from any thread; gathers of one reader run one after the other, whoever asks for them: its
    callers, a cache in front of it, or a mode that it stands in for. Locks are taken from the front to the back. After
    a fork the child's reader renews what only the parent's threads and kernel objects know, before its first read.
    A reader that cannot run its mode continues in `fallback`, with one `FallbackNotice`; `effective_mode` and
    `fallback_reason` say so ever after.
    """

    name: ClassVar[str]
    fallback: ClassVar[type[RowReader] | None] = None
    keeps_rows: ClassVar[bool] = True  # rows read once are faster to read again (page cache, or memory of our own)

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self.table = table
        self.settings = settings or RowSettings()
        self.mode = self.name
        self._reason: str | None = None
        self.last = GatherCounters()
        self._totals = GatherCounters(service_s=0.0)
        self._lock = threading.RLock()
        _readers.add(self)
        self._meter = Meter()
        self._delegate: RowReader | None = None
        self._closed = False
        self._forked = False
        self._finalizer = weakref.finalize(self, Meter.close, self._meter)
        try:
            self._open()
        except ModeUnavailable as reason:
            self._fall_back(str(reason))
        except BaseException:
            self.close()
            raise

    @property
    def effective_mode(self) -> str:
        """The mode that really runs, after fallbacks."""
        delegate = self._delegate
        return delegate.effective_mode if delegate else self.name

    @property
    def fallback_reason(self) -> str | None:
        """Why something else runs in place of what was asked for, down the whole chain; None when nothing does."""
        delegate = self._delegate
        parts = [self._reason, delegate.fallback_reason if delegate else None]
        return "; ".join(part for part in parts if part) or None

    @property
    def totals(self) -> GatherCounters:
        """Sum over all gathers so far; unique counts cover the batches whose counters were looked at."""
        with self._lock:
            self._settle_last()
            return self._totals

    def gather(self, ids: Any, out: PackedRows | None = None) -> PackedRows:
        """Packed rows of `ids`, in their order, duplicates included.

        Shapes: ids integer[n] -> uint8[n, row_bytes]. `out`, when given, is filled and returned.
        Raises: InputError for ids outside the table, a short file, or a reader that is closed; nothing partial is
        returned.
        """
        with self._lock:
            self._check_open()
            rows = check_ids(ids, self.table.rows)
            out = check_out(out, rows.size, self.table.row_bytes)
            counters = GatherCounters(
                mode=self.mode,
                batches=1,
                rows_requested=rows.size,
                bytes_useful=rows.size * self.table.row_bytes,
                _ids=rows if rows.base is None and rows is not ids else None,
                _table=self.table,
            )
            self._meter.start()
            if rows.size:
                self._run(rows, out, counters)
            self._meter.stop(counters)
            counters.effective_mode, counters.fallback_reason = self.effective_mode, self.fallback_reason
            if counters._ids is None:
                counters._ids = rows.copy()  # the caller may reuse its array before the counters are looked at
            if counters.service_s is None and not counters.major_faults and not counters.bytes_device:
                counters.service_s = 0.0  # nothing was read, so nothing was waited for
            self._settle_last()
            self.last = counters
            self._totals.add(counters)
            return out

    def gather_f32(self, ids: Any) -> npt.NDArray[np.float32]:
        """The same rows as float32[n, row_width], unpacked by NumPy, with the time in `last.dequantize_s`."""
        from fast.rows.dequantize import dequantize_numpy

        packed = self.gather(ids)
        started = perf_counter()
        values = dequantize_numpy(packed, self.table.type)
        self.note_dequantize(perf_counter() - started)
        return values

    def note_dequantize(self, seconds: float) -> None:
        """Add the time that unpacking the last gather's rows took."""
        self.last.dequantize_s += seconds
        self._totals.dequantize_s += seconds

    def preload(self, ids: Any) -> int:
        """Read the rows of a hot set so that later gathers find them; returns how many rows were read.

        A mode that keeps nothing (O_DIRECT) reads nothing and returns 0.
        """
        with self._lock:
            self._check_open()
            if not self._keeps_rows_now():
                return 0
            rows = check_ids(ids, self.table.rows)
            for start in range(0, rows.size, PRELOAD_ROWS):
                self.gather(rows[start : start + PRELOAD_ROWS])
            return rows.size

    def trim(self, budget_bytes: int = 0) -> int:
        """Drop our mapping's resident pages above the budget; returns the bytes dropped. Modes without a mapping: 0."""
        return self._delegate.trim(budget_bytes) if self._delegate else 0

    def close(self) -> None:
        """Release files, mappings, rings and threads. A second call does nothing."""
        with self._lock:
            self._closed = True
            if self._delegate:
                self._delegate.close()
            self._close()
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"{self.mode} reader of {self.table.segments[0].path} is closed, expected an open one")

    def _run(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        """Read in this mode, or in the one it fell back to, now or earlier. The only way to `_read`, for everybody."""
        with self._lock:
            self._check_open()
            if self._forked:
                self._renew()
            if self._delegate is None:
                try:
                    self._read(ids, out, counters)
                    return
                except ModeUnavailable as reason:
                    self._fall_back(str(reason))
            assert self._delegate is not None
            self._delegate._run(ids, out, counters)

    def _fall_back(self, reason: str) -> None:
        """Continue in the fallback mode and say so once."""
        if self.fallback is None:
            raise ModeCannotRun(f"{self.table.segments[0].path}: mode {self.mode} cannot run: {reason}")
        try:
            delegate = self.fallback(self.table, self.settings)
        except ModeCannotRun as error:
            instead = str(error).partition(": ")[2]
            found = f"mode {self.mode} cannot run: {reason}; what stands in for it: {instead}"
            raise ModeCannotRun(f"{self.table.segments[0].path}: {found}") from None
        self._reason = reason  # before the delegate: a child forked in between falls back again, and knows why
        self._delegate = delegate
        notice = f"row mode {self.mode} continues as {self.effective_mode}: {self.fallback_reason}"
        if notice not in _announced:
            _announced.add(notice)
            warnings.warn(notice, FallbackNotice, stacklevel=5)

    def _keeps_rows_now(self) -> bool:
        return self._delegate._keeps_rows_now() if self._delegate else self.keeps_rows

    def _settle_last(self) -> None:
        if self.last.batches_counted and self.last._table is not None:
            self._totals.add_unique(self.last)
            self.last._table = None  # counted into the totals once

    @abstractmethod
    def _open(self) -> None:
        """Acquire what the mode needs. Raises: ModeUnavailable."""

    @abstractmethod
    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        """Fill `out` with the rows of checked, non-empty ids and add to the counters. Raises: ModeUnavailable."""

    def _renew(self) -> None:
        """In a child after a fork, before its first read: give up what another thread of the parent was working on.

        Descriptors, mappings and rows in memory never change once they are there, and stay.
        """
        self._forked = False

    @abstractmethod
    def _close(self) -> None:
        """Release what `_open` acquired; called once or more, also after a failed `_open`."""


_announced: set[str] = set()
_readers: weakref.WeakSet[RowReader] = weakref.WeakSet()


def _after_fork() -> None:
    """In a child after a fork a lock may be held by a thread that does not exist there, in the middle of a gather."""
    for reader in _readers:
        reader._lock = threading.RLock()
        reader._forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_out(out: PackedRows | None, rows: int, row_bytes: int) -> PackedRows:
    """The caller's buffer when it fits exactly, a new one when there is none. Raises: InputError."""
    if out is None:
        return np.empty((rows, row_bytes), dtype=np.uint8)
    fits = isinstance(out, np.ndarray) and out.dtype == np.uint8 and out.shape == (rows, row_bytes)
    if not fits or not out.flags.c_contiguous or not out.flags.writeable:
        found = f"{out.dtype}{list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InputError(f"out is {found}, expected a writable contiguous uint8[{rows}, {row_bytes}]")
    return out

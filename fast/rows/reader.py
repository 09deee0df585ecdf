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
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fast.rows import syscalls
from fast.rows.counters import GatherCounters, Meter
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table, check_ids
from model_file.errors import InputError

PackedRows = npt.NDArray[np.uint8]
REFUSED = (errno.EPERM, errno.ENOSYS)
_BYTE = np.dtype(np.uint8)
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


class KernelView(NamedTuple):
    """What the kernel must see of a mode, so that no other way of reading passes under its name.

    mapping: the advice of its mapping (none: no mapping; plain, random, sequential). files: the kind of descriptor it
    holds (cached, uncached by O_DIRECT, None: any). way: how rows come in a gather (faults, reads, ring). advised:
    every page of a batch is advised before it is touched.
    """

    mapping: str
    files: str | None
    way: str
    advised: bool = False


class RowReader(ABC):
    """Reads packed rows of one table in one mode.

    A mode is a subclass and its line in `fast.rows`; what else must be known of it are attributes of the class.

    A gather may be called from any thread; gathers of one reader run one after the other, whoever asks for them: its
    callers, a cache in front of it, or a mode that it stands in for. Locks are taken from the front to the back. After
    a fork the child's reader renews what only the parent's threads and kernel objects know, before its first read.
    A reader that cannot run its mode continues in `fallback`, with one `FallbackNotice`; `effective_mode` and
    `fallback_reason` say so ever after.
    """

    name: ClassVar[str]
    alias: ClassVar[str | None] = None  # llama.cpp's spelling of --lazy-mode
    kernel_view: ClassVar[KernelView | None] = None  # None: may do anything that is right
    own_memory: ClassVar[bool] = False  # holds the table in memory of our own, whatever the page cache does
    keeps_rows: ClassVar[bool] = True  # rows read once are faster to read again; not so past the page cache
    fallback: ClassVar[type[RowReader] | None] = None

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self.table = table
        self.settings = settings or RowSettings()
        self.mode = self.name
        self._reason: str | None = None
        self._last = GatherCounters()
        self._totals = GatherCounters.none_yet()
        # A batch larger than this is metered.
        self._unmetered_rows = {"full": -1, "cheap": self.settings.inline_rows}.get(self.settings.metering, 1 << 63)
        self._lock = threading.RLock()
        _readers.add(self)
        self._meter = Meter()
        self._delegate: RowReader | None = None
        self._closed = False
        self._unready = False  # closed, or in a child after a fork: looked at before every read
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
        parts = [self._reason, self._meter.refused, delegate.fallback_reason if delegate else None]
        return "; ".join(part for part in parts if part) or None

    @property
    def last(self) -> GatherCounters:
        """What the last gather did."""
        return self._labelled(self._last)

    @property
    def totals(self) -> GatherCounters:
        """Sum over all gathers so far; unique counts cover the batches whose counters were looked at."""
        with self._lock:
            self._settle_last()
            return self._labelled(self._totals)

    def _labelled(self, counters: GatherCounters) -> GatherCounters:
        """With names that no gather has time for."""
        counters.mode = self.mode
        counters.effective_mode, counters.fallback_reason = self.effective_mode, self.fallback_reason
        return counters

    def gather(self, ids: Any, out: PackedRows | None = None) -> PackedRows:
        """Packed rows of `ids`, in their order, duplicates included.

        Shapes: ids integer[n] -> uint8[n, row_bytes]. `out`, when given, is filled and returned.
        Raises: InputError for ids outside the table, a short file, or a reader that is closed; nothing partial is
        returned.
        """
        started = perf_counter()
        with self._lock:
            if self._unready:
                self._make_ready()
            rows = check_ids(ids, self.table.rows)
            count = rows.size
            out = check_out(out, count, self.table.row_bytes)
            counters = GatherCounters()
            counters.rows_requested = count
            counters.bytes_useful = out.nbytes
            metered = count > self._unmetered_rows
            if metered:
                self._meter.start()
            if count:
                self._serve(rows, out, counters)
            if metered:
                self._meter.stop(counters)
                if counters.service_s is None and counters.major_faults == 0 and not counters.bytes_device:
                    counters.service_s = 0.0  # nothing was read, so nothing was waited for
            counters._table, counters._ids = self.table, rows.tobytes()
            if self._last.batches_counted:
                self._settle_last()
            self._last = counters
            self._totals.add(counters)
            counters.wall_s = waited = perf_counter() - started
            self._totals.wall_s += waited
            return out

    def preload(self, ids: Any) -> int:
        """Read the rows of a hot set so that later gathers find them; returns how many rows were read.

        A mode that keeps nothing (O_DIRECT) reads nothing and returns 0.
        """
        with self._lock:
            if self._unready:
                self._make_ready()
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
            self._closed = self._unready = True
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

    def _make_ready(self) -> None:
        if self._closed:
            raise InputError(f"{self.mode} reader of {self.table.segments[0].path} is closed, expected an open one")
        self._renew()

    def _run(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        """Read for another reader, which this one is the back of."""
        with self._lock:
            if self._unready:
                self._make_ready()
            self._serve(ids, out, counters)

    def _serve(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        """Read in this mode, or in the one it fell back to, now or earlier. The lock is held."""
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
        if self._last.batches_counted and self._last._table is not None:
            self._totals.add_unique(self._last)
            self._last._table = None  # counted into the totals once

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
        self._unready = False

    @abstractmethod
    def _close(self) -> None:
        """Release what `_open` acquired; called once or more, also after a failed `_open`."""


_announced: set[str] = set()
_readers: weakref.WeakSet[RowReader] = weakref.WeakSet()


def _after_fork() -> None:
    """In a child after a fork a lock may be held by a thread that does not exist there, in the middle of a gather."""
    for reader in _readers:
        reader._lock = threading.RLock()
        reader._unready = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def check_out(out: PackedRows | None, rows: int, row_bytes: int) -> PackedRows:
    """The caller's buffer when it fits exactly, a new one when there is none. Raises: InputError."""
    if out is None:
        return np.empty((rows, row_bytes), np.uint8)
    if isinstance(out, np.ndarray) and out.dtype == _BYTE and out.shape == (rows, row_bytes):
        flags = out.flags
        if flags.c_contiguous and flags.writeable:
            return out
    found = f"{out.dtype}{list(out.shape)}" if isinstance(out, np.ndarray) else type(out).__name__
    raise InputError(f"out is {found}, expected a writable contiguous uint8[{rows}, {row_bytes}]")

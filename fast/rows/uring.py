"""Modes `uring` and `uring-uncached`: one io_uring submission for the whole batch, no Python per row."""

from __future__ import annotations

import os
import threading
import weakref
from typing import ClassVar

from fast.rows.buffered import read_buffered
from fast.rows.counters import GatherCounters
from fast.rows.direct import DirectReader, DirectUncachedReader
from fast.rows.io_uring import Ring
from fast.rows.reader import KernelView, PackedRows, RowReader
from fast.rows.settings import RowSettings
from fast.rows.table import Ids, Table
from fast.rows.table_files import TableFiles
from fast.rows.uncached import WindowReader


class ThreadRings:
    """One ring per gathering thread: a ring with deferred completions belongs to the thread that made it."""

    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings
        self._local = threading.local()
        self._all: weakref.WeakSet[Ring] = weakref.WeakSet()

    def ring(self) -> Ring:
        """This thread's ring, made on first use and again in a child after a fork."""
        ring: Ring | None = getattr(self._local, "ring", None)
        if ring is None or ring.pid != os.getpid():
            ring = Ring(self._settings.queue_depth, self._settings.syscall)
            self._local.ring = ring
            self._all.add(ring)
        return ring

    def close(self) -> None:
        """Close every thread's ring."""
        for ring in list(self._all):
            ring.close()
        self._local = threading.local()


class UringReader(RowReader):
    """Buffered reads through a ring: cached rows are copied during submission, all others are in flight together."""

    name = "uring"
    kernel_view: ClassVar[KernelView | None] = KernelView("none", "cached", "ring")
    fallback = DirectReader

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._files: TableFiles | None = None
        self._rings: ThreadRings | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._rings = ThreadRings(self.settings)
        self._rings.ring()  # the probe: refused here means refused for good
        self._files = TableFiles(self.table, random=True)
        self._reason = self._files.refused

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._files is not None and self._rings is not None
        ring = self._rings.ring()
        depth = self.settings.queue_depth
        read_buffered(self._files, ids, out, counters, self.settings.inline_rows, lambda reads: ring.read(reads, depth))

    def _close(self) -> None:
        if self._rings:
            self._rings.close()
        if self._files:
            self._files.close()


class UringUncachedReader(UringReader):
    """O_DIRECT through a ring: aligned windows straight from the device, the page cache stays as it is."""

    name = "uring-uncached"
    kernel_view = KernelView("none", "uncached", "ring")
    fallback = DirectUncachedReader
    keeps_rows = False

    def __init__(self, table: Table, settings: RowSettings | None = None) -> None:
        self._windows: WindowReader | None = None
        super().__init__(table, settings)

    def _open(self) -> None:
        self._rings = ThreadRings(self.settings)
        self._rings.ring()
        self._files = TableFiles(self.table, direct=True)
        self._reason = self._files.refused
        self._windows = WindowReader(self._files, self.settings)

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        assert self._windows is not None and self._rings is not None
        ring = self._rings.ring()
        self._windows.read(ids, out, counters, lambda reads: ring.read(reads, self.settings.queue_depth))

    def _close(self) -> None:
        super()._close()
        if self._windows:
            self._windows.close()

"""A cache of packed rows in memory of our own, in front of any mode."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows.counters import GatherCounters
from fast.rows.reader import PRELOAD_ROWS, PackedRows, RowReader
from fast.rows.table import Ids, check_ids
from model_file.errors import InputError

_MIX = 0x9E3779B97F4A7C15  # 2^64 / golden ratio: consecutive ids spread over the slots
_EMPTY = -1


class RowCache(RowReader):
    """Keeps rows by their full id in a bounded number of slots; one slot per hash, the newest row stays.

    A slot's tag is the whole row id, so two rows that share a slot can never be mistaken for each other. The table is
    read-only: a cached row cannot become stale except by a file changed on disk, which no mode notices either.
    Units: budget_bytes covers rows and tags. The inner reader is closed with the cache.
    Raises: InputError when the budget does not hold a single row.
    """

    name = "cache"

    def __init__(self, reader: RowReader, budget_bytes: int) -> None:
        self.inner = reader
        slot_bytes = reader.table.row_bytes + 8
        slots = 1 << (budget_bytes // slot_bytes).bit_length() - 1 if budget_bytes >= slot_bytes else 0
        if not slots:
            raise InputError(f"a row cache of {budget_bytes} bytes holds no row, one takes {slot_bytes} bytes")
        self._shift = np.uint64(64 - (slots.bit_length() - 1)) if slots > 1 else None
        self._tags = np.full(slots, _EMPTY, np.int64)
        self._rows = np.zeros((slots, reader.table.row_bytes), np.uint8)
        super().__init__(reader.table, reader.settings)
        self.mode = reader.mode

    @property
    def slots(self) -> int:
        """Rows the cache can hold."""
        return int(self._tags.size)

    @property
    def effective_mode(self) -> str:
        """The inner reader's."""
        return self.inner.effective_mode

    def gather(self, ids: Any, out: PackedRows | None = None) -> PackedRows:
        """As the inner reader's; a batch found here entirely skips the kernel's counters: it made no call."""
        with self._lock:
            rows = check_ids(ids, self.table.rows)
            if (
                rows.size
                and not self._forked
                and not self._closed
                and (out is None or _fits(out, rows.size, self.table.row_bytes))
            ):
                started = perf_counter()
                slots = self._slots(rows)
                if bool((self._tags[slots] == rows).all()):
                    out = np.empty((rows.size, self.table.row_bytes), np.uint8) if out is None else out
                    self._rows.take(slots, axis=0, out=out, mode="clip")
                    self._note_hits(rows, perf_counter() - started)
                    return out
            return super().gather(rows, out)

    def _note_hits(self, rows: Ids, seconds: float) -> None:
        self._settle_last()
        self.last = GatherCounters(
            mode=self.mode,
            effective_mode=self.effective_mode,
            fallback_reason=self.inner.fallback_reason,
            served_by="cache",
            batches=1,
            rows_requested=rows.size,
            bytes_useful=rows.size * self.table.row_bytes,
            cache_hits=rows.size,
            copy_s=seconds,
            wall_s=seconds,
            service_s=0.0,
            _ids=rows.copy(),
            _table=self.table,
        )
        self._totals.add(self.last)

    def _slots(self, ids: Ids) -> npt.NDArray[np.int64]:
        if self._shift is None:
            return np.zeros(ids.size, np.int64)
        mixed = ids.view(np.uint64) * np.uint64(_MIX)
        mixed >>= self._shift
        return mixed.view(np.int64)

    @property
    def fallback_reason(self) -> str | None:
        """The inner reader's."""
        return self.inner.fallback_reason

    def _open(self) -> None:
        """The inner reader is open already."""

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        started = perf_counter()
        slots = self._slots(ids)
        hit = self._tags[slots] == ids
        found = np.flatnonzero(hit)
        if found.size:
            out[found] = self._rows[slots[found]]
        counters.cache_hits += found.size
        counters.copy_s += perf_counter() - started
        missing = np.flatnonzero(~hit)
        if not missing.size:
            return
        wanted = ids[missing]
        rows = np.empty((wanted.size, self.table.row_bytes), np.uint8)
        self.inner._run(wanted, rows, counters)
        started = perf_counter()
        out[missing] = rows
        self._insert(wanted, slots[missing], rows)
        counters.copy_s += perf_counter() - started

    def _insert(self, ids: Ids, slots: npt.NDArray[np.int64], rows: PackedRows) -> None:
        """Keep rows, of several for one slot the last. Its tag is empty meanwhile: an interrupted insert misses."""
        if ids.size > 1:
            kept, place = np.unique(slots[::-1], return_index=True)
            place = ids.size - 1 - place
            ids, slots, rows = ids[place], kept, rows[place]
        self._tags[slots] = _EMPTY
        self._rows[slots] = rows
        self._tags[slots] = ids

    def preload(self, ids: Any) -> int:
        """Fill the cache with a hot set; works in front of every mode, also those that keep nothing themselves."""
        rows = check_ids(ids, self.table.rows)
        for start in range(0, rows.size, PRELOAD_ROWS):
            self.gather(rows[start : start + PRELOAD_ROWS])
        return int(rows.size)

    def trim(self, budget_bytes: int = 0) -> int:
        """The inner reader's mapping only: the cache has its own fixed budget."""
        return self.inner.trim(budget_bytes)

    def _renew(self) -> None:
        self._tags.fill(_EMPTY)  # another thread of the parent may have been changing slots
        super()._renew()

    def _close(self) -> None:
        self.inner.close()


def _fits(out: PackedRows, rows: int, row_bytes: int) -> bool:
    return (
        isinstance(out, np.ndarray) and out.dtype == np.uint8 and out.shape == (rows, row_bytes) and
        out.flags.c_contiguous and out.flags.writeable
    )  # fmt: skip

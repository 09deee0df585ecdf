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

_EMPTY = -1


class RowCache(RowReader):
    """Keeps rows by their full id in a bounded number of slots; one slot for an id, the newest row stays.

    A batch that is found here entirely makes no system call. A slot's tag is the whole row id, so two rows that share a
    slot can never be mistaken for each other. The table is read-only: a cached row cannot become stale except by a file
    changed on disk, which no mode notices either.
    Units: budget_bytes covers rows and tags. The inner reader is closed with the cache.
    Raises: InputError when the budget does not hold a single row.
    """

    name = "cache"

    def __init__(self, reader: RowReader, budget_bytes: int) -> None:
        self.inner = reader
        slot_bytes = reader.table.row_bytes + 8
        slots = budget_bytes // slot_bytes
        if not slots:
            raise InputError(f"a row cache of {budget_bytes} bytes holds no row, one takes {slot_bytes} bytes")
        slots = slots - 1 | 1  # odd: ids that are a power of two apart still spread over all slots
        self._modulus = np.array(slots)  # an array without axes is a faster operand than a number
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

    def slot_of(self, ids: Ids) -> npt.NDArray[np.int64]:
        """The one slot that each row may be kept in."""
        slots: npt.NDArray[np.int64] = ids % self._modulus
        return slots

    @property
    def fallback_reason(self) -> str | None:
        """The inner reader's."""
        return self.inner.fallback_reason

    def _open(self) -> None:
        """The inner reader is open already."""

    def _read(self, ids: Ids, out: PackedRows, counters: GatherCounters) -> None:
        started = perf_counter()
        slots = self.slot_of(ids)
        tags = self._tags[slots]
        if tags.tobytes() == ids.tobytes():  # for few rows, five times faster than (tags == ids).all()
            self._rows.take(slots, axis=0, out=out, mode="clip")
            counters.cache_hits = ids.size
            counters.served_by = "cache"
            counters.service_s = 0.0
            counters.copy_s = perf_counter() - started
            return
        hit = tags == ids
        found = np.flatnonzero(hit)
        out[found] = self._rows[slots[found]]
        counters.cache_hits += found.size
        counters.copy_s += perf_counter() - started
        missing = np.flatnonzero(~hit)
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

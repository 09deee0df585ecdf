"""The row cache never gives another row's bytes: collisions, repeats, faults of the reader behind it, its budget."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.rows import MODES, RowCache, Table, open_rows
from model_file.errors import InputError
from tests.fast.rows.tables import pread_rows

SLOT_BYTES = 90 + 8


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_a_tiny_cache_full_of_collisions_is_always_right(table: Table, slots: int) -> None:
    with RowCache(open_rows(table, "mmap"), budget_bytes=slots * SLOT_BYTES) as cache:
        assert cache.slots == slots

        @given(st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=6))
        def check(batches: list[list[int]]) -> None:
            for ids in batches:
                array = np.array(ids, np.int64)
                assert cache.gather(array).tobytes() == pread_rows(table, array).tobytes()

        check()
        assert cache.totals.cache_hits > 0


def test_rows_that_share_a_slot_are_told_apart_by_the_whole_id(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with RowCache(open_rows(table, "mmap"), budget_bytes=64 * SLOT_BYTES) as cache:
        monkeypatch.setattr(cache, "_slots", lambda ids: np.zeros(ids.size, np.int64))
        for ids in ([1, 2], [2, 1], [2, 2, 1, 2], [1], [2], [1 + 256, 1]):
            array = np.array(ids)
            assert cache.gather(array).tobytes() == pread_rows(table, array).tobytes()


def test_a_planted_stale_row_is_seen_by_the_comparison(table: Table) -> None:
    """Proof that the tests above can fail: a changed byte in the cache's memory comes out."""
    ids = np.arange(20)
    wanted = pread_rows(table, ids).tobytes()
    with RowCache(open_rows(table, "mmap"), budget_bytes=1 << 20) as cache:
        cache.gather(ids)
        cache._rows[cache._slots(ids[3:4])] ^= 1
        found = cache.gather(ids)
        assert found.tobytes() != wanted
        assert np.flatnonzero((found != pread_rows(table, ids)).any(axis=1)).tolist() == [3]


def test_a_reader_that_fails_leaves_the_cache_right(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    with RowCache(open_rows(table, "mmap"), budget_bytes=1 << 20) as cache:
        cache.gather(np.arange(5))

        def fail(*_: Any) -> None:
            raise OSError("disk on fire")

        with monkeypatch.context() as patched:
            patched.setattr(cache.inner, "_read", fail)
            with pytest.raises(OSError, match="disk on fire"):
                cache.gather(np.arange(10))
            assert cache.gather(np.arange(5)).tobytes() == pread_rows(table, np.arange(5)).tobytes()
        assert cache.gather(np.arange(10)).tobytes() == pread_rows(table, np.arange(10)).tobytes()


def test_an_interrupted_insert_leaves_a_miss_and_no_wrong_row(table: Table) -> None:
    """The state between the two lines that change a slot: bytes written, tag not."""
    with RowCache(open_rows(table, "mmap"), budget_bytes=SLOT_BYTES) as cache:
        cache.gather(np.array([7]))
        cache._tags[:] = -1
        cache._rows[:] = 0
        assert cache.gather(np.array([7])).tobytes() == pread_rows(table, np.array([7])).tobytes()


@pytest.mark.parametrize("mode", list(MODES))
def test_preload_fills_the_cache_in_front_of_every_mode(table: Table, mode: str) -> None:
    hot = np.arange(0, 300, 3)
    with RowCache(open_rows(table, mode), budget_bytes=32 << 20) as cache:
        assert cache.preload(hot) == hot.size
        cache.gather(hot[::-1])
        assert cache.last.cache_hits == hot.size
        assert cache.last.served_by == "cache"
        assert (cache.mode, cache.effective_mode) == (mode, cache.inner.effective_mode)


def test_the_budget_bounds_the_memory(table: Table) -> None:
    for budget in (SLOT_BYTES, 1000, 99_999, 1 << 20):
        with RowCache(open_rows(table, "mmap"), budget_bytes=budget) as cache:
            held = cache._rows.nbytes + cache._tags.nbytes
            assert budget / 2 < held <= budget
    with open_rows(table, "mmap") as reader, pytest.raises(InputError, match="a row cache of 97 bytes holds no row"):
        RowCache(reader, budget_bytes=SLOT_BYTES - 1)


def test_closing_the_cache_closes_the_reader(table: Table) -> None:
    cache = RowCache(open_rows(table, "mmap"), budget_bytes=1 << 20)
    cache.gather(np.arange(4))
    cache.close()
    for reader in (cache, cache.inner):
        with pytest.raises(InputError, match="closed"):
            reader.gather(np.arange(4))

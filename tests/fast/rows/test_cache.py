"""The row cache never gives another row's bytes: collisions, repeats, faults of the reader behind it, its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.rows import MODES, RowCache, RowSettings, Segment, Table, open_rows
from model_file.errors import InputError
from tests.fast.rows.tables import open_descriptors, pread_rows

SLOT_BYTES = 90 + 8


@pytest.mark.parametrize("slots", [1, 3, 9])
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
        monkeypatch.setattr(cache, "slot_of", lambda ids: np.zeros(ids.size, np.int64))
        for ids in ([1, 2], [2, 1], [2, 2, 1, 2], [1], [2], [1 + 256, 1]):
            array = np.array(ids)
            assert cache.gather(array).tobytes() == pread_rows(table, array).tobytes()


def test_a_planted_stale_row_is_seen_by_the_comparison(table: Table) -> None:
    """Proof that the tests above can fail: a changed byte in the cache's memory comes out."""
    ids = np.arange(20)
    wanted = pread_rows(table, ids).tobytes()
    with RowCache(open_rows(table, "mmap"), budget_bytes=1 << 20) as cache:
        cache.gather(ids)
        cache._rows[cache.slot_of(ids[3:4])] ^= 1
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
            assert budget - 2 * SLOT_BYTES < held <= budget
    with open_rows(table, "mmap") as reader, pytest.raises(InputError, match="a row cache of 97 bytes holds no row"):
        RowCache(reader, budget_bytes=SLOT_BYTES - 1)


@pytest.mark.parametrize("mode", list(MODES))
def test_settings_put_a_cache_in_front_of_any_mode(table: Table, mode: str) -> None:
    ids = np.arange(0, 3000, 7)
    with open_rows(table, mode, RowSettings(cache_bytes=1 << 20)) as cache:
        assert isinstance(cache, RowCache)
        for served_by in (None, "cache"):
            assert cache.gather(ids).tobytes() == pread_rows(table, ids).tobytes()
            assert served_by in (None, cache.last.served_by)
        assert (cache.mode, cache.last.cache_hits) == (mode, ids.size)
    before = open_descriptors()
    with pytest.raises(InputError, match="a row cache of 10 bytes holds no row"):
        open_rows(table, mode, RowSettings(cache_bytes=10))
    assert open_descriptors() <= before + 1  # a ring of this thread may wait for the collector


def colliding(cache: RowCache, row: int, same_bits: int, rows: int) -> int:
    """Another row of the same slot whose number has the same low bits: slots are odd, so they meet at the product."""
    other = row + (cache.slots << same_bits)
    assert other < rows
    return other


def sparse_table(path: Path, written: list[int], rows: int = 3 << 32) -> Table:
    """A table of more rows than 32 bits count, all holes but those written: each of them holds its own number."""
    path.touch()
    row_bytes = 18
    with path.open("r+b") as file:
        file.truncate(64 + rows * row_bytes)
        for row in written:
            file.seek(64 + row * row_bytes)
            file.write(row.to_bytes(8, "little") + bytes(range(10)))
    return Table(gguf.GGMLQuantizationType.IQ4_NL, rows, 32, row_bytes, (Segment(path, 64, 0, rows),))


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "resident"])
def test_rows_beyond_32_bits_that_collide_are_told_apart(tmp_path: Path, mode: str) -> None:
    """Same slot and same low 16, 24 or 32 bits, in every mode: a tag or an offset cut to those would take one for the
    other."""
    first, slots, rows = 12_345, 1, 3 << 32
    wanted = [first, *(first + (slots << bits) for bits in (16, 24, 31, 32)), rows - 1, first + (2 << 32)]
    table = sparse_table(tmp_path / "sparse", wanted, rows)
    numbers = np.array(wanted, np.uint64)
    expected = pread_rows(table, numbers)
    assert len({row.tobytes() for row in expected}) == len(wanted)
    settings = RowSettings(inline_rows=3, cache_bytes=18 + 8)
    with open_rows(table, mode, settings) as cache:
        assert isinstance(cache, RowCache)
        assert cache.slots == slots
        for bits in (16, 24, 32):
            assert colliding(cache, first, bits, rows) in wanted
        for batch in (numbers, numbers[::-1], *np.split(numbers, numbers.size), np.repeat(numbers, 3)):
            for _ in range(2):
                assert cache.gather(batch).tobytes() == pread_rows(table, batch).tobytes()
    with open_rows(table, mode, RowSettings(inline_rows=3)) as reader:
        assert reader.gather(numbers).tobytes() == expected.tobytes()
        assert reader.gather(numbers[:2]).tobytes() == expected[:2].tobytes()


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_a_tag_cut_to_fewer_bits_is_found(tmp_path: Path, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the test above can fail."""
    table = sparse_table(tmp_path / "sparse", [5, 5 + (1 << bits)])
    insert = RowCache._insert
    monkeypatch.setattr(
        RowCache, "_insert", lambda self, ids, slots, rows: insert(self, ids + (1 << bits), slots, rows)
    )  # the tag of the other row: what a compare of the low bits would take it for
    with RowCache(open_rows(table, "mmap"), budget_bytes=18 + 8) as cache:
        cache.gather(np.array([5]))
        other = colliding(cache, 5, bits, table.rows)
        assert cache.slot_of(np.array([5])) == cache.slot_of(np.array([other]))
        assert cache.gather(np.array([other])).tobytes() != pread_rows(table, np.array([other])).tobytes()


def test_closing_the_cache_closes_the_reader(table: Table) -> None:
    cache = RowCache(open_rows(table, "mmap"), budget_bytes=1 << 20)
    cache.gather(np.arange(4))
    cache.close()
    for reader in (cache, cache.inner):
        with pytest.raises(InputError, match="closed"):
            reader.gather(np.arange(4))

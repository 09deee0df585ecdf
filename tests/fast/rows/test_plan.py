"""The gather plan: unique rows and where they go, aligned windows, pieces; against sets and loops."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fast.rows import Table
from fast.rows.mapped import TableMapping
from fast.rows.plan import GatherPlan, Spans, cut, sort_unique
from fast.rows.prefetch import Adviser, PagePlan

ids_of = st.lists(st.integers(0, 2999), max_size=80)


@given(st.lists(st.integers(0, 2**61), max_size=50), st.sampled_from([2**62, 2**40]))
def test_sort_unique_equals_numpy(ids: list[int], rows: int) -> None:
    array = np.array([i % rows for i in ids], np.int64)
    unique, inverse = sort_unique(array, rows)
    assert unique.tolist() == sorted(set(array.tolist()))
    back = unique if inverse is None else unique[inverse]
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("align", [1, 512, 4096])
@pytest.mark.parametrize("joined", [False, True])
def test_windows_hold_every_row_once(tables: Callable[..., Table], segments: int, align: int, joined: bool) -> None:
    table = tables(segments=segments)

    @given(ids_of)
    def check(ids: list[int]) -> None:
        plan = GatherPlan(table, np.array(ids, np.int64))
        spans, owner = plan.windows(align, joined)
        blocks: set[tuple[int, int]] = set()
        for row, window in zip(plan.unique.tolist(), owner.tolist(), strict=True):
            segment, offset = table.place(row)
            assert table.segments[spans.segment[window]] is segment
            assert spans.start[window] <= offset
            assert offset + table.row_bytes <= spans.end[window]
            touched = range(offset // align, -(-(offset + table.row_bytes) // align))
            blocks |= {(int(spans.segment[window]), block) for block in touched}
        # Exactly the blocks under the rows, none twice.
        assert int(spans.lengths.sum()) == len(blocks) * align
        assert not (spans.start % align).any()
        if joined:
            apart = (spans.start[1:] > spans.end[:-1]) | (spans.segment[1:] != spans.segment[:-1])
            assert apart.all()

    check()


@pytest.mark.parametrize("align", [1, 512])
@pytest.mark.parametrize("limit", [2048, 5000, 1 << 20])
def test_windows_stay_under_a_limit(tables: Callable[..., Table], align: int, limit: int) -> None:
    """Rows of 640 bytes from byte 96 on never begin on a block: without a limit all of them are one window."""
    table = tables(gguf.GGMLQuantizationType.F32, 3)

    @given(ids_of | st.integers(1, 3000).map(lambda count: list(range(count))))
    def check(ids: list[int]) -> None:
        plan = GatherPlan(table, np.array(ids, np.int64))
        spans, owner = plan.windows(align, limit_bytes=limit)
        whole, whole_owner = plan.windows(align)
        assert (spans.lengths <= limit).all()
        assert (np.diff(owner) >= 0).all()
        assert np.unique(owner).size == spans.start.size
        assert (spans.start[owner] <= plan.offsets).all()
        assert (plan.offsets + table.row_bytes <= spans.end[owner]).all()
        assert (spans.segment[owner] == plan.segments).all()
        assert not (spans.start % align).any()
        # One block more for each split at most, and a window that fits stays whole.
        splits = spans.start.size - whole.start.size
        assert int(whole.lengths.sum()) <= int(spans.lengths.sum()) <= int(whole.lengths.sum()) + splits * align
        fits = np.flatnonzero(whole.lengths <= limit)
        assert all(np.unique(owner[whole_owner == window]).size == 1 for window in fits.tolist())
        # A part is no shorter than it must be: two neighbours hold more than a limit less one row's window.
        assert splits <= int(whole.lengths.sum()) // (limit - 640 - 2 * align + 1)

    check()


@pytest.mark.parametrize("page_bytes", [4096, 16384, 65536])
@pytest.mark.parametrize("segments", [1, 3])
def test_advice_is_for_whole_pages_of_the_system(
    tables: Callable[..., Table], page_bytes: int, segments: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel refuses an address inside a page; arm64 has larger ones than x86. The addresses are made up."""
    table = tables(segments=segments)
    ids = np.random.default_rng(page_bytes).integers(0, table.rows, 100)
    sizes = [segment.offset_bytes + segment.rows * table.row_bytes for segment in table.segments]
    parts = [SimpleNamespace(address=i << 40, start_bytes=0, size_bytes=size) for i, size in enumerate(sizes, 1)]
    ranges: list[tuple[int, int]] = []

    def willneed(addresses: np.ndarray, lengths: np.ndarray) -> int:
        ranges.extend(zip(addresses.tolist(), lengths.tolist(), strict=True))
        return 1

    monkeypatch.setattr("mmap.PAGESIZE", page_bytes)
    plan = GatherPlan(table, ids)
    pages = PagePlan(plan, cast(TableMapping, SimpleNamespace(parts=parts)), range_pages=2)
    adviser = cast(Adviser, SimpleNamespace(willneed=willneed))
    asked = sum(pages.advise(stop, adviser)[1] for stop in (1, 40, plan.unique.size))
    assert asked == sum(length for _, length in ranges)
    assert all(at % page_bytes == 0 and length in (page_bytes, 2 * page_bytes) for at, length in ranges)
    advised = [page for at, length in ranges for page in range(at // page_bytes, (at + length) // page_bytes)]
    needed = set()
    for row in ids.tolist():
        segment, offset = table.place(row)
        place = parts[table.segments.index(segment)].address + offset
        needed |= set(range(place // page_bytes, (place + table.row_bytes - 1) // page_bytes + 1))
    assert sorted(advised) == sorted(needed)


@given(ids_of)
def test_places_and_repeats_restore_the_batch(ids: list[int]) -> None:
    table = _fake_table()
    array = np.array(ids, np.int64)
    plan = GatherPlan(table, array)
    out = np.zeros((array.size, 8), np.uint8)
    out[plan.places] = plan.unique.view(np.uint8).reshape(-1, 8)
    plan.fill_repeats(out)
    assert out.reshape(-1).view(np.int64).tolist() == ids


def _fake_table() -> Table:
    table = object.__new__(Table)
    for name, value in {
        "rows": 3000,
        "row_bytes": 8,
        "segments": (SimpleNamespace(offset_bytes=0, first_row=0),),
    }.items():
        object.__setattr__(table, name, value)
    return table


@given(st.lists(st.integers(1, 40), max_size=20), st.integers(1, 9))
def test_cut_keeps_every_byte_in_order(lengths: list[int], limit: int) -> None:
    start = np.cumsum([0, *lengths[:-1]]).astype(np.int64) * 3 if lengths else np.empty(0, np.int64)
    spans = Spans(np.zeros(len(lengths), np.intp), start, start + np.array(lengths, np.int64))
    pieces = cut(spans, limit)
    whole = [b for s, e in zip(spans.start.tolist(), spans.end.tolist(), strict=True) for b in range(s, e)]
    assert [b for s, e in zip(pieces.start.tolist(), pieces.end.tolist(), strict=True) for b in range(s, e)] == whole
    assert (pieces.lengths <= limit).all()

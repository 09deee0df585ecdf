"""What a cold batch costs: page faults and bytes from the device, mode against mode on a table just evicted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fast.rows import RowCache, RowReader, RowSettings, Table, open_rows, residency
from fast.rows.auto import SAMPLED_ROWS
from tests.fast.rows.tables import make_table, open_mode

PAGE = 4096
ROWS = 60_000
FEW_FAULTS = 4  # pages of the interpreter itself that the machine took away meanwhile


@pytest.fixture
def spread(tmp_path: Path) -> Table:
    return make_table(tmp_path, rows=(ROWS,))


def evict(table: Table) -> None:
    """Make it cold, or skip by name."""
    eviction = residency.make_cold(table)
    if not eviction.cold:
        pytest.skip(f"this file system keeps the file in memory ({eviction.resident:.0%} resident after eviction)")


@pytest.mark.parametrize("front", [lambda reader: reader, lambda reader: RowCache(reader, 1 << 20)], ids=["", "cache"])
def test_small_cold_batches_of_auto_are_advised(spread: Table, front: Callable[[RowReader], RowReader]) -> None:
    """Decode steps on an evicted table, new rows each: a mapping alone would wait for every page alone."""
    evict(spread)
    steps = np.random.default_rng(11).permutation(ROWS)[: 20 * 16].reshape(20, 16)
    with front(open_mode(spread, "auto", RowSettings(metering="full"))) as reader:
        for ids in steps:
            reader.gather(ids)
            assert reader.last.served_by == "prefetch"
        assert reader.totals.major_faults <= FEW_FAULTS


def test_small_warm_batches_of_auto_come_to_the_mapping(spread: Table) -> None:
    """The other half: calm batches, also behind a cache, are taken from the mapping."""
    ids = np.random.default_rng(12).integers(0, ROWS, 16)
    with RowCache(
        open_mode(spread, "auto", RowSettings(metering="full")), spread.row_bytes + 8
    ) as reader:  # one row: the rest misses
        assert reader.slots == 1
        for _ in range(8):
            reader.gather(ids)
        assert reader.last.served_by == "mapping"


def test_cold_prefetch_waits_for_no_page_alone(spread: Table) -> None:
    """Advice covers the whole batch: the mapping alone has one major fault a page, with advice there are next to none.

    Pages whose read was started but has not ended when the row is touched count as minor faults.
    """
    ids = np.random.default_rng(13).integers(0, ROWS, 300)
    evict(spread)
    with open_rows(spread, "mmap-random", RowSettings(metering="full")) as reader:
        reader.gather(ids)
        pages = reader.last.pages_unique
        assert reader.last.major_faults >= 0.9 * pages
    evict(spread)
    with open_mode(spread, "prefetch", RowSettings(metering="full")) as reader:
        reader.gather(ids)
        assert reader.last.major_faults <= FEW_FAULTS + 0.05 * pages
        assert reader.last.bytes_device == pages * PAGE


@pytest.mark.parametrize("rows", [300, 3000])
def test_cold_auto_leaves_the_mapping(spread: Table, rows: int) -> None:
    """A large batch, on a table that was warm and in our page table when it was evicted."""
    ids = np.random.default_rng(14).integers(0, ROWS, rows)
    with open_mode(spread, "auto", RowSettings(metering="full")) as reader:
        for _ in range(4):
            reader.gather(ids)
        assert reader.last.served_by == "mapping"
        reader.trim()
        evict(spread)
        reader.gather(ids)
        assert reader.last.major_faults <= FEW_FAULTS
        assert reader.last.bytes_device == reader.last.pages_unique * PAGE


def test_auto_leaves_the_mapping_where_its_sample_misled(tmp_path: Path) -> None:
    """The rows it asks the kernel about are in memory, the others are not: one chunk of faults, then the ring."""
    table = make_table(tmp_path, rows=(300_000,))
    ids = np.random.default_rng(15).permutation(table.rows)[:4096]
    evict(table)
    with open_mode(table, "uring", RowSettings(metering="full")) as reader:
        reader.gather(ids[:: ids.size // SAMPLED_ROWS])
    with open_mode(table, "auto", RowSettings(metering="full")) as reader:
        reader.gather(ids)
        assert reader.last.served_by == "mapping+uring"
        assert (
            0 < reader.last.major_faults <= RowSettings().first_chunk_rows * 2 + FEW_FAULTS
        )  # a row may lie on two pages
        assert reader.last.pages_unique > 2 * RowSettings().first_chunk_rows

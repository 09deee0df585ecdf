"""Nothing is left behind: descriptors, threads and anonymous memory stay flat over readers and batches."""

from __future__ import annotations

import gc
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fast.rows import MODES, RowCache, RowSettings, Segment, Table, open_rows, residency, workers
from tests.fast.rows.tables import Type, open_descriptors

SETTINGS = RowSettings(inline_rows=8, workers=4, slice_reads=16)
MIB = 1 << 20


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("mode", list(MODES))
def test_readers_leave_no_descriptor_and_no_thread(table: Table, mode: str) -> None:
    ids = np.arange(0, 3000, 3)
    for number in range(12):
        if number == 2:
            gc.collect()
            before = open_descriptors(), threads()
        with open_rows(table, mode, SETTINGS) as reader:
            reader.gather(ids)
            reader.gather(ids[:4])
    gc.collect()
    # A worker that was told to end may still be on its way out.
    assert open_descriptors() <= before[0]
    assert threads() <= before[1] + SETTINGS.workers  # type: ignore[operator]


@pytest.mark.parametrize("mode", list(MODES))
def test_dropped_readers_leave_no_descriptor_and_no_thread(table: Table, mode: str) -> None:
    """Nobody calls `close`: what a reader held goes with it."""
    ids = np.arange(0, 3000, 3)
    open_rows(table, mode, SETTINGS).gather(ids)
    gc.collect()
    wait_for_threads(0)
    before = open_descriptors(), threads()
    for _ in range(5):
        reader = open_rows(table, mode, SETTINGS)
        reader.gather(ids)
        reader.gather(ids[:4])
    del reader
    gc.collect()
    wait_for_threads(before[1])
    assert open_descriptors() <= before[0]
    assert threads() <= before[1]


def wait_for_threads(most: int) -> None:
    """Give worker threads that were told to end, by whichever test, a moment to do so."""
    deadline = time.monotonic() + (5 if most else 0.2)
    while threads() > most and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_thread_that_cannot_start_is_missed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's limit on threads, met once: an error then, and no wait for that thread ever after."""
    real, refused = workers._thread.start_new_thread, []

    def start(*arguments: Any) -> int:
        if not refused:
            refused.append(1)
            raise RuntimeError("can't start new thread")
        return real(*arguments)

    monkeypatch.setattr(workers._thread, "start_new_thread", start)
    pool = workers.Workers(1)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        pool.run(3, lambda part: part)
    done: list[list[int]] = []
    again = threading.Thread(target=lambda: done.append(pool.run(3, lambda part: part)), daemon=True)
    monkeypatch.undo()
    again.start()
    again.join(timeout=10)
    assert [sorted(results) for results in done] == [[0, 1, 2]]
    pool.close()


@pytest.mark.parametrize("mode", list(MODES))
def test_descriptors_and_memory_are_flat_over_batches(table: Table, mode: str) -> None:
    generator = np.random.default_rng(1)
    with open_rows(table, mode, SETTINGS) as reader:
        for number in range(300):
            if number == 30:
                before = open_descriptors(), residency.anonymous_bytes()
            reader.gather(generator.integers(0, table.rows, 5 + 500 * (number % 3)))
            assert reader.last.rows_requested
        assert open_descriptors() == before[0]
        assert residency.anonymous_bytes() - before[1] < 8 * MIB


@pytest.mark.parametrize("mode", ["uring", "auto", "direct"])
def test_threads_that_end_leave_no_ring_behind(table: Table, mode: str) -> None:
    ids = np.arange(0, 3000, 3)
    with open_rows(table, mode, SETTINGS) as reader:
        for number in range(40):
            if number == 10:
                gc.collect()
                before = open_descriptors()
            thread = threading.Thread(target=reader.gather, args=(ids,))
            thread.start()
            thread.join()
        gc.collect()
        assert open_descriptors() <= before


@pytest.mark.slow
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "resident"])
def test_ten_thousand_batches_over_six_gib_stay_within_64_mib(tmp_path: Path, mode: str) -> None:
    """A sparse file: the kernel, the mapping and the reader see 6 GiB, the disk holds nothing."""
    rows = 6 * 2**30 // 90
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(64 + rows * 90)
    table = Table(Type.IQ4_NL, rows, 160, 90, (Segment(path, 64, 0, rows),))
    generator = np.random.default_rng(2)
    with open_rows(table, mode) as reader:
        reader.gather(generator.integers(0, rows, 512))
        before = open_descriptors(), residency.anonymous_bytes()
        peak = 0
        for number in range(10_000):
            reader.gather(generator.integers(0, rows, 16 if number % 2 else 512))
            if number % 50 == 0:
                peak = max(peak, residency.anonymous_bytes())
            if number % 2500 == 2499:
                reader.trim()
        assert peak - before[1] < 64 * MIB
        assert open_descriptors() == before[0]


def test_a_row_cache_keeps_its_budget_over_batches(table: Table) -> None:
    generator = np.random.default_rng(3)
    with RowCache(open_rows(table, "mmap", SETTINGS), budget_bytes=MIB) as cache:
        cache.gather(generator.integers(0, table.rows, 400))
        before = residency.anonymous_bytes()
        for _ in range(300):
            cache.gather(generator.integers(0, table.rows, 400))
        assert residency.anonymous_bytes() - before < 4 * MIB

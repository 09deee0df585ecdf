"""Counters against sources of their own: /proc/self/io, rusage, a counting system call, sets of Python integers."""

from __future__ import annotations

import resource
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import pytest

from fast.rows import MODES, RowCache, RowSettings, Table, counters, open_rows, residency, syscalls
from tests.fast.rows.tables import make_table, open_mode

PAGE = 4096
IDS = np.random.default_rng(4).integers(0, 3000, 700)
SETTINGS = RowSettings(inline_rows=8, workers=4, slice_reads=16, metering="full")
TIMES = ("plan_s", "read_s", "copy_s", "wall_s")


def pages_of(table: Table, ids: np.ndarray) -> set[tuple[Path, int]]:
    found = set()
    for row in set(ids.tolist()):
        segment, offset = table.place(row)
        found |= {(segment.path, page) for page in range(offset // PAGE, (offset + table.row_bytes - 1) // PAGE + 1)}
    return found


def device_bytes() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


class CountingKernel:
    """Counts system calls by name, and the bytes of reads it is given through kernel AIO and io_uring."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def __call__(self, name: str, *arguments: int) -> int:
        self.calls[name] += 1
        return syscalls.call(name, *arguments)


@pytest.mark.parametrize("segments", [1, 3])
@pytest.mark.parametrize("mode", list(MODES))
def test_counters_of_a_batch(tables: Callable[..., Table], mode: str, segments: int) -> None:
    table = tables(segments=segments)
    with open_mode(table, mode, SETTINGS) as reader:
        reader.gather(IDS)
        last = reader.last
        assert last.mode == last.effective_mode == mode
        assert last.fallback_reason is None
        assert last.rows_requested == IDS.size
        assert last.rows_unique == len(set(IDS.tolist()))
        assert last.pages_unique == len(pages_of(table, IDS))
        assert last.bytes_useful == IDS.size * 90
        assert last.cache_hits == 0
        assert all(getattr(last, name) >= 0 for name in TIMES)
        assert last.plan_s + last.read_s + last.copy_s <= last.wall_s
        assert set(last.as_dict()) >= {"rows_unique", "pages_unique", "effective_concurrency", *TIMES}


@pytest.mark.parametrize("mode", ["direct", "direct-uncached", "uring", "uring-uncached"])
def test_kernel_gets_many_reads_in_one_call(table: Table, mode: str) -> None:
    """With the settings that people use: a call for every few rows is what makes a batch slow."""
    with open_mode(table, mode, RowSettings()) as reader:
        reader.gather(IDS)
        assert 0 < reader.last.read_calls <= IDS.size / 25


@pytest.mark.parametrize("mode", ["direct", "direct-uncached", "uring", "uring-uncached", "prefetch"])
def test_calls_and_bytes_asked_are_those_the_kernel_got(table: Table, mode: str) -> None:
    kernel = CountingKernel()
    with open_mode(
        table, mode, RowSettings(inline_rows=8, workers=4, slice_reads=16, metering="full", syscall=kernel)
    ) as reader:
        reader.gather(IDS)
        kernel.calls.clear()
        reader.gather(IDS)
        if mode == "prefetch" and not kernel.calls["process_madvise"]:
            pytest.skip("this kernel has no process_madvise: advice is given range by range, past the counted door")
        made = sum(kernel.calls[name] for name in ("io_uring_enter", "io_submit", "io_getevents", "process_madvise"))
        assert reader.last.read_calls == made > 0
        unique, pages = reader.last.rows_unique, reader.last.pages_unique
        expected = {
            "direct": unique * 90,
            "uring": unique * 90,
            "prefetch": pages * PAGE,
        }
        if mode in expected:
            assert reader.last.bytes_asked == expected[mode]
        else:  # aligned windows: at least the rows, at most two blocks a row
            # type: ignore[attr-defined]
            assert unique * 90 <= reader.last.bytes_asked <= unique * 2 * reader._files.align_bytes


@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "resident"])
def test_bytes_from_the_device_are_those_of_proc_self_io(tmp_path: Path, mode: str) -> None:
    """A table that was evicted: what the kernel accounts to this process around the gather, and at least every page."""
    table = make_table(tmp_path, rows=(60_000,))
    _evict_or_skip(table)
    ids = np.random.default_rng(8).integers(0, 60_000, 300)
    with open_mode(table, mode, SETTINGS) as reader:
        before = device_bytes()
        reader.gather(ids)
        read = device_bytes() - before
        assert reader.last.bytes_device == read > 0
        if mode.endswith("-uncached"):
            assert read == reader.last.bytes_asked
            assert residency.resident_fraction(table) < 0.01  # the page cache stays clean
        else:
            assert read >= reader.last.pages_unique * PAGE
        if mode in ("mmap-random", "prefetch", "direct", "uring", "auto"):
            assert read == reader.last.pages_unique * PAGE  # no over-read
        reader.gather(ids)
        if reader.keeps_rows:
            assert reader.last.bytes_device == 0


def _evict_or_skip(table: Table) -> None:
    eviction = residency.make_cold(table)
    if not eviction.cold:
        pytest.skip(f"this file system keeps the file in memory ({eviction.resident:.0%} resident after eviction)")


def test_faults_are_those_of_rusage(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(60_000,))
    ids = np.arange(0, 60_000, 400)
    with open_rows(table, "mmap-random", SETTINGS) as reader:
        reader.gather(ids[:1])
        reader.trim()
        before = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
        reader.gather(ids)
        after = resource.getrusage(resource.RUSAGE_THREAD), resource.getrusage(resource.RUSAGE_SELF)
        last = reader.last
        # Rusage taken outside includes what the gather's own bookkeeping touches: a few pages at most.
        assert 0 <= after[0].ru_minflt - before[0].ru_minflt - last.minor_faults <= 16
        assert 0 <= after[1].ru_minflt - before[1].ru_minflt - last.process_minor_faults <= 16
        # At least one; how many depends on fault-around and on the size of the page cache's folios.
        assert last.minor_faults + last.major_faults >= 1
        reader.gather(ids)
        assert reader.last.minor_faults <= 4  # now in our page table


def test_cold_faults_are_major(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(60_000,))
    _evict_or_skip(table)
    ids = np.arange(0, 60_000, 400)
    with open_rows(table, "mmap-random", SETTINGS) as reader:
        reader.gather(ids)
        assert reader.last.major_faults == reader.last.pages_unique == len(pages_of(table, ids))


def test_totals_are_the_sum_of_the_batches(table: Table) -> None:
    with open_rows(table, "uring", SETTINGS) as reader:
        sums: Counter[str] = Counter()
        for size in (5, 100, 0, 700):
            reader.gather(IDS[:size])
            for name in (
                "rows_requested",
                "bytes_useful",
                "bytes_asked",
                "read_calls",
                "minor_faults",
                "rows_unique",
                "pages_unique",
            ):
                sums[name] += getattr(reader.last, name)
        totals = reader.totals
        assert {name: getattr(totals, name) for name in sums} == dict(sums)
        assert totals.batches == totals.batches_counted == 4
        reader.gather(IDS)
        assert (reader.totals.batches, reader.totals.batches_counted) == (5, 4)  # nobody asked about the fifth
        assert reader.last.rows_unique
        assert reader.totals.batches_counted == 5


def test_counters_do_not_see_ids_changed_afterwards(table: Table) -> None:
    ids = np.arange(50)
    with open_rows(table, "mmap", SETTINGS) as reader:
        reader.gather(ids)
        ids[:] = 0
        assert reader.last.rows_unique == 50


def test_cache_hits_are_those_of_a_python_dictionary(table: Table) -> None:
    """A cache large enough for everything: a hit is a row that was asked for before."""
    with RowCache(open_rows(table, "uring", SETTINGS), budget_bytes=32 << 20) as reader:
        seen: set[int] = set()
        rng = np.random.default_rng(6)
        for _ in range(30):
            ids = rng.integers(0, 400, 50)
            reader.gather(ids)
            expected = sum(int(row) in seen for row in ids)
            seen |= set(ids.tolist())
            assert reader.last.cache_hits == expected
        assert reader.totals.cache_hits > 500


def test_concurrency_is_between_none_and_all(tmp_path: Path) -> None:
    table = make_table(tmp_path, rows=(60_000,))
    for mode in ("uring", "direct", "uring-uncached", "direct-uncached"):
        _evict_or_skip(table)
        ids = np.random.default_rng(5).integers(0, 60_000, 400)
        with open_mode(table, mode, SETTINGS) as reader:
            reader.gather(ids)
            concurrency = reader.last.effective_concurrency
            assert concurrency is not None
            assert 1 < concurrency <= 400, mode


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize(("metering", "small", "large"), [("none", 0, 0), ("cheap", 0, 1), ("full", 1, 1)])
def test_metering_asks_the_kernel_for_what_its_level_says(
    table: Table, mode: str, metering: str, small: int, large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not asked for is None and not 0, in the sum too; nothing of /proc is read for it."""
    read: list[str] = []
    real = counters.Meter._device_bytes
    monkeypatch.setattr(counters.Meter, "_device_bytes", lambda self: (read.append("io"), real(self))[1])
    with open_mode(table, mode, RowSettings(metering=metering)) as reader:
        for ids, metered in ((IDS[:16], small), (IDS, large)):
            read.clear()
            reader.gather(ids)
            assert len(read) == 2 * metered
            for name in ("bytes_device", "minor_faults", "major_faults", "process_minor_faults"):
                assert (getattr(reader.last, name) is None) is not bool(metered), name
            assert reader.last.rows_requested == ids.size
            assert reader.last.rows_unique == len(set(ids.tolist()))
        assert (reader.totals.minor_faults is None) is not (metering == "full")
        assert reader.totals.rows_requested == 716
        assert set(reader.totals.as_dict()) == set(reader.last.as_dict())


@pytest.mark.parametrize("mode", ["resident", "auto", "uring", "cache"])
def test_the_time_of_a_gather_is_what_its_caller_waits(table: Table, mode: str) -> None:
    """Of many gathers the time outside, of the call itself, is all that is missing."""
    settings = RowSettings(cache_bytes=1 << 20) if mode == "cache" else SETTINGS
    with open_rows(table, "mmap" if mode == "cache" else mode, settings) as reader:
        for _ in range(300):
            reader.gather(IDS[:16])
        started, inside = perf_counter(), reader.totals.wall_s
        for _ in range(1000):
            reader.gather(IDS[:16])
        waited = perf_counter() - started
        assert 0.8 * waited <= reader.totals.wall_s - inside <= waited
        assert 0 < reader.last.wall_s < waited


def test_a_gather_waits_for_the_lock_inside_its_time(table: Table) -> None:
    with open_rows(table, "mmap") as reader:
        with reader._lock:
            waiting = threading.Thread(target=reader.gather, args=(IDS,))
            waiting.start()
            sleep(0.05)
        waiting.join()
        assert reader.last.wall_s >= 0.04

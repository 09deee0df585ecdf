"""Any composition of readers and caches, used by any number of threads: right rows, or an error that says closed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from time import monotonic

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, multiple, rule

from fast.rows import MODES, RowCache, RowReader, RowSettings, Table, open_rows
from model_file.errors import InputError
from tests.fast.rows.tables import make_table, pread_rows

# Few rows are a large batch already, and take more than one portion of the staging memory.
SETTINGS = RowSettings(inline_rows=8, queue_depth=16, workers=3, slice_reads=16, staging_bytes=1 << 16, advise_rows=64)
SLOT_BYTES = 90 + 8
HUNG_AFTER_S = 60
Rows = npt.NDArray[np.uint8]


@pytest.fixture(scope="module", autouse=True)
def short_turns() -> Iterator[None]:
    """Threads take turns 500 times as often as usual, so that few batches meet in every order."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def rows(tables: Callable[..., Table]) -> Rows:
    """Every row of the table, by plain preads."""
    return pread_rows(tables(), np.arange(tables().rows))


def at_once(*works: Callable[[], None]) -> list[BaseException]:
    """Run every work in a thread of its own; what they raised. A thread that never ends fails the test."""
    raised: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    deadline = monotonic() + HUNG_AFTER_S
    for thread in threads:
        thread.join(timeout=max(0.0, deadline - monotonic()))
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


def gathers(reader: RowReader, rows: Rows, seed: int, batches: int, closing: bool = False) -> Callable[[], None]:
    """Gather small and large batches and compare; `closing`: somebody may close the reader meanwhile."""

    def work() -> None:
        for step in range(batches):
            ids = np.random.default_rng([seed, step]).integers(0, len(rows), (5, 300, 40)[step % 3])
            try:
                found = reader.gather(ids)
            except InputError as error:
                assert closing, error
                assert "is closed" in str(error)
                return
            wrong = np.flatnonzero((found != rows[ids]).any(axis=1))
            assert not wrong.size, f"{reader.mode}: {wrong.size} of {ids.size} rows are wrong in batch {step}"

    return work


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("front", ["alone", "a cache and its reader", "two caches"])
def test_eight_threads_get_right_rows(table: Table, rows: Rows, mode: str, front: str) -> None:
    """Preload, trim and the counters are asked for in between."""
    with open_rows(table, mode, SETTINGS) as reader:
        caches = [RowCache(reader, 64 * SLOT_BYTES) for _ in range(2)]
        used = {"alone": [reader], "a cache and its reader": [reader, caches[0]], "two caches": caches}[front]

        def disturb() -> None:
            for number in range(12):
                reader.preload(np.arange(number, number + 100))
                used[-1].trim(number % 2 * 65_536)
                assert used[-1].totals.batches >= 0

        works = [gathers(used[seed % len(used)], rows, seed, 24) for seed in range(8)]
        assert at_once(*works, disturb) == []


@pytest.mark.parametrize("mode", list(MODES))
@pytest.mark.parametrize("cached", [False, True])
def test_a_close_meanwhile_leaves_right_rows_or_says_closed(table: Table, rows: Rows, mode: str, cached: bool) -> None:
    """Descriptors that are closed under a gather may be another file's an instant later: another reader opens at once.

    Its rows must not come out of the first one's table.
    """
    for round_ in range(6):
        reader = open_rows(table, mode, SETTINGS)
        fronts = [RowCache(reader, 64 * SLOT_BYTES), reader] if cached else [reader]
        opened: list[RowReader] = []

        def close(fronts: list[RowReader] = fronts, opened: list[RowReader] = opened, round_: int = round_) -> None:
            threading.Event().wait(0.002 * round_)
            fronts[round_ % len(fronts)].close()
            opened.append(open_rows(table, mode, SETTINGS))
            gathers(opened[0], rows, 99, 6)()

        works = [gathers(fronts[seed % len(fronts)], rows, seed, 60, closing=True) for seed in range(4)]
        assert at_once(*works, close) == []
        for one in (*fronts, *opened):
            one.close()


class Compositions(RuleBasedStateMachine):
    """Readers, caches in front of them (several of one, and of each other), closed and opened, and threads on them."""

    readers = Bundle("readers")
    table: Table
    expected: Rows

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[RowReader] = []
        self.beneath: dict[int, RowReader] = {}
        self.closed: set[int] = set()

    @rule(target=readers, mode=st.sampled_from(list(MODES)))
    def open_reader(self, mode: str) -> RowReader:
        self.everything.append(open_rows(self.table, mode, SETTINGS))
        return self.everything[-1]

    @rule(target=readers, reader=readers, slots=st.sampled_from([1, 16, 4096]), count=st.integers(1, 2))
    def put_caches(self, reader: RowReader, slots: int, count: int) -> object:
        caches = [RowCache(reader, slots * SLOT_BYTES) for _ in range(count)]
        self.everything += caches
        self.beneath |= {id(cache): reader for cache in caches}
        return multiple(*caches)

    @rule(used=st.lists(readers, min_size=1, max_size=4), seed=st.integers(0, 99))
    def gather(self, used: list[RowReader], seed: int) -> None:
        works = [
            gathers(reader, self.expected, seed + place, 4, self.is_closed(reader)) for place, reader in enumerate(used)
        ]
        assert at_once(*works) == []

    @rule(reader=readers, start=st.integers(0, 2000))
    def preload(self, reader: RowReader, start: int) -> None:
        if not self.is_closed(reader):
            reader.preload(np.arange(start, start + 150))

    @rule(reader=readers, budget=st.sampled_from([0, 65_536]))
    def trim(self, reader: RowReader, budget: int) -> None:
        assert reader.trim(budget) >= 0

    @rule(reader=consumes(readers), used=st.lists(readers, max_size=2))
    def close(self, reader: RowReader, used: list[RowReader]) -> None:
        works = [gathers(one, self.expected, place, 3, closing=True) for place, one in enumerate([reader, *used])]
        assert at_once(*works, reader.close) == []
        while reader is not None:  # a cache closes what it stands in front of
            self.closed.add(id(reader))
            reader = self.beneath.get(id(reader))  # type: ignore[assignment]

    def is_closed(self, reader: RowReader | None) -> bool:
        while reader is not None:
            if id(reader) in self.closed:
                return True
            reader = self.beneath.get(id(reader))
        return False

    def teardown(self) -> None:
        for reader in reversed(self.everything):
            reader.close()


def test_any_composition_gives_right_rows(table: Table, rows: Rows) -> None:
    machine = type("Machine", (Compositions,), {"table": table, "expected": rows})
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine, settings=settings(max_examples=30, stateful_step_count=15, deadline=None, derandomize=True)
    )


def test_the_comparison_can_fail(tmp_path_factory: pytest.TempPathFactory, rows: Rows) -> None:
    other = make_table(tmp_path_factory.mktemp("other"), seed=8)
    with open_rows(other, "mmap") as reader:
        (error,) = at_once(gathers(reader, rows, 1, 1))
        assert "5 of 5 rows are wrong in batch 0" in str(error)

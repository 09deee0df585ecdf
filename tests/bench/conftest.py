"""One engine and one reader per mode for all benchmarks, and what their file has to say of the machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.measure.cells import Arm, Cell, Workload
from harness.measure.depths import depth_state, make_engine
from harness.measure.machine import machine_facts
from harness.measure.rounds import ProvenRounds
from harness.measure.stream import row_ids
from harness.measure.trend.machine import key_facts
from harness.measure.usage import Usage
from harness.measure.workbench import GatherBench, ModelBench, Workbench
from harness.synth import cache_folder, ensure_model

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine

CONTEXT = 4096 + 512 + 64
_STARTED = pytest.StashKey[tuple[Usage, float]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plant-slowdown",
        action="append",
        default=[],
        metavar="CELL=FACTOR",
        help="Make one cell slower by that factor, to prove that the trend reports it.",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[_STARTED] = (Usage.now(), time.perf_counter())


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Measure nothing while the shape checks of the other tests are on: `--confcutdir tests/bench` leaves them out."""
    known = [item.name for item in items]
    for text in config.getoption("--plant-slowdown"):
        cell, _, factor = text.rpartition("=")
        if not any(name.endswith(f"-{cell}]") for name in known) or not factor.replace(".", "", 1).isdecimal():
            raise pytest.UsageError(f"--plant-slowdown {text}: expected CELL=FACTOR with the name of a cell to measure")
    if "tests.conftest" in sys.modules or "conftest" in sys.modules:
        apart = pytest.mark.skip(
            reason="measured by `nox -s bench`, without the shape checks that slow every call down"
        )
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(apart)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    import jax

    facts = key_facts(machine_facts(ensure_model("nano")), jax.local_devices()[0].device_kind)
    machine_info.clear()
    before, started = config.stash[_STARTED]
    used = before.until(Usage.now(), time.perf_counter() - started)
    machine_info |= {"plegate": facts, "other_cpu": used["other_cpu"]}


class Station:
    """The model of the benchmarks, opened once; each case takes the reader of its mode."""

    def __init__(self) -> None:
        self.cache_dir = cache_folder()
        self.bench = Workbench(
            ensure_model("nano"),
            Arm("all", "prefetch"),
            Workload("gather", 1),
            depth=0,
            context=CONTEXT,
            cache_dir=self.cache_dir,
        )
        self.readers = {"prefetch": self.bench.handle.reader}
        self._engine: Any = None
        self._saved: dict[int, Any] = {}
        self._cases: dict[Cell, Case] = {}

    def reader(self, mode: str) -> Any:
        from fast.rows import open_rows

        if mode not in self.readers:
            reader = open_rows(self.bench.table, mode)
            if reader.effective_mode != mode and mode != "auto":
                reader.close()
                pytest.skip(f"{mode} cannot run here: {reader.fallback_reason}")
            self.readers[mode] = reader
        return self.readers[mode]

    def case(self, cell: Cell, mode: str) -> Case:
        if cell not in self._cases:
            self._cases[cell] = Case(self, cell, mode, self._bench_of(cell))
        return self._cases[cell]

    def _bench_of(self, cell: Cell) -> Any:
        if cell.workload.kind == "gather":
            bench = GatherBench(self.bench.handle)
            bench.heads = self.bench.config.ple.hash
            return bench
        tokens = self.bench.tokens()
        if self._engine is None:
            self._engine = self._make_engine()
            self._engine.warm_up(with_logits=False)
        if cell.depth not in self._saved:
            context = tokens.context(cell.depth)
            self._saved[cell.depth] = depth_state(
                self._engine, self.bench.file, context, self.cache_dir, self._make_engine
            )
        lead_in = tokens.measured(cell)
        return ModelBench(self._engine, cell.workload, self._saved[cell.depth], lead_in)

    def _make_engine(self) -> FastEngine:
        return make_engine(self.bench.file, self.bench.handle, CONTEXT, self.bench.arm, self.cache_dir)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        for reader in self.readers.values():
            reader.close()


class Case:
    """One cell in this process: its cache state is made and proven before each round, and checked after it."""

    def __init__(self, station: Station, cell: Cell, mode: str, bench: Any) -> None:
        self.station, self.cell, self.mode, self.bench = station, cell, mode, bench
        tokens = station.bench.tokens()
        self.measured = tokens.measured(cell)
        station.bench.handle.reader = station.reader(mode)
        bench.warm_up(tokens.warm_up(cell.workload, 512))
        self.bench.place()
        run = bench.run(self.measured, cell.workload.tokens)
        ids = row_ids(station.bench.config.ple.hash, run.fed, tokens.before(cell))
        self.rounds = ProvenRounds(station.bench.table, ids, state=cell.state, mode=mode, name=cell.id)

    def prepare(self) -> None:
        self.station.bench.handle.reader = self.station.reader(self.mode)
        self.bench.place()
        self.rounds.prepare(self.station.readers.values())

    def check(self) -> None:
        self.rounds.check()

    def run(self, often: int) -> None:
        for _ in range(often):
            self.bench.run(self.measured, self.cell.workload.tokens)


@pytest.fixture(scope="session")
def station() -> Iterator[Station]:
    opened = Station()
    yield opened
    opened.close()


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Callable[[str, Callable[[], None]], Callable[[], None]]:
    """Wraps what is measured: a planted cell takes its time and a share of it more."""
    factors = dict(text.rpartition("=")[::2] for text in request.config.getoption("--plant-slowdown"))

    def wrap(name: str, call: Callable[[], None]) -> Callable[[], None]:
        if name not in factors:
            return call
        factor = float(factors[name])

        def slower() -> None:
            started = time.perf_counter()
            call()
            until = started + factor * (time.perf_counter() - started)
            while time.perf_counter() < until:
                pass

        return slower

    return wrap


@pytest.fixture(scope="session")
def model_path() -> Path:
    return ensure_model("nano")

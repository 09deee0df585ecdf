"""One run of `plegate bench` for all benchmarks: pytest-benchmark reports what its processes measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.measure.cells import Cell
from harness.measure.machine import machine_facts, model_facts
from harness.measure.runner import Runner
from harness.measure.store import Results, RunPlan, Store
from harness.measure.trend.runs import name_of, run_facts, times_of
from harness.synth import cache_folder, ensure_model
from tests.bench.cells import MATRICES

_MEASURED = pytest.StashKey[list[Results]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--plant-slowdown",
        action="append",
        default=[],
        metavar="CELL=FACTOR",
        help="Make one cell slower by that factor, to prove that the trend reports it.",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Measure nothing while the shape checks of the other tests are on: `--confcutdir tests/bench` leaves them out."""
    known = [item.name for item in items]
    for text in config.getoption("--plant-slowdown"):
        cell, _, factor = text.rpartition("=")
        if not any(name.endswith(f"[{cell}]") for name in known) or not factor.replace(".", "", 1).isdecimal():
            raise pytest.UsageError(f"--plant-slowdown {text}: expected CELL=FACTOR with the name of a cell to measure")
    if "tests.conftest" in sys.modules or "conftest" in sys.modules:
        apart = pytest.mark.skip(
            reason="measured by `nox -s bench`, without the shape checks that slow every call down"
        )
        for item in items:
            if item.path.is_relative_to(Path(__file__).parent):
                item.add_marker(apart)


def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    machine_info.clear()
    machine_info |= run_facts(config.stash.get(_MEASURED, []), machine_facts(ensure_model("nano")))


@pytest.fixture(scope="session")
def measured(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """Seconds of every cell by name, one value a repeat."""
    factors = dict(text.rpartition("=")[::2] for text in pytestconfig.getoption("--plant-slowdown"))

    def slower(cell: Cell) -> float:
        return float(factors.get(name_of(cell), 1))

    model = ensure_model("nano")
    pytestconfig.stash[_MEASURED] = found = []
    for number, matrix in enumerate(MATRICES):
        store = Store(tmp_path_factory.mktemp("runs") / str(number))
        needs_model = any(work.needs_model for work in matrix.workloads)
        plan = RunPlan(matrix, model_facts(model, needs_model), machine_facts(model), 0.5)
        store.create(plan)
        found.append(Runner(store, plan, model, cache_folder(), lambda *_: None, slower).run())
    return {name: times for results in found for name, times in times_of(results).items()}

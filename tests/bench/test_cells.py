"""The cells of `plegate bench` as benchmarks: `nox -s bench` runs them, `nox -s trend` compares them with earlier runs.

Each cell is measured in several passes, minutes apart: what disturbs a machine for a while disturbs one pass.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fast.rows import MODES
from harness.measure.cells import COLD, STATES, WARM, Cell, Workload
from harness.measure.protocol import OWN_MEMORY, PAST_THE_CACHE
from harness.measure.trend.runs import PROBE

pytestmark = pytest.mark.slow
PASSES = 3
GATHER, PREFILL, DECODE = Workload("gather", 512), Workload("prefill", 256), Workload("decode", 16)
MODEL_MODES = ("prefetch", "mmap-random", "auto")
ROUNDS = {"gather": 8, "prefill": 4, "decode": 4}  # in each pass, see harness.measure.trend.compare.SIGNIFICANCE
WARM_GATHERS = 20  # in one round: a single one takes less than a millisecond
CELLS = [
    Cell(mode, state, 0, GATHER, 0)
    for mode in MODES
    for state in STATES
    if state == WARM or mode not in OWN_MEMORY  # what holds the table in its own memory is never cold
]
CELLS += [
    Cell(mode, state, depth, workload, 0)
    for workload in (PREFILL, DECODE)
    for depth in (0, 4096)
    for state in STATES
    for mode in MODEL_MODES
]


def _name(cell: Cell) -> str:
    return f"{cell.arm}-{cell.state}-{cell.workload.name}-d{cell.depth}"


@pytest.mark.parametrize("cell", CELLS, ids=_name)
@pytest.mark.parametrize("number", range(PASSES))
def test_cell(benchmark: Any, station: Any, planted: Any, cell: Cell, number: int) -> None:
    case = station.case(cell, cell.arm)
    short = (cell.workload.kind, cell.state) == ("gather", WARM) and cell.arm not in PAST_THE_CACHE
    often = WARM_GATHERS if short else 1
    benchmark.extra_info |= {
        "cell": _name(cell),
        "mode": cell.arm,
        "state": cell.state,
        "depth": cell.depth,
        "workload": cell.workload.name,
        "pass": number,
        "calls": often,
    }
    call = planted(_name(cell), lambda: case.run(often))
    rounds = ROUNDS[cell.workload.kind]
    benchmark.pedantic(call, setup=case.prepare, teardown=case.check, rounds=rounds, iterations=1)


def _compute(_: Path) -> Callable[[], None]:
    matrix = np.random.default_rng(0).random((384, 384), np.float32)
    return lambda: [matrix @ matrix for _ in range(20)] and None


def _read(path: Path) -> Callable[[], None]:
    """Reads of pages in memory: what a warm row costs at least."""
    offsets = np.random.default_rng(0).integers(0, path.stat().st_size - 4096, 4096).tolist()

    def read() -> None:
        fd = os.open(path, os.O_RDONLY)
        for offset in offsets:
            os.pread(fd, 90, offset)
        os.close(fd)

    return read


def _read_from_device(path: Path) -> Callable[[], None]:
    """Reads past the page cache, one after the other: what a cold row costs at least."""
    pages = np.random.default_rng(0).integers(0, path.stat().st_size // 4096, 256).tolist()
    memory = mmap.mmap(-1, 4096)

    def read() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        for page in pages:
            os.preadv(fd, [memory], page * 4096)
        os.close(fd)

    return read


TASKS = {"compute": (WARM, _compute), "read": (WARM, _read), "device": (COLD, _read_from_device)}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("number", range(PASSES))
def test_probe(benchmark: Any, model_path: Path, task: str, number: int) -> None:
    """Fixed tasks without any code of this project: when these are slower, the machine is."""
    state, make = TASKS[task]
    call = make(model_path)
    try:
        call()
    except OSError as error:
        pytest.skip(f"the file system of {model_path.name} has no reads past the page cache: {error.strerror}")
    benchmark.extra_info |= {
        "cell": f"{PROBE}-{task}",
        "mode": task,
        "state": state,
        "depth": 0,
        "workload": PROBE,
        "pass": number,
    }
    benchmark.pedantic(call, rounds=10, iterations=1)

"""The cells of `plegate bench` as benchmarks: `nox -s bench` runs them, `nox -s trend` compares them with earlier runs.

The cells are measured by one run of `plegate bench`, with its processes and its proofs. Each test hands the times of
its cell to pytest-benchmark, whose clock here is what the run measured.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.measure.cells import COLD, WARM, Cell
from harness.measure.trend.runs import PROBE, info_of, name_of
from harness.synth import ensure_model
from tests.bench.cells import followed

pytestmark = pytest.mark.slow
_now = [0.0]


def measured_clock() -> float:
    """Seconds that the cells have taken so far."""
    return _now[0]


@pytest.mark.benchmark(timer=measured_clock)
@pytest.mark.parametrize("cell", followed(), ids=name_of)
def test_cell(benchmark: Any, measured: dict[str, list[float]], cell: Cell) -> None:
    times = measured.get(name_of(cell), [])
    if not times:
        pytest.skip(f"{cell.arm} cannot run here")
    benchmark.extra_info |= info_of(cell)
    left = iter(times)

    def repeat() -> None:
        _now[0] += next(left)

    benchmark.pedantic(repeat, rounds=len(times), iterations=1)


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
@pytest.mark.parametrize("number", range(2))
def test_probe(benchmark: Any, task: str, number: int) -> None:
    """Fixed tasks without any code of this project: when these are slower, the machine is."""
    state, make = TASKS[task]
    model_path = ensure_model("nano")
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

"""What `nox -s bench` measures: the presets of `plegate bench` that the trend follows."""

from __future__ import annotations

from harness.engines.arms import parse_arm
from harness.measure.cells import COLD, Cell
from harness.measure.plan import PRESETS, Matrix
from harness.measure.worker.proof import OWN_MEMORY

REPEATS, BLOCKS = 6, 4
MATRICES = [
    Matrix(tuple(map(parse_arm, preset["arms"])), preset["states"], preset["depths"], preset["workloads"], REPEATS,
           BLOCKS, twin=False)
    for preset in (PRESETS["trend-rows"], PRESETS["trend-model"])
]  # fmt: skip


def followed() -> list[Cell]:
    """One cell for each that is followed; what holds the table in its own memory is never cold."""
    cells = [cell for matrix in MATRICES for cell in matrix.cells_of(0)]
    return [cell for cell in cells if not cell.block and not (cell.state == COLD and cell.arm in OWN_MEMORY)]

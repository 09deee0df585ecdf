"""How long a run will take, from a few cells measured first, and how long is left, from those measured so far."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np

from harness.measure.cells import Cell, Workload
from harness.measure.plan import Matrix

Timed = tuple[Cell, float]


def preparation_cells(matrix: Matrix) -> list[Cell]:
    """One cell per depth, and per kind of workload at the first: they make what is made once and kept.

    They and those of the calibration have a repeat that no cell of the run has, and so other tokens.
    """
    state = matrix.states[0]
    commits = {arm.commit: arm for arm in reversed(matrix.arms)}
    kinds = {work.kind: work for work in reversed(matrix.workloads) if work.kind != "gather"}
    cells = []
    for arm in commits.values():
        for place, kind in enumerate(sorted(kinds, reverse=True)):  # prefill first: its engine makes the states
            depths = matrix.depths if place == 0 else matrix.depths[:1]
            cells += [Cell(arm.name, state, depth, kinds[kind], matrix.repeats) for depth in depths]
    return cells


def calibration_cells(matrix: Matrix) -> list[Cell]:
    """The cells whose times stand for all: the baseline at both ends and in both states, every arm once."""
    base, state, work = matrix.baseline.name, matrix.states[0], matrix.workloads[0]
    ends, repeat = sorted({min(matrix.depths), max(matrix.depths)}), matrix.repeats
    cells = [Cell(base, state, depth, each, repeat) for each in matrix.workloads for depth in ends]
    cells += [Cell(base, other, ends[0], each, repeat) for other in matrix.states[1:] for each in matrix.workloads]
    cells += [Cell(arm.name, state, ends[0], work, repeat) for arm in matrix.arms[1:]]
    return cells


class Estimate:
    """Seconds per cell: what its workload takes at its depth, plus what its state and its arm add. Units: seconds."""

    def __init__(self, matrix: Matrix, measured: Sequence[Timed]) -> None:
        self._base, self._state = matrix.baseline.name, matrix.states[0]
        self._measured = list(measured)
        self._reference: dict[Workload, list[tuple[int, float]]] = {}
        for work in matrix.workloads:
            found: dict[int, list[float]] = {}
            for cell, seconds in self._of(self._base, self._state, work):
                found.setdefault(cell.depth, []).append(seconds)
            self._reference[work] = sorted((depth, median(times)) for depth, times in found.items())
        self._added: dict[str, float] = {}
        for arm in matrix.all_arms:
            self._added[arm.name] = self._difference([c for c in self._measured if c[0].arm == arm.name], self._state)
        for state in matrix.states:
            own = [c for c in self._measured if c[0].state == state and c[0].arm == self._base]
            self._added[state] = self._difference(own, state)

    def _of(self, arm: str, state: str, work: Workload) -> list[Timed]:
        return [c for c in self._measured if (c[0].arm, c[0].state, c[0].workload) == (arm, state, work)]

    def _difference(self, cells: Sequence[Timed], state: str) -> float:
        """Mean of what the cells take more than the baseline in the first state."""
        more = [seconds - self._at(cell) for cell, seconds in cells if cell.state == state]
        return fmean(more) if more else 0.0

    def _at(self, cell: Cell) -> float:
        points = self._reference.get(cell.workload) or [
            (0, fmean(s for _, s in self._measured) if self._measured else 0.0)
        ]
        return float(np.interp(cell.depth, [depth for depth, _ in points], [seconds for _, seconds in points]))

    def seconds(self, cell: Cell) -> float:
        """What one cell will take."""
        return max(0.1, self._at(cell) + self._added.get(cell.arm, 0.0) + self._added.get(cell.state, 0.0))

    def total(self, cells: Sequence[Cell]) -> float:
        """What all of them will take."""
        return sum(self.seconds(cell) for cell in cells)


class TimeLeft:
    """The estimate, corrected by how the finished cells compared with it."""

    def __init__(self, estimate: Estimate) -> None:
        self._estimate = estimate
        self._expected = self._took = 0.0

    def finished(self, cell: Cell, seconds: float) -> None:
        """Count a finished cell."""
        self._expected += self._estimate.seconds(cell)
        self._took += seconds

    def left(self, cells: Sequence[Cell]) -> float:
        """Seconds for the cells that are left."""
        # The first few cells say little: they are mixed with as much of the estimate as half a minute of it.
        weight = 30.0
        factor = (self._took + weight) / (self._expected + weight)
        return factor * self._estimate.total(cells)


def worth_calibrating(matrix: Matrix, cells: Sequence[Cell]) -> bool:
    """A run of few cells is measured sooner than calibrated: then one cell stands for all."""
    return len(cells) >= 3 * len(calibration_cells(matrix))

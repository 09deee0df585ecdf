"""Which cells, in which order: all arms of a block one after the other, the next block backwards (ABBA)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.measure.cells import TWIN, Arm, Cell, Workload
from model_file.errors import InputError

DEPTHS = (0, 4096, 16384, 32768)
WORKLOADS = (Workload("prefill", 512), Workload("prefill", 2048), Workload("decode", 128))
ARMS = ("prefetch", "mmap", "mmap-random", "uring", "auto", "resident")  # the first one is the baseline
REPEATS = 5  # the fewest from which a 90% rank interval of a median can be formed


@dataclass(frozen=True)
class Matrix:
    """The full matrix of a run. arms[0] is the baseline; `twin` repeats it at the other end of every block."""

    arms: tuple[Arm, ...]
    states: tuple[str, ...]
    depths: tuple[int, ...]
    workloads: tuple[Workload, ...]
    repeats: int
    twin: bool = True

    def __post_init__(self) -> None:
        for name in ("arms", "states", "depths", "workloads"):
            values = getattr(self, name)
            if not values:
                raise InputError(f"the benchmark has no {name}, expected at least one")
            if len(set(values)) != len(values):
                raise InputError(f"the benchmark's {name} name one twice, expected each once: repeats are --repeats N")
        if self.repeats < 1:
            raise InputError(f"--repeats {self.repeats}: expected at least 1, and {REPEATS} for any claim")
        if min(self.depths) < 0:
            raise InputError(f"--depth {min(self.depths)}: expected 0 or more tokens")

    @property
    def baseline(self) -> Arm:
        """What all others are compared with."""
        return self.arms[0]

    @property
    def all_arms(self) -> tuple[Arm, ...]:
        """The arms of one block in order: the baseline at one end, its twin at the other."""
        twin = (replace(self.baseline, name=self.baseline.name + TWIN),) if self.twin else ()
        return self.arms + twin

    @property
    def context(self) -> int:
        """Positions that a sequence needs room for: the deepest cell, what is fed before a decode, and its warm-up."""
        longest = max((work.tokens for work in self.workloads if work.kind != "gather"), default=0)
        return max(self.depths) + longest + 3 * LEAD_IN


LEAD_IN = 16  # tokens fed before a decode, so that it continues something at depth 0 too


def order(matrix: Matrix) -> list[Cell]:
    """Every cell in the order of measuring: repeats outermost, so that a run that is stopped has whole repeats.

    A block is one repeat of one state, depth and workload. Its arms run forwards or backwards in turn, and each block
    turns round from repeat to repeat: what drifts with time hits every arm as often early as late.
    """
    cells = []
    for repeat in range(matrix.repeats):
        number = 0
        for depth in matrix.depths:
            for workload in matrix.workloads:
                for state in matrix.states:
                    arms = _turned(matrix.all_arms, (repeat + number) % 2 == 1)
                    cells += [Cell(arm.name, state, depth, workload, repeat) for arm in arms]
                    number += 1
    return cells


def _turned(arms: Sequence[Arm], backwards: bool) -> Sequence[Arm]:
    return arms[::-1] if backwards else arms

"""What became slower: by factor and by interval, against the earlier runs of the same machine.

Probes are fixed tasks that run no code of this project. They say how fast the machine was, and excuse what they
explain. Nothing else is taken out of a run. A cell or a whole run that was slower is left out of later comparisons, and
a cell that was there once is missed in all later runs, until it is as before or somebody accepts it (`--accept`).
A cell is compared with the last runs and with the first ones: the second comparison finds a slow creep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log
from statistics import median
from typing import Self

from harness.errors import CannotRun
from harness.measure.cells import COLD
from harness.measure.statistics import Spread, spread
from harness.measure.trend.runs import BenchRun, Measured, differences

FACTOR = 1.25  # smaller changes of one cell are not reported: two runs of the same code differ by up to 1.2
WHOLE_FACTOR = 1.15  # of the middle of all cells, which differs by less than 1.05
STEADY = 1.10  # a probe that moved by more is reported
BUSY_CORES = 0.5  # a run beside which others kept more than this busy says nothing about the code
EARLIER_RUNS = 5  # how many of the first and of the last earlier runs a new one is compared with
MAD_TO_SIGMA = 1.4826  # of a normal distribution
FEWEST_FOR_WHOLE = 8  # cells from which a whole run can be called slower


@dataclass(frozen=True)
class Change:
    """A cell in the new run against the earlier ones. Units: seconds; factor above 1 is slower.

    factor: with what the probes excuse taken out. limit: the factor to be exceeded here, from how much the
    earlier runs differ among themselves in this cell, and the quieter cells of the new one from them. spread: of the
    repeats' factors, with the interval of `harness.measure.statistics`. runs: what it was compared with.
    crept: slower than the first runs, and not than the last.
    """

    cell: Measured
    before_s: float
    now_s: float
    factor: float
    limit: float
    spread: Spread
    runs: tuple[BenchRun, ...] = field(repr=False)
    crept: bool = False

    @property
    def slower(self) -> bool:
        """A regression."""
        return self.factor > self.limit and self.spread.excludes_one

    @property
    def faster(self) -> bool:
        """An improvement."""
        return self.factor < 1 / self.limit and self.spread.excludes_one


@dataclass
class Verdict:
    """A new run against earlier ones, the oldest first; each cell says which of them it was compared with.

    probes: how many times as long as usual each of them took, by name.

    whole: the middle of all factors. scatter: how far apart the half of the cells is that changed most alike, in
    logarithms. busy: earlier runs that were left out because the machine was.
    """

    new: BenchRun
    earlier: list[BenchRun]
    changes: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    whole: float = 1.0
    scatter: float = 0.0
    busy: list[BenchRun] = field(default_factory=list)
    probes: dict[str, float] = field(default_factory=dict)

    @property
    def slower(self) -> list[Change]:
        """The regressions, the worst first."""
        return sorted((c for c in self.changes if c.slower), key=lambda c: -c.factor)

    @property
    def faster(self) -> list[Change]:
        """The improvements, the best first."""
        return sorted((c for c in self.changes if c.faster), key=lambda c: c.factor)

    @property
    def least(self) -> float:
        """The smallest factor of a single cell that is reported in this run."""
        return max(FACTOR, exp(3 * self.scatter))

    @property
    def everything_slower(self) -> bool:
        """Whether the whole run is slower and the probes do not explain it."""
        return self.whole > WHOLE_FACTOR

    @property
    def regressed(self) -> bool:
        """Whether there is anything that has to be looked at, and nobody has accepted it."""
        return not self.new.accepted and bool(self.slower or self.missing or self.everything_slower)


def compare(new: BenchRun, earlier: Sequence[BenchRun], busy_too: bool = False) -> Verdict:
    """The verdict on a run. Raises: CannotRun without an earlier run, or when the machine was busy or another."""
    quiet = [run for run in earlier if busy_too or run.other_cpu <= BUSY_CORES]
    if not quiet:
        busy = f" ({len(earlier)} were made while the machine was busy)" if earlier else ""
        raise CannotRun(
            f"there is no earlier run to compare with{busy}: `nox -s bench` on the commit to compare with first"
        )
    if not busy_too and not new.other_cpu <= BUSY_CORES:
        raise CannotRun(
            f"other processes kept {new.other_cpu:.1f} cores busy during the new run, expected at most {BUSY_CORES}: "
            "nothing can be said of the code; run `nox -s bench` again on an idle machine, or compare with --busy-too"
        )
    for run in quiet:
        if unlike := differences(new.facts, run.facts):
            raise CannotRun(
                f"{run.path.name} is of another machine, speeds of two machines are not compared: {'; '.join(unlike)}"
            )
    accepted = max((place for place, run in enumerate(quiet) if run.accepted), default=0)
    since = quiet[accepted:]  # what was accepted is what later runs are measured by
    good: dict[str, list[BenchRun]] = {}
    for place, run in enumerate(since):
        judged = _judge(run, since[:place], good)
        if judged.everything_slower:
            continue
        for name in run.cells.keys() - {change.cell.name for change in judged.slower}:
            good.setdefault(name, []).append(run)
    verdict = _judge(new, since, good)
    verdict.busy = [run for run in earlier if run not in quiet]
    return verdict


def _judge(new: BenchRun, earlier: Sequence[BenchRun], good: dict[str, list[BenchRun]]) -> Verdict:
    """good: for every cell the earlier runs in which it was not slower, oldest first."""
    verdict = Verdict(new, list(earlier))
    known = {name for run in earlier for name in run.cells}
    verdict.missing = sorted(known - new.cells.keys())
    verdict.added = sorted(n for n, cell in new.cells.items() if n not in (known if cell.probe else good))
    machine = _Machine(earlier[-EARLIER_RUNS:])
    verdict.probes = {cell.info["mode"]: machine.ratio(new, [cell.name]) for cell in new.cells.values() if cell.probe}
    own = [cell for cell in new.cells.values() if not cell.probe and good.get(cell.name)]
    last = _excused([_Before.of(cell, new, good[cell.name][-EARLIER_RUNS:]) for cell in own])
    first = _excused([_Before.of(cell, new, good[cell.name][:EARLIER_RUNS]) for cell in own])
    if len(own) >= FEWEST_FOR_WHOLE:
        factors = [max(each.factor for each in pair) for pair in zip(last, first, strict=True)]
        verdict.whole = median(factors)
        verdict.scatter = _shortest_half([log(factor) for factor in factors])
    least = verdict.least
    for cell, *pair in zip(own, last, first, strict=True):
        late, early = (_change(cell, before, least) for before in pair)
        worse = max(late, early, key=lambda change: change.factor)
        verdict.changes.append(late if late.slower else replace(early, crept=True) if early.slower else worse)
    return verdict


def _shortest_half(values: Sequence[float]) -> float:
    """The shortest distance within which half of the values lie.

    Of 20 to 40 values of a normal distribution it is about a standard deviation. It is not moved by what all have in
    common, nor by what any other half did.
    """
    ordered, half = sorted(values), len(values) // 2
    return min(high - low for low, high in zip(ordered, ordered[half - 1 :], strict=False))


@dataclass(frozen=True)
class _Before:
    """A cell in earlier runs. times: the undisturbed ones of each run. factor: the new run against them.

    device: whether the cell hangs on the device. probes: how many times as long as usual its probes took.
    """

    runs: tuple[BenchRun, ...]
    times: list[list[float]]
    usual_s: float
    factor: float
    device: bool
    probes: float

    @classmethod
    def of(cls, cell: Measured, new: BenchRun, runs: Sequence[BenchRun]) -> Self:
        times = [run.cells[cell.name].undisturbed for run in runs]
        usual_s = median(median(each) for each in times)
        device = cell.info["state"] == COLD and str(cell.info["workload"]).startswith("gather")
        probes = _Machine(runs).of_kind(new, device)
        return cls(tuple(runs), times, usual_s, cell.value / usual_s, device, probes)


def _excused(cells: Sequence[_Before]) -> list[_Before]:
    """The cells with what the machine explains taken out of their factors.

    A probe excuses, it never accuses, and it excuses no more than the cells of its kind have in common: it alone moves
    by a fifth now and then, and a single slower cell would hide behind it.
    """
    common = {kind: median([c.factor for c in cells if c.device == kind]) for kind in {c.device for c in cells}}
    return [replace(cell, factor=_without(cell.factor, cell.probes, common[cell.device])) for cell in cells]


def _without(factor: float, probes: float, common: float) -> float:
    if factor > 1:
        return max(1.0, factor / max(1.0, min(probes, common)))
    return min(1.0, factor / min(1.0, max(probes, common)))


def _change(cell: Measured, before: _Before, least: float) -> Change:
    factor, usual = before.factor, before.usual_s
    values = [median(times) for times in before.times]
    noise = MAD_TO_SIGMA * median(abs(log(value / usual)) for value in values) if len(values) > 2 else 0.0
    limit = max(least, exp(3 * noise))
    excused = factor / (cell.value / usual)
    factors = spread([time / usual * excused for time in cell.undisturbed])
    return Change(cell, usual, cell.value, factor, limit, factors, before.runs)


class _Machine:
    """How fast the machine was in each run, by its probes."""

    def __init__(self, runs: Sequence[BenchRun]) -> None:
        found: dict[str, list[float]] = {}
        for run in runs:
            for name, cell in run.cells.items():
                if cell.probe:
                    found.setdefault(name, []).append(cell.value)
        self._usual = {name: median(values) for name, values in found.items()}
        self._state = {name: cell.info["state"] for run in runs for name, cell in run.cells.items() if cell.probe}

    def ratio(self, run: BenchRun, probes: Sequence[str]) -> float:
        """How many times as long as usual these probes took; 1 where they are not known."""
        ratios = [
            run.cells[name].value / self._usual[name] for name in probes if name in self._usual and name in run.cells
        ]
        return median(ratios) if ratios else 1.0

    def of_kind(self, run: BenchRun, device: bool) -> float:
        """The ratio of the device's probe, which speaks for rows read cold, or of those of processor and memory."""
        return self.ratio(run, [probe for probe, state in self._state.items() if (state == COLD) == device])

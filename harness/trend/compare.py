"""What became slower: by factor and by significance, against the earlier runs of the same machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median

from harness.errors import CannotRun
from harness.trend.machine import differences
from harness.trend.runs import BenchRun, Measured

FACTOR = 1.25  # smaller changes are not reported: two runs of the same code differ by up to a tenth
SIGNIFICANCE = 0.02  # four times against four reach 1/70; the factor is what keeps chance out
BUSY_CORES = 0.5  # a run beside which others kept more than this busy says nothing about the code
EARLIER_RUNS = 5  # how many of the earlier runs a new one is compared with
MAD_TO_SIGMA = 1.4826  # of a normal distribution
FEWEST_FOR_DRIFT = 8  # cells from which it can be told that a whole run is slower


@dataclass(frozen=True)
class Change:
    """A cell in the new run against the earlier ones. Units: seconds; factor above 1 is slower.

    factor: with the drift of the whole run taken out. limit: the factor to be exceeded here, from how much the earlier
    runs differ among themselves in this cell, and the new one from them in all cells. p: of Mann and Whitney's test
    on the undisturbed times.
    """

    cell: Measured
    before_s: float
    now_s: float
    factor: float
    limit: float
    p: float

    @property
    def slower(self) -> bool:
        """A regression."""
        return self.factor > self.limit and self.p < SIGNIFICANCE

    @property
    def faster(self) -> bool:
        """An improvement."""
        return self.factor < 1 / self.limit and self.p < SIGNIFICANCE


@dataclass
class Verdict:
    """A new run against earlier ones. drift: the factor by which the whole run is slower; probes: the same of them.

    busy: earlier runs that were left out because the machine was. scatter: how far the cells lie apart around the
    drift, as a standard deviation of logarithms; one slow cell leaves it.
    """

    new: BenchRun
    earlier: list[BenchRun]
    changes: list[Change] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    drift: float = 1.0
    scatter: float = 0.0
    busy: list[BenchRun] = field(default_factory=list)
    probes: float | None = None

    @property
    def slower(self) -> list[Change]:
        """The regressions, the worst first."""
        return sorted((c for c in self.changes if c.slower), key=lambda c: -c.factor)

    @property
    def faster(self) -> list[Change]:
        """The improvements, the best first."""
        return sorted((c for c in self.changes if c.faster), key=lambda c: c.factor)

    @property
    def everything_slower(self) -> bool:
        """Whether the whole run is slower and the probes, which run none of our code, are not."""
        return self.drift > FACTOR and (self.probes is None or self.drift / self.probes > FACTOR)

    @property
    def regressed(self) -> bool:
        """Whether there is anything that has to be looked at."""
        return bool(self.slower or self.missing or self.everything_slower)


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
    recent = quiet[-EARLIER_RUNS:]
    verdict = Verdict(new, recent, busy=[run for run in earlier if run not in quiet])
    last = recent[-1].cells
    verdict.missing = sorted(last.keys() - new.cells.keys())
    verdict.added = sorted(new.cells.keys() - {name for run in recent for name in run.cells})
    pairs = [(cell, found) for cell in new.cells.values() if (found := _of(recent, cell.name))]
    ratios = {cell.name: cell.value / median(m.value for m in found) for cell, found in pairs}
    own = [ratios[cell.name] for cell, _ in pairs if not cell.probe]
    probes = [ratios[cell.name] for cell, _ in pairs if cell.probe]
    verdict.drift = median(own) if len(own) >= FEWEST_FOR_DRIFT else 1.0
    verdict.probes = median(probes) if probes else None
    if len(own) >= FEWEST_FOR_DRIFT:
        verdict.scatter = MAD_TO_SIGMA * median(abs(log(ratio / verdict.drift)) for ratio in own)
    least = max(FACTOR, exp(3 * verdict.scatter))
    verdict.changes = [_change(cell, found, verdict.drift, least) for cell, found in pairs if not cell.probe]
    return verdict


def _of(runs: Sequence[BenchRun], name: str) -> list[Measured]:
    return [run.cells[name] for run in runs if name in run.cells]


def _change(cell: Measured, found: Sequence[Measured], drift: float, least: float) -> Change:
    from scipy.stats import mannwhitneyu

    before = median(measured.value for measured in found)
    factor = cell.value / before / drift
    noise = max(abs(log(measured.value / before)) for measured in found)
    now = [time / drift for time in cell.undisturbed]
    old = [time for measured in found for time in measured.undisturbed]
    p = float(mannwhitneyu(now, old, alternative="greater" if factor >= 1 else "less").pvalue)
    return Change(cell, before, cell.value, factor, max(least, exp(2 * noise)), p)

"""Medians, intervals and verdicts: `scipy` does the statistics, this file says what may be claimed.

Two arms are compared by the ratios of their times within blocks, the runs that stand next to each other. The interval
is the exact rank interval of the median: no assumption about the noise, at the price that it takes five ratios to
have one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, inf, log
from statistics import median
from typing import Any

from harness.measure.cells import COLD, Cell, Group
from harness.measure.protocol import OWN_MEMORY
from harness.measure.store import Results

CONFIDENCE = 0.90
FEWEST_FOR_CLAIM = 5  # with four ratios or fewer no rank interval of the median reaches 90%
CHANCE = 0.03  # of comparisons of arms equal in speed and noise are claimed, at most; at five repeats half a percent
FASTER, SLOWER, NO_DIFFERENCE, NO_CLAIM = "faster", "slower", "no difference shown", "no claim"


@dataclass(frozen=True)
class Spread:
    """A median, its interval and the number of values behind it. low and high are None where there is no interval."""

    median: float
    low: float | None
    high: float | None
    count: int

    @property
    def excludes_one(self) -> bool:
        """Whether the whole interval lies on one side of 1."""
        return self.low is not None and self.high is not None and (self.low > 1 or self.high < 1)


def spread(values: Sequence[float]) -> Spread:
    """Median and exact rank interval. Raises: ValueError for no values."""
    from scipy.stats import quantile_test

    middle = median(values)
    if len(values) < FEWEST_FOR_CLAIM:
        return Spread(middle, None, None, len(values))
    interval = quantile_test(list(values), q=1.0, p=0.5).confidence_interval(CONFIDENCE)
    low, high = float(interval.low), float(interval.high)
    if not (-inf < low <= middle <= high < inf):
        return Spread(middle, None, None, len(values))
    return Spread(middle, low, high, len(values))


@dataclass(frozen=True)
class Side:
    """One arm in one group: its speed, and the sums of its cells' facts. Units: tokens per second, bytes, seconds."""

    arm: str
    speed: Spread
    cells: tuple[dict[str, Any], ...] = field(repr=False)

    def middle(self, *path: str) -> float | None:
        """Median over the cells of a number in them, such as ("used", "disk_bytes"); None where none has it."""
        values = []
        for cell in self.cells:
            value: Any = cell
            for name in path:
                value = value.get(name) if isinstance(value, dict) else None
            if value is not None:
                values.append(float(value))
        return median(values) if values else None

    @property
    def over_read(self) -> float | None:
        """Bytes that the device read for each byte of a page with a wanted row on it."""
        disk, pages = self.middle("used", "disk_bytes"), self.middle("rows", "pages")
        return disk / (pages * 4096) if disk is not None and pages else None


@dataclass(frozen=True)
class Comparison:
    """An arm against the baseline in one group. ratio: how many times as fast as the baseline, above 1 is faster.

    noise: the factor that the baseline differs from itself by, None where it did not run twice often enough.
    """

    group: Group
    arm: str
    baseline: str
    ratio: Spread | None
    noise: float | None
    verdict: str
    why: str = ""

    @property
    def claims(self) -> bool:
        """Whether a difference is claimed."""
        return self.verdict in (FASTER, SLOWER)


@dataclass(frozen=True)
class GroupSummary:
    """All that is known about one state, depth and workload.

    baseline: the arm that is compared with. twin_ratio: its own second run; None where it has none.
    """

    group: Group
    baseline: str
    sides: dict[str, Side]
    twin_ratio: Spread | None
    unique_ratio: float | None
    comparisons: tuple[Comparison, ...]


def summarise(results: Results, baseline: str | None = None) -> list[GroupSummary]:
    """One summary per group that has a valid cell, in the plan's order; compared with another baseline if wanted."""
    matrix = results.plan.matrix
    base = baseline or matrix.baseline.name
    summaries = []
    groups = dict.fromkeys(cell.group for cell in results.plan.cells())
    for group in groups:
        sides = {}
        for arm in matrix.all_arms:
            found = [
                results.valid.get(Cell(arm.name, group.state, group.depth, group.workload, r).id) for r in _all(results)
            ]
            cells = tuple(cell for cell in found if cell is not None)
            if cells:
                sides[arm.name] = Side(arm.name, spread([cell["tokens_per_s"] for cell in cells]), cells)
        if sides:
            summaries.append(_summary(results, group, sides, base))
    return summaries


def _all(results: Results) -> range:
    return range(results.plan.matrix.repeats)


def _summary(results: Results, group: Group, sides: dict[str, Side], base: str) -> GroupSummary:
    matrix = results.plan.matrix
    # Only the plan's baseline ran twice: its noise says nothing of another arm's.
    twin = matrix.all_arms[-1].name if matrix.twin and base == matrix.baseline.name else None
    pairs = _ratios(sides, base, twin) if twin else []
    twin_ratio = spread(pairs) if pairs else None
    unique = [cell["rows"]["unique_ratio"] for side in sides.values() for cell in side.cells]
    ratio = median(unique) if unique else None
    comparisons = tuple(
        _compare(results, group, sides, arm.name, base, twin_ratio, ratio)
        for arm in matrix.arms
        if arm.name != base and arm.name in sides
    )
    return GroupSummary(group, base, sides, twin_ratio, ratio, comparisons)


def _ratios(sides: dict[str, Side], base: str, arm: str | None) -> list[float]:
    """How many times as fast as the baseline, in every block where both are valid."""
    if base not in sides or arm not in sides:
        return []
    times = {cell["cell"]["repeat"]: cell["seconds"] for cell in sides[base].cells}
    own = {cell["cell"]["repeat"]: cell["seconds"] for cell in sides[arm].cells}
    return [times[repeat] / own[repeat] for repeat in sorted(times.keys() & own.keys())]


def noise_of(twin: Spread | None) -> float | None:
    """The factor, at least 1, by which the baseline differs from itself: the further end of the twin's interval."""
    if twin is None or twin.low is None or twin.high is None:
        return None
    return exp(max(abs(log(twin.low)), abs(log(twin.high))))


def unknown_noise(results: Results, base: str) -> str:
    """Why nothing may be claimed against this baseline: too few of its own pairs, if any were asked for."""
    matrix = results.plan.matrix
    if not matrix.twin:
        return "the noise is not known: the baseline did not run twice"
    if base == matrix.baseline.name:
        return f"the noise is not known: fewer than {FEWEST_FOR_CLAIM} valid pairs of {base} with its second run"
    return (
        f"only {matrix.baseline.name} ran twice, so the noise of {base} is not known: measure again with "
        f"`plegate bench --baseline {base}`"
    )


def _compare(
    results: Results,
    group: Group,
    sides: dict[str, Side],
    arm: str,
    base: str,
    twin: Spread | None,
    unique: float | None,
) -> Comparison:
    """The verdict: a difference is claimed when the interval excludes 1 and the noise does not explain it."""
    ratios = _ratios(sides, base, arm)
    if not ratios:
        return Comparison(group, arm, base, None, None, NO_CLAIM, f"no block has valid cells of both {arm} and {base}")
    ratio, noise = spread(ratios), noise_of(twin)
    own = [a.name for a in results.plan.matrix.arms if a.mode in OWN_MEMORY and a.name in (arm, base)]
    if group.state == COLD and own:
        why = f"{own[0]} holds the table in its own memory: it is never cold"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    least = results.plan.least_unique
    if ratio.low is None:
        why = f"{ratio.count} valid pairs, {FEWEST_FOR_CLAIM} are needed for a {CONFIDENCE:.0%} interval"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    if noise is None:
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, unknown_noise(results, base))
    if unique is None or not unique >= least:
        why = f"only {unique or 0:.0%} of the rows are different ones, {least:.0%} are asked for"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    if not ratio.excludes_one:
        return Comparison(group, arm, base, ratio, noise, NO_DIFFERENCE, "the interval holds 1")
    if not abs(log(ratio.median)) > log(noise):
        why = f"the baseline differs from itself by up to {noise:.2f}x"
        return Comparison(group, arm, base, ratio, noise, NO_DIFFERENCE, why)
    return Comparison(group, arm, base, ratio, noise, FASTER if ratio.median > 1 else SLOWER)

"""Medians, intervals and verdicts: the one statistic behind every comparison.

Two arms are compared within blocks, where they ran next to each other: the ratio of a repeat is the median of its
blocks' ratios. Every repeat has new processes, so that a process which happened to be slow is one value among many.

The interval is a rank interval of the median, and holds the true median at every look at once in 90% of runs: one may
look after each repeat and stop when one likes. It rests on a bet. For a median m, each repeat's ratio lies above m as
often as below; a gambler with Krichevsky and Trofimov's mixture of stakes has 2^n B(k + 1/2, n - k + 1/2) / pi of his
first coin after n repeats, k of them above. He multiplies it by ten with a chance of at most a tenth, ever (Ville's
inequality). The interval is all m for which he has not. No distribution is assumed; six repeats are the fewest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from math import exp, lgamma, log, pi
from statistics import median
from typing import Any

from harness.measure.cells import COLD, Group
from harness.measure.store import Results
from harness.measure.worker.proof import OWN_MEMORY

CONFIDENCE = 0.90
FEWEST_FOR_CLAIM = 6  # with five or fewer repeats the gambler has not won enough
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

    def within(self, share: float) -> bool:
        """Whether the interval reaches no further than this share, 0.05 for 5%, to both sides of its middle."""
        return self.low is not None and self.high is not None and self.high <= self.low * (1 + share) ** 2


@cache
def _left_out(count: int) -> int | None:
    """How many values lie outside the interval at each end; None where even all values are too few."""
    found = None
    for above in range(count // 2 + 1):
        won = count * log(2) + lgamma(above + 0.5) + lgamma(count - above + 0.5) - lgamma(count + 1) - log(pi)
        if won < -log(1 - CONFIDENCE):
            break
        found = above
    return found


def spread(values: Sequence[float]) -> Spread:
    """Median and interval, as the file's docstring says. Raises: ValueError for no values."""
    ordered, outside = sorted(values), _left_out(len(values))
    if outside is None:
        return Spread(median(ordered), None, None, len(ordered))
    return Spread(median(ordered), ordered[outside], ordered[-1 - outside], len(ordered))


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
    found: dict[Group, dict[str, list[dict[str, Any]]]] = {group: {} for group in matrix.groups}
    for cell in results.planned():
        if (content := results.valid_cell(cell)) is not None:
            found[cell.group].setdefault(cell.arm, []).append(content)
    summaries = []
    for group, by_arm in found.items():
        names = [arm.name for arm in matrix.all_arms if arm.name in by_arm]
        sides = {name: Side(name, spread(_speeds(by_arm[name])), tuple(by_arm[name])) for name in names}
        if sides:
            summaries.append(_summary(results, group, sides, base))
    return summaries


def resolved_groups(results: Results, share: float) -> list[Group]:
    """The groups in which every comparison, the baseline with itself too, is known as well as asked for."""
    enough = []
    for summary in summarise(results):
        ratios = [comparison.ratio for comparison in summary.comparisons] + [summary.twin_ratio]
        wanted = len(results.plan.matrix.all_arms) - 1
        known = [ratio for ratio in ratios if ratio is not None]
        if len(known) == wanted and all(ratio.within(share) for ratio in known):
            enough.append(summary.group)
    return enough


def by_repeat(cells: Sequence[dict[str, Any]], name: str) -> dict[int, dict[int, float]]:
    """A number of each cell, by repeat and block."""
    found: dict[int, dict[int, float]] = {}
    for cell in cells:
        found.setdefault(cell["cell"]["repeat"], {})[cell["cell"]["block"]] = cell[name]
    return found


def _speeds(cells: Sequence[dict[str, Any]]) -> list[float]:
    return [median(blocks.values()) for blocks in by_repeat(cells, "tokens_per_s").values()]


def _summary(results: Results, group: Group, sides: dict[str, Side], base: str) -> GroupSummary:
    matrix = results.plan.matrix
    # Only the plan's baseline ran twice: its noise says nothing of another arm's.
    twin = matrix.all_arms[-1].name if matrix.twin and base == matrix.baseline.name else None
    pairs = ratios(sides, base, twin) if twin else []
    twin_ratio = spread(pairs) if pairs else None
    unique = [cell["rows"]["unique_ratio"] for side in sides.values() for cell in side.cells]
    known = [ratio for ratio in unique if ratio is not None]
    ratio = median(known) if known else None
    comparisons = tuple(
        _compare(results, group, sides, arm.name, base, twin_ratio, ratio)
        for arm in matrix.arms
        if arm.name != base and arm.name in sides
    )
    return GroupSummary(group, base, sides, twin_ratio, ratio, comparisons)


def ratios(sides: dict[str, Side], base: str, arm: str) -> list[float]:
    """How many times as fast as the baseline in every repeat: the median of the blocks where both are valid."""
    if base not in sides or arm not in sides:
        return []
    times, own = by_repeat(sides[base].cells, "seconds"), by_repeat(sides[arm].cells, "seconds")
    found = []
    for repeat in sorted(times.keys() & own.keys()):
        blocks = times[repeat].keys() & own[repeat].keys()
        if blocks:
            found.append(exp(median(log(times[repeat][block] / own[repeat][block]) for block in blocks)))
    return found


def noise_of(twin: Spread | None) -> float | None:
    """The factor, at least 1, by which the baseline differs from itself: all that its interval reaches where it
    differs for certain, else the median of its ratios."""
    if twin is None or twin.low is None or twin.high is None:
        return None
    ends = (twin.low, twin.high) if twin.excludes_one else (twin.median,)
    return exp(max(abs(log(end)) for end in ends))


def differs(ratio: Spread, twin: Spread | None) -> bool:
    """Whether a difference may be claimed: the interval excludes 1, and the noise does not explain the median."""
    noise = noise_of(twin)
    return noise is not None and ratio.excludes_one and abs(log(ratio.median)) > log(noise)


def unknown_noise(results: Results, base: str) -> str:
    """Why nothing may be claimed against this baseline: too few of its own pairs, if any were asked for."""
    matrix = results.plan.matrix
    if not matrix.twin:
        return "the noise is not known: the baseline did not run twice"
    if base == matrix.baseline.name:
        return f"the noise is not known: fewer than {FEWEST_FOR_CLAIM} repeats with {base} and its second run"
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
    found = ratios(sides, base, arm)
    if not found:
        return Comparison(group, arm, base, None, None, NO_CLAIM, f"no block has valid cells of both {arm} and {base}")
    ratio, noise = spread(found), noise_of(twin)
    own = [name for name in (arm, base) if any(c["effective_mode"] in OWN_MEMORY for c in sides[name].cells)]
    if group.state == COLD and own:
        why = f"{own[0]} holds the table in its own memory: it is never cold"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    least = results.plan.least_unique
    if ratio.low is None:
        why = f"{ratio.count} repeats with valid pairs, {FEWEST_FOR_CLAIM} are needed for a {CONFIDENCE:.0%} interval"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    if noise is None:
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, unknown_noise(results, base))
    if unique is None or not unique >= least:
        why = f"only {unique or 0:.0%} of the rows are different ones, {least:.0%} are asked for"
        return Comparison(group, arm, base, ratio, noise, NO_CLAIM, why)
    if not ratio.excludes_one:
        return Comparison(group, arm, base, ratio, noise, NO_DIFFERENCE, "the interval holds 1")
    if not differs(ratio, twin):
        why = f"the baseline differs from itself by {noise:.2f}x"
        return Comparison(group, arm, base, ratio, noise, NO_DIFFERENCE, why)
    return Comparison(group, arm, base, ratio, noise, FASTER if ratio.median > 1 else SLOWER)

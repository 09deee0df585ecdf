"""What the data itself says against its own numbers. Each caveat has a name, so that a test can ask for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.measure.cells import COLD, WARM, cell_from
from harness.measure.statistics import FEWEST_FOR_CLAIM, GroupSummary, noise_of, resolved_groups, unknown_noise
from harness.measure.store import Results
from harness.measure.worker.proof import OWN_MEMORY, PAST_THE_CACHE

NOISY = 1.10  # a baseline that differs from itself by more than this factor
BUSY_CORES = 0.25  # other processes kept more than this much of a core busy, in the median cell
FEWEST_REPEATS = 3
FEWEST_DEPTHS = 3
LARGE_SHARE = 0.05  # a workload that touches more of the table's pages than this finds its neighbours' rows in memory


@dataclass(frozen=True)
class Caveat:
    """name: for machines. text: for people, with the number that raised it."""

    name: str
    text: str


def caveats(results: Results, summaries: Sequence[GroupSummary]) -> list[Caveat]:
    """Everything that speaks against the numbers, the worst first."""
    return [
        *_invalid(results),
        *_repeats(results),
        *_noise(results, summaries),
        *_uniqueness(results, summaries),
        *_reads(results),
        *_answers(results),
        *_extent(results),
        *_surroundings(results),
        *_notes(results),
    ]


def _invalid(results: Results) -> Iterator[Caveat]:
    if results.changed:
        yield Caveat("changed", results.changed)
    planned = results.planned()
    missing = [cell for cell in planned if cell.id not in results.cells]
    if missing and results.plan.budget_s is None:
        yield Caveat("unfinished", f"{len(missing)} of {len(planned)} cells are not measured yet: --resume")
    reasons = Counter(cell["reasons"][0].partition(":")[0] for cell in results.invalid.values())
    for name, count in reasons.most_common():
        first = next(c for c in results.invalid.values() if c["reasons"][0].startswith(name))
        place = first["cell"]
        where = f"{place['arm']}, {place['state']}, depth {place['depth']}"
        yield Caveat(
            name, f"{count} cells are invalid and left out. First: {where}: {first['reasons'][0].partition(': ')[2]}"
        )


def _repeats(results: Results) -> Iterator[Caveat]:
    repeats = results.repeats
    if repeats < FEWEST_REPEATS:
        yield Caveat(
            "too-few-repeats",
            f"{repeats} repeat(s): the spread is not known, nothing is claimed; at least {FEWEST_FOR_CLAIM} are needed",
        )
    elif repeats < FEWEST_FOR_CLAIM:
        yield Caveat(
            "no-intervals",
            f"{repeats} repeats are too few for intervals, nothing is claimed; at least {FEWEST_FOR_CLAIM} are needed",
        )
    if not results.plan.matrix.twin:
        yield Caveat(
            "no-noise-pair", "the baseline did not run twice (--no-twin): the noise is not known, nothing is claimed"
        )
    if (share := results.plan.resolve) is not None:
        open_ones = len(results.plan.matrix.groups) - len(resolved_groups(results, share))
        if open_ones:
            yield Caveat(
                "unresolved",
                f"in {open_ones} of {len(results.plan.matrix.groups)} groups the time was over before every interval "
                f"was within {share:.1%} of its middle: --resume with more --budget, or a larger --resolve",
            )


def _noise(results: Results, summaries: Sequence[GroupSummary]) -> Iterator[Caveat]:
    matrix = results.plan.matrix
    if matrix.twin and (other := {s.baseline for s in summaries} - {matrix.baseline.name}):
        yield Caveat("no-noise-pair", f"{unknown_noise(results, other.pop())}; nothing is claimed")
    noisy = [(noise, s) for s in summaries if (noise := noise_of(s.twin_ratio)) is not None and noise > NOISY]
    if noisy:
        worst, summary = max(noisy, key=lambda pair: pair[0])
        yield Caveat(
            "noisy-control",
            f"in {len(noisy)} of {len(summaries)} groups the baseline differs from itself by more than {NOISY:.2f}x, "
            f"most in {summary.group.title}: {worst:.2f}x; smaller differences there are not claimed",
        )
    biased = [s for s in summaries if s.twin_ratio is not None and s.twin_ratio.excludes_one]
    if biased:
        yield Caveat(
            "biased-control",
            f"in {len(biased)} of {len(summaries)} groups the baseline differs from itself in one direction, first in "
            f"{biased[0].group.title}; by chance alone this happens in at most one of ten",
        )


def _uniqueness(results: Results, summaries: Sequence[GroupSummary]) -> Iterator[Caveat]:
    least = results.plan.least_unique
    few = [s for s in summaries if s.unique_ratio is not None and not s.unique_ratio >= least]
    if few:
        worst = min(few, key=lambda s: s.unique_ratio or 0.0)
        yield Caveat(
            "repeated-rows",
            f"in {len(few)} of {len(summaries)} groups the rows repeat, most in {worst.group.title}: "
            f"{worst.unique_ratio:.1%} are different ones, expected at least {least:.0%}; repeated rows hide what "
            "reading costs, nothing is claimed there",
        )


def _reads(results: Results) -> Iterator[Caveat]:
    """Parts of the table that no device can be asked for, and warm cells that read from the device all the same."""
    holes = max((cell.get("residency", {}).get("holes", 0.0) for cell in results.valid.values()), default=0.0)
    if holes:
        yield Caveat(
            "holes",
            f"{holes:.1%} of the table was never written (a download that is not finished, or space that was only "
            "allocated): rows there come from no device, so cold figures are too good",
        )
    leaks = []
    for cell in results.valid.values():
        mode = cell["effective_mode"]
        if cell["cell"]["state"] != WARM or mode in PAST_THE_CACHE or mode in OWN_MEMORY:
            continue
        if (cell["used"]["disk_bytes"] or 0) > 0.01 * (cell["rows"]["pages"] or 0) * 4096:
            leaks.append(cell)
    if leaks:
        first = leaks[0]
        place = first["cell"]
        yield Caveat(
            "warm-reads",
            f"{len(leaks)} warm cells read from the device, first {place['arm']} at depth {place['depth']}: "
            f"{first['used']['disk_bytes']} bytes",
        )


def _answers(results: Results) -> Iterator[Caveat]:
    """Arms that continue the same tokens otherwise: a wrong engine is not a fast one."""
    found: dict[tuple[str, int, int], dict[int, str]] = {}
    for content in results.valid.values():
        if (token := content.get("first_token")) is not None:
            cell = cell_from(content["cell"])
            found.setdefault((cell.group.id, cell.repeat, cell.block), {}).setdefault(token, cell.arm)
    wrong = [by_token for by_token in found.values() if len(by_token) > 1]
    if wrong:
        one, other, *_ = wrong[0].items()
        yield Caveat(
            "other-tokens",
            f"in {len(wrong)} of {len(found)} blocks of decoding the arms choose another first token, such as "
            f"{one[1]} {one[0]} and {other[1]} {other[0]}: `plegate gate` says whether one of them is wrong",
        )


def _extent(results: Results) -> Iterator[Caveat]:
    depths = len(results.plan.matrix.depths)
    if depths < FEWEST_DEPTHS and any(work.needs_model for work in results.plan.matrix.workloads):
        yield Caveat(
            "few-depths", f"{depths} depth(s): how a gain changes with depth is not known, expected at least 3"
        )
    shares = [
        c["rows"]["pages"] / c["rows"]["table_pages"] for c in results.valid.values() if c["cell"]["state"] == COLD
    ]
    if shares and max(shares) > LARGE_SHARE:
        yield Caveat(
            "small-table",
            f"one workload touches up to {max(shares):.0%} of the table's pages: reading too much finds rows by "
            "chance here; use a larger table",
        )
    problems = {c["limit"]["problem"] for c in results.valid.values() if c.get("limit") and c["limit"]["problem"]}
    if problems:
        yield Caveat(
            "limit-not-applied",
            f"no cgroup could be made, only anonymous memory was limited, not the page cache: {problems.pop()}",
        )


def _surroundings(results: Results) -> Iterator[Caveat]:
    from statistics import median

    # Of the whole process of a cell: the kernel counts in ticks of 10 ms, too coarse for what is measured in it.
    found = [c["process"]["other_cpu"] for c in results.valid.values()]
    if (known := [cores for cores in found if cores is not None]) and median(known) > BUSY_CORES:
        yield Caveat(
            "busy-machine",
            f"other processes kept {median(known):.1f} cores busy in the median cell, expected an idle machine",
        )
    blocks: dict[tuple[str, int, int], set[int]] = {}
    for cell in results.valid.values():
        each = cell_from(cell["cell"])
        blocks.setdefault((each.group.id, each.repeat, each.block), set()).add(cell["session"])
    if split := sum(len(sessions) > 1 for sessions in blocks.values()):
        yield Caveat(
            "split-blocks",
            f"{split} of {len(blocks)} blocks were measured in more than one session (--resume): their pairs did not "
            "run next to each other",
        )
    codes: dict[Any, set[str]] = {}
    for cell in results.valid.values():
        codes.setdefault(cell["arm"]["commit"], set()).add(cell.get("code", ""))
    if any(len(found) > 1 for found in codes.values()):
        yield Caveat("mixed-code", "the code was changed while the run went on: its cells are not all of the same code")
    if results.plan.machine.get("dirty"):
        yield Caveat("uncommitted", "the code had changes that are in no commit")


def _notes(results: Results) -> Iterator[Caveat]:
    notes: Counter[str] = Counter(note for cell in results.valid.values() for note in cell["notes"])
    for note, count in notes.most_common():
        yield Caveat("note", f"{count} cells: {note}")
    modes: set[Any] = {arm.mode for arm in results.plan.matrix.arms}
    if own := sorted(modes & set(OWN_MEMORY)):
        yield Caveat(
            "own-memory", f"{', '.join(own)} reads the whole table when it is opened: cold and warm mean nothing to it"
        )
    if past := sorted(modes & set(PAST_THE_CACHE)):
        yield Caveat("past-the-cache", f"{', '.join(past)} reads past the page cache: warm is as cold to it")

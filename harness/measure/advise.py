"""What this disk and this table allow, as a view of one run: cells of rows alone, and the device as more arms.

Every number is measured here and now on the model's own table, with rows drawn at random; nothing is looked up.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from fast.rows import residency
from fast.rows.resident import available_bytes
from fast.rows.table import Table
from harness.engines.arms import DEVICE, TWIN, Arm
from harness.errors import CannotRun
from harness.measure.cells import COLD, STATES, WARM, Group, Workload
from harness.measure.machine import machine_facts, model_facts
from harness.measure.plan import Matrix
from harness.measure.runner import Progress, Runner
from harness.measure.statistics import FASTER, FEWEST_FOR_CLAIM, summarise
from harness.measure.store import Results, RunPlan, Store

DEPTHS = (1, 16, 64, 256)
ROWS = 8192
STEPS = 16
SMALL_TABLE_BYTES = 64 << 20  # read in a moment from any disk: measured once, nothing is claimed
# Cold, plain mmap reads up to a thousand times too much: what it costs is known, and a minute is short.
MEASURED = ("auto", "mmap-random", "prefetch", "direct", "direct-uncached", "uring", "uring-uncached")
CLEARLY = 1.1  # a mode must be claimed to be faster than auto, and by so much, to be advised in its place
ENOUGH_DEPTH = 0.95
SHARED_PAGES = 1.25  # more rows than this to a page read: reads of single pages say little about rows
WARM_GAIN = 2  # a mode whose warm rate is not twice its cold one keeps nothing: not for general use


@dataclass(frozen=True)
class ModeSpeed:
    """Rates in rows per second, the rows of a decode step in seconds, medians of the valid cells. None: not measured.

    problem: why cells of the mode are invalid, such as another mode that ran in its place. clearly: cold, the mode is
    claimed to be faster than `auto`, and by a tenth at least.
    """

    mode: str
    cold: float | None = None
    warm: float | None = None
    decode_cold_s: float | None = None
    decode_warm_s: float | None = None
    problem: str | None = None
    clearly: bool = False


@dataclass(frozen=True)
class Advice:
    """What was measured. device: reads per second by depth. rows_per_page: drawn rows over the pages they are on."""

    table_bytes: int
    rows_per_token: int
    available_bytes: int | None
    device: dict[int, float] = field(default_factory=dict)
    modes: tuple[ModeSpeed, ...] = ()
    rows_per_page: float = 1.0
    holes: float = 0.0
    seconds: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether the table fits comfortably into memory."""
        return self.available_bytes is not None and self.table_bytes < 0.8 * self.available_bytes

    @property
    def cold_problem(self) -> str | None:
        """Why something cold was not measured, other than that a mode cannot run here."""
        found = [mode.problem for mode in self.modes if mode.problem and not mode.problem.startswith("fell-back")]
        return found[0] if found else None

    @property
    def limit(self) -> float | None:
        """Reads per second that the device was seen to answer."""
        return max(self.device.values(), default=None)

    @property
    def limit_problem(self) -> str | None:
        """Why the device's limit bounds nothing here; None: it does."""
        best = self.best("cold")
        if self.limit is None:
            return None
        share = best.cold / self.limit if best is not None and best.cold is not None else 0.0
        reached = f"{best.mode} got {share:.0%} of it" if best is not None and share > 1 else ""
        if self.holes:
            return (
                f"{self.holes:.1%} of the table was never written: reads there need no device, and nothing is a limit."
            )
        if self.rows_per_page > SHARED_PAGES:
            return (
                f"The table is too small for this limit to mean anything for it: {self.rows_per_page:.1f} of the rows "
                f"drawn share a page{', and ' + reached if reached else ''}."
            )
        if reached:
            return (
                f"This limit is none for this table: {reached}, by reading ahead or because other programs slowed the "
                "device while it was probed."
            )
        return None

    @property
    def depth(self) -> int | None:
        """The smallest probed depth within 5% of the device's best rate."""
        return next((d for d, rate in self.device.items() if rate >= ENOUGH_DEPTH * (self.limit or 0)), None)

    @property
    def recommended(self) -> str:
        """`auto`, unless a mode that keeps rows warm is claimed to beat it cold."""
        better = [m for m in self.modes if m.clearly and m.cold and (m.warm or 0) > m.cold * WARM_GAIN]
        return max(better, key=lambda mode: mode.cold or 0).mode if better else "auto"

    def best(self, what: str) -> ModeSpeed | None:
        """The mode with the highest rate, `cold` or `warm`."""
        known = [mode for mode in self.modes if getattr(mode, what) is not None]
        return max(known, key=lambda mode: getattr(mode, what)) if known else None

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        names = ("fits", "cold_problem", "limit", "limit_problem", "depth", "recommended")
        return asdict(self) | {name: getattr(self, name) for name in names} | {"advice": sentences(self)}


def advise_table(
    model: Path, table: Table, rows_per_token: int, depth: int | None, seed: int, progress: Progress
) -> Advice:
    """Measure device and modes. depth: the queue depth of the io_uring modes.

    Raises: CannotRun where residency cannot be verified at all.
    """
    started, memory = perf_counter(), available_bytes()
    try:
        residency.resident_fraction(table)
    except OSError as error:
        raise CannotRun(
            f"{table.segments[0].path}: {error.strerror}: nothing measured here could be called cold"
        ) from error
    rows = min(ROWS, max(64, table.rows // 4))
    queue = (("queue_depth", depth),) if depth else ()
    arms = [Arm(mode, mode, queue if mode.startswith("uring") else ()) for mode in MEASURED]
    arms += [Arm(f"{DEVICE}-{each}", DEVICE, (("queue_depth", each),)) for each in DEPTHS]
    works = Workload("gather", max(1, rows // rows_per_token)), Workload("steps", STEPS)
    large = table.size_bytes >= SMALL_TABLE_BYTES
    matrix = Matrix(tuple(arms), STATES, (0,), works, FEWEST_FOR_CLAIM if large else 1, twin=large)
    facts = model_facts(model, needs_model=False) | {"vocab": 0, "rows_per_token": rows_per_token}
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "run")
        store.create(plan := RunPlan(matrix, facts, machine_facts(model), 0.0, seed=seed))
        results = Runner(store, plan, model, Path(folder), progress).run()
    if results.changed:
        raise CannotRun(results.changed)
    return advice_of(results, memory, perf_counter() - started)


def advice_of(results: Results, memory: int | None, seconds: float) -> Advice:
    """The advice that follows from a run."""
    matrix, facts = results.plan.matrix, results.plan.model
    batch, step = matrix.workloads
    verdicts = {c.arm: c for s in summarise(results) if s.group == Group(COLD, 0, batch) for c in s.comparisons}
    modes = []
    for arm in matrix.arms:
        if arm.mode == DEVICE:
            continue
        compared = verdicts.get(arm.name)
        ratio = compared.ratio if compared is not None and compared.verdict == FASTER else None
        clearly = ratio is not None and ratio.median > CLEARLY
        problems = [cell["reasons"][0] for cell in results.invalid.values() if cell["cell"]["arm"] == arm.name]
        cold, warm = (_middle(results, arm, Group(state, 0, batch)) for state in STATES)
        cold_s, warm_s = (_middle(results, arm, Group(state, 0, step), rate=False) for state in STATES)
        modes.append(ModeSpeed(arm.name, cold, warm, cold_s, warm_s, problems[0] if problems else None, clearly))
    device = {
        int(dict(arm.settings)["queue_depth"]): rate
        for arm in matrix.arms
        if arm.mode == DEVICE and (rate := _middle(results, arm, Group(COLD, 0, batch)))
    }
    own = [cell for cell in results.valid.values() if not cell["cell"]["arm"].startswith(DEVICE)]
    pages = [
        cell["rows"]["total"] / cell["rows"]["pages"] for cell in own if cell["cell"]["workload"]["kind"] == "gather"
    ]
    holes = max((cell["residency"]["holes"] for cell in results.cells.values() if cell.get("residency")), default=0.0)
    per_page = median(pages) if pages else 1.0
    table = facts["table_bytes"], facts["rows_per_token"]
    return Advice(*table, memory, device, tuple(modes), per_page, holes, seconds)


def _middle(results: Results, arm: Arm, group: Group, rate: bool = True) -> float | None:
    """Median over the valid cells of rows per second, or of seconds."""
    found = []
    for cell in results.planned():
        if cell.arm.removesuffix(TWIN) == arm.name and cell.group == group and (one := results.valid_cell(cell)):
            found.append(one["rows"]["total"] / one["seconds"] if rate else one["seconds"] / STEPS)
    return median(found) if found else None


def sentences(advice: Advice) -> list[str]:
    """What to do, and why, with the numbers that say so."""
    said = []
    if advice.limit is not None and advice.depth is not None:
        said.append(
            f"This device answers up to {advice.limit:,.0f} random 4 KiB reads a second, with {advice.depth} or more "
            f"of them in flight; one at a time it answers {advice.device.get(1, 0):,.0f}."
        )
        said.append(
            advice.limit_problem
            or f"A token reads {advice.rows_per_token} rows, so no reader can prefill faster than about "
            f"{advice.limit / advice.rows_per_token:,.0f} tokens a second while every row is new to the page cache."
        )
    else:
        said.append("This file system has no O_DIRECT: the device cannot be measured past the page cache.")
    said += _of_modes(advice)
    size, memory = advice.table_bytes / 2**30, (advice.available_bytes or 0) / 2**30
    if advice.fits:
        said.append(
            f"The table ({size:.1f} GiB) fits into the available memory ({memory:.1f} GiB): once read it stays warm, "
            "unless something else needs the memory; `resident` reads it all at start and never waits again."
        )
    else:
        said.append(
            f"The table ({size:.1f} GiB) does not fit comfortably into the available memory ({memory:.1f} GiB): expect "
            "a part of the rows to be cold for good, and do not use `resident`."
        )
    if advice.cold_problem:
        said.append(f"Not everything cold was measured: {advice.cold_problem}.")
    return said


def _of_modes(advice: Advice) -> list[str]:
    said, chosen = [], advice.recommended
    for state in (COLD, WARM):
        best = advice.best(state)
        rate = getattr(best, state) if best is not None else None
        if best is not None and rate is not None:
            tokens = f"{rate / advice.rows_per_token:,.0f} tokens of prefill a second"
            more = "" if state == COLD else ": the table is then no limit"
            said.append(f"{state.capitalize()}, {best.mode} is fastest: {rate:,.0f} rows a second, {tokens}{more}.")
    depth = f" with queue depth {advice.depth} or more" if advice.depth else ""
    reason = "no mode that keeps rows warm is clearly faster" if chosen == "auto" else "clearly faster cold than auto"
    line = f"Use {chosen}{depth}: {reason}"
    own = next((mode for mode in advice.modes if mode.mode == chosen), None)
    if own is not None and own.decode_cold_s is not None and own.decode_warm_s is not None:
        cold, warm = own.decode_cold_s * 1e6, own.decode_warm_s * 1e6
        line += f"; a decode step's rows take {cold:,.0f} us cold and {warm:,.0f} us warm"
    return [*said, line + ".", *_fallbacks(advice.modes)]


def _fallbacks(modes: Sequence[ModeSpeed]) -> list[str]:
    found = [mode.problem for mode in modes if mode.problem and mode.problem.startswith("fell-back")]
    return [f"{problem.partition(': ')[2]}." for problem in found]


def rows_per_token_of(metadata: Any, architecture: str) -> int:
    """Rows that one token reads: one per head by the hash, one where the row is the token's own."""
    sizes = metadata.get(f"{architecture}.ple.head_vocab_sizes")
    return 1 if sizes is None else max(1, len(sizes))

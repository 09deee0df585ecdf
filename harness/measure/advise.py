"""What this disk and this table allow: the device's limit, the modes beside it, and what to choose, in under a minute.

Every number is measured here and now on the model's own table, with rows drawn at random; nothing is looked up.
"""

from __future__ import annotations

import os
import statistics
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import ModeUnavailable, RowReader, RowSettings, Table, open_rows, residency
from fast.rows.probe import DeviceProbe, DeviceRate
from fast.rows.resident import available_bytes
from fast.rows.syscalls import PAGE_BYTES
from harness.errors import CannotRun
from harness.gate.table import SMALL_TABLE_BYTES

Tell = Callable[[str], None]
Ids = npt.NDArray[np.int64]
DEPTHS = (1, 16, 64, 256)
PROBE_S = 0.25  # a depth is probed with as many reads as take about this long
ROWS = 16_384
DECODE_STEPS = 15
ROUNDS = 3  # cold rounds of all modes, every second one in reverse order: other programs use the disk too
# Cold, plain mmap reads up to a thousand times too much: what it costs is known, and a minute is short.
MEASURED = ("mmap-random", "prefetch", "direct", "direct-uncached", "uring", "uring-uncached", "auto")
CLOSE = 0.9  # modes within 10% of the best are the same for this machine's noise
ENOUGH_DEPTH = 0.95
SHARED_PAGES = 1.25  # more rows than this to a page read: reads of single pages say little about rows
WARM_GAIN = 2  # a mode whose warm rate is not twice its cold one keeps nothing: not for general use


@dataclass
class ModeSpeed:
    """Rates in rows per second (cold: median of the rounds), the decode step in seconds. None: not measured."""

    mode: str
    effective: str = ""
    cold: float | None = None
    cold_rounds: list[float] = field(default_factory=list)
    warm: float | None = None
    decode_cold_s: float | None = None
    decode_warm_s: float | None = None
    fallback_reason: str | None = None


@dataclass
class Advice:
    """Everything measured, and the words that follow from it. rows_per_page: drawn rows over the pages they are on."""

    table_bytes: int
    rows_per_token: int
    available_bytes: int | None
    fits: bool
    device: list[DeviceRate] = field(default_factory=list)
    device_rounds: list[float] = field(default_factory=list)
    modes: list[ModeSpeed] = field(default_factory=list)
    seconds: float = 0.0
    cold_problem: str | None = None
    rows_per_page: float = 1.0

    @property
    def limit_problem(self) -> str | None:
        """Why the device's limit bounds nothing here; None: it does."""
        best = self.best("cold")
        if self.limit is None:
            return None
        share = best.cold / self.limit if best is not None and best.cold is not None else 0.0
        reached = f"{best.mode} got {share:.0%} of it" if best is not None and share > 1 else ""
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
    def limit(self) -> float | None:
        """Reads per second that the device was seen to answer, in the depth series or between the rounds of modes."""
        return max([*(rate.reads_per_s for rate in self.device), *self.device_rounds], default=None)

    def best(self, what: str) -> ModeSpeed | None:
        """The mode that is best at `cold`, `warm` (a rate) or `decode_cold_s`, `decode_warm_s` (a time)."""
        known = [mode for mode in self.modes if getattr(mode, what) is not None]
        if not known:
            return None
        sign = -1 if what.endswith("_s") else 1
        return max(known, key=lambda mode: sign * getattr(mode, what))

    def as_json(self) -> dict[str, Any]:
        """As plain values."""
        values = {key: value for key, value in asdict(self).items() if key not in ("device", "modes")}
        return {
            **values,
            "device_limit_reads_per_s": self.limit,
            "device_limit_problem": self.limit_problem,
            "device": [{**asdict(rate), "reads_per_s": rate.reads_per_s, "depth": d} for d, rate in self._by_depth()],
            "modes": [asdict(mode) for mode in self.modes],
            "queue_depth": self.depth,
            "recommended": self.recommended,
            "advice": sentences(self),
        }

    def _by_depth(self) -> list[tuple[int, DeviceRate]]:
        return list(zip(DEPTHS, self.device, strict=False))

    @property
    def depth(self) -> int | None:
        """The smallest probed depth within 5% of the device's best rate."""
        if not self.device:
            return None
        best = max(rate.reads_per_s for rate in self.device)
        return next(d for d, rate in self._by_depth() if rate.reads_per_s >= ENOUGH_DEPTH * best)

    @property
    def recommended(self) -> str:
        """`auto`, unless another mode that keeps rows warm beat it cold clearly: in the median, and in every round."""
        auto = next((mode for mode in self.modes if mode.mode == "auto"), None)
        if auto is None or auto.cold is None or auto.warm is None:
            return "auto"
        better = [
            mode
            for mode in self.modes
            if mode.cold is not None
            and mode.cold * CLOSE > auto.cold
            and min(mode.cold_rounds) > max(auto.cold_rounds)
            and (mode.warm or 0) > mode.cold * WARM_GAIN
        ]
        return max(better, key=lambda mode: mode.cold or 0).mode if better else "auto"


def advise_table(table: Table, rows_per_token: int, settings: RowSettings, seed: int, tell: Tell) -> Advice:
    """Measure device and modes. Raises: CannotRun where residency cannot be verified at all."""
    started = perf_counter()
    generator = np.random.default_rng(seed)
    memory = available_bytes()
    advice = Advice(table.size_bytes, rows_per_token, memory, memory is not None and table.size_bytes < 0.8 * memory)
    try:
        residency.resident_fraction(table)
    except OSError as error:
        raise CannotRun(
            f"{table.segments[0].path}: {error.strerror}: nothing measured here could be called cold"
        ) from error
    rows = min(ROWS, max(64, table.rows // 4))
    advice.rows_per_page = rows / _pages(table, np.random.default_rng(seed).integers(0, table.rows, rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fallback is told in the table
        _probe_device(advice, table, generator, tell)
        advice.modes = [ModeSpeed(mode) for mode in MEASURED]
        rounds = ROUNDS if table.size_bytes >= SMALL_TABLE_BYTES else 1
        for turn in range(rounds):
            _probe_between(advice, table, generator)
            for speed in advice.modes[:: 1 if turn % 2 == 0 else -1]:
                tell(f"{speed.mode}: cold, round {turn + 1} of {rounds}" + (", then warm" if turn == 0 else ""))
                _measure(speed, table, rows, rows_per_token, settings, generator, advice, warm=turn == 0)
    advice.seconds = perf_counter() - started
    return advice


def _probe_device(advice: Advice, table: Table, generator: np.random.Generator, tell: Tell) -> None:
    try:
        probe = DeviceProbe(table)
    except ModeUnavailable:
        return
    try:
        best: dict[int, DeviceRate] = {}
        for depth in (*DEPTHS, *DEPTHS[::-1]):  # up and down: the better of two, other programs use the disk too
            tell(f"device: random 4 KiB reads, {depth} in flight")
            short = probe.run(64 * depth, depth, int(generator.integers(1 << 31)))
            reads = int(np.clip(short.reads_per_s * PROBE_S, 64, 60_000))
            rate = probe.run(reads, depth, int(generator.integers(1 << 31)))
            if depth not in best or rate.reads_per_s > best[depth].reads_per_s:
                best[depth] = rate
        advice.device = [best[depth] for depth in DEPTHS]
    finally:
        probe.close()


def _probe_between(advice: Advice, table: Table, generator: np.random.Generator) -> None:
    """Ask the device again: its limit drifts, and modes are compared with what it could do in their round."""
    if advice.device:
        probe = DeviceProbe(table)
        try:
            rate = probe.run(int(advice.device[-1].reads), DEPTHS[-1], int(generator.integers(1 << 31)))
            advice.device_rounds.append(rate.reads_per_s)
        finally:
            probe.close()


def _measure(
    speed: ModeSpeed,
    table: Table,
    rows: int,
    rows_per_token: int,
    settings: RowSettings,
    generator: np.random.Generator,
    advice: Advice,
    warm: bool,
) -> None:
    """One mode: cold decode steps and a cold prefill batch on rows of their own; `warm`: then both again."""
    with open_rows(table, speed.mode, settings) as reader:
        out = np.zeros((rows, table.row_bytes), np.uint8)
        reader.gather(generator.integers(0, table.rows, 64))  # first-call costs, on other rows
        ids, steps = _draw(table, rows, rows_per_token, generator)
        reader.trim()
        eviction = residency.make_cold(table)
        if eviction.cold:
            decode = statistics.median(_timed(reader, step, out[:rows_per_token]) for step in steps)
            speed.decode_cold_s = min(decode, speed.decode_cold_s or decode)
            speed.cold_rounds.append(rows / _timed(reader, ids, out))
            speed.cold = statistics.median(speed.cold_rounds)
        else:
            advice.cold_problem = (
                f"{eviction.resident:.0%} of the table stayed in memory: not everything cold was measured"
            )
        if warm:
            for _ in range(3):
                reader.gather(ids, out)
            speed.warm = rows / statistics.median(_timed(reader, ids, out) for _ in range(5))
            times = [_timed(reader, steps[0], out[:rows_per_token]) for _ in range(60)]
            speed.decode_warm_s = statistics.median(times[20:])
        speed.effective, speed.fallback_reason = reader.effective_mode, reader.fallback_reason


def _draw(table: Table, rows: int, rows_per_token: int, generator: np.random.Generator) -> tuple[Ids, list[Ids]]:
    ids = generator.integers(0, table.rows, rows)
    return ids, [generator.integers(0, table.rows, rows_per_token) for _ in range(DECODE_STEPS)]


def _pages(table: Table, ids: Ids) -> int:
    """Pages that hold at least one byte of these rows, those of a segment being the segment's own."""
    first = table.offsets(ids)
    pages = np.concatenate([first // PAGE_BYTES, (first + table.row_bytes - 1) // PAGE_BYTES])
    return int(np.unique(pages + (np.tile(table.segment_of(ids), 2) << 48)).size)


def _timed(reader: RowReader, ids: Ids, out: npt.NDArray[np.uint8]) -> float:
    started = perf_counter()
    reader.gather(ids, out)
    return perf_counter() - started


def sentences(advice: Advice) -> list[str]:
    """What to do, and why, with the numbers that say so."""
    said = []
    if advice.limit is not None and advice.depth is not None:
        said.append(
            f"This device answers up to {advice.limit:,.0f} random 4 KiB reads a second, with {advice.depth} or more "
            f"of them in flight; one at a time it answers {advice.device[0].reads_per_s:,.0f}."
        )
        said.append(
            advice.limit_problem
            or f"A token reads {advice.rows_per_token} rows, so no reader can prefill faster than about "
            f"{advice.limit / advice.rows_per_token:,.0f} tokens a second while every row is new to the page cache."
        )
    else:
        said.append("This file system has no O_DIRECT: the device cannot be measured past the page cache.")
    said += _mode_sentences(advice)
    if advice.fits:
        said.append(
            f"The table ({advice.table_bytes / 2**30:.1f} GiB) fits into the available memory "
            f"({(advice.available_bytes or 0) / 2**30:.1f} GiB): once read it stays warm, unless something else needs "
            "the memory; `resident` reads it all at start and never waits again."
        )
    else:
        said.append(
            f"The table ({advice.table_bytes / 2**30:.1f} GiB) does not fit comfortably into the available memory "
            f"({(advice.available_bytes or 0) / 2**30:.1f} GiB): expect a part of the rows to be cold for good, and do "
            "not use `resident`."
        )
    if advice.cold_problem:
        said.append(f"{advice.cold_problem}.")
    return said


def _mode_sentences(advice: Advice) -> list[str]:
    said = []
    cold, warm = advice.best("cold"), advice.best("warm")
    chosen = advice.recommended
    auto = next((mode for mode in advice.modes if mode.mode == chosen), None)
    if cold is not None and cold.cold is not None:
        said.append(
            f"Cold, {cold.mode} is fastest: {cold.cold:,.0f} rows a second (rounds from "
            f"{min(cold.cold_rounds):,.0f} to {max(cold.cold_rounds):,.0f}), "
            f"{cold.cold / advice.rows_per_token:,.0f} tokens of prefill a second."
        )
    if warm is not None and warm.warm is not None:
        said.append(
            f"Warm, {warm.mode} is fastest: {warm.warm:,.0f} rows a second, "
            f"{warm.warm / advice.rows_per_token:,.0f} tokens: the table is then no limit."
        )
    depth = f" with queue depth {advice.depth} or more" if advice.depth else ""
    reason = "no mode that keeps rows warm is clearly faster" if chosen == "auto" else "clearly faster cold than auto"
    line = f"Use {chosen}{depth}: {reason}"
    if auto is not None and auto.decode_cold_s is not None and auto.decode_warm_s is not None:
        line += (
            f"; a decode step's rows take {auto.decode_cold_s * 1e6:,.0f} us cold and {auto.decode_warm_s * 1e6:,.0f} "
            "us warm"
        )
    said.append(line + ".")
    fallbacks = [mode for mode in advice.modes if mode.effective != mode.mode]
    said += [f"{mode.mode} ran as {mode.effective}: {mode.fallback_reason}." for mode in fallbacks]
    return said


def rows_per_token_of(metadata: Any, architecture: str) -> int:
    """Rows that one token reads: one per head by the hash, one where the row is the token's own."""
    sizes = metadata.get(f"{architecture}.ple.head_vocab_sizes")
    return 1 if sizes is None else max(1, len(sizes))


def settings_for(depth: int | None) -> RowSettings:
    """The default settings, with another queue depth where one was asked for."""
    return RowSettings() if depth is None else replace(RowSettings(), queue_depth=depth)


def device_name(path: Path) -> str:
    """The block device a file is on, and its file system, as the kernel names them; empty where it does not say."""
    device = path.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            fields, _, tail = line.partition(" - ")
            if fields.split()[2] == wanted:
                kind, source = tail.split()[:2]
                return f"{kind} on {source}"
    except OSError:
        pass
    return ""

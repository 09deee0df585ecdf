"""The rows gate: every mode gives the rows that plain positional reads give, cold and warm, packed and as float32.

Needs nothing of a model but its table, so it works for qwen4exp (rows by the hash of real prompts) and for gemma3n and
gemma4 (row = token id). What is right comes from outside the code under test: os.pread and `gguf`'s dequantizer.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import ModeCannotRun, RowReader, RowSettings, Table, locate_table, open_rows, residency
from harness.cases.case import ModeSource
from harness.gate import compare
from harness.gate.batches import RowBatch
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, UNSTEADY
from harness.gate.whole_table import WholeTable, compare_whole
from model_file.gguf_file import open_gguf

SMALL_TABLE_BYTES = 64 << 20  # a smaller table is read in a moment from any disk: that it stays warm is only a note
Tell = Callable[[str], None]


@dataclass
class ModeRows:
    """What was found of one mode. `counters`: the warm gather's, and the cold one's where it was measured.

    not_run: why neither the mode nor another one in its place could run.
    """

    name: str
    mode: str
    effective: str = ""
    fallback_reason: str | None = None
    not_run: str | None = None
    rows_compared: int = 0
    difference: compare.RowDifference | None = None
    control: str | None = None
    not_cold: str | None = None
    cold_required: bool = False
    counters: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """equal, different, unsteady (two gathers of the same rows differ) or not run (another did, or none)."""
        if self.control:
            return UNSTEADY
        if self.difference:
            return DIFFERENT
        return NOT_RUN if self.effective != self.mode else EQUAL


@dataclass
class RowsResult:
    """Everything the command reports."""

    model: str
    against: str | None
    architecture: str
    table: Table
    batches: list[RowBatch]
    seed: int
    modes: list[ModeRows] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    whole: WholeTable | None = None  # where it was compared with another file

    @property
    def rows_sampled(self) -> int:
        """Different rows that the modes gathered."""
        return int(np.unique(np.concatenate([batch.ids for batch in self.batches])).size)

    @property
    def coverage(self) -> str:
        """How many of the table's rows the verdict speaks of."""
        if self.whole is None:
            return f"{self.rows_sampled:,} of {self.table.rows:,} rows compared"
        return f"{self.rows_sampled:,} rows through the modes; {self.whole.story()}"

    @property
    def exit_code(self) -> int:
        """1 for a difference or an unsteady mode, 3 for a mode or a cold cell that could not be run, else 0."""
        if any(mode.verdict in (DIFFERENT, UNSTEADY) for mode in self.modes) or (self.whole and self.whole.different):
            return 1
        missing = any(mode.verdict == NOT_RUN or (mode.not_cold and mode.cold_required) for mode in self.modes)
        return 3 if missing else 0


def judge_rows(
    path: Path,
    batches: list[RowBatch],
    sources: Sequence[ModeSource],
    settings: RowSettings,
    against: Path | None,
    cold: bool | None,
    tell: Tell,
) -> RowsResult:
    """Every mode, every batch: cold, then warm twice. Opens files read-only and writes nothing.

    `cold` None: tried, and only a note where it fails on a small table; True: required; False: left out.

    Raises: InputError for a file that cannot be used.
    """
    with open_gguf(path) as model:
        table, architecture = compare.check_type(locate_table(model)), model.architecture
    truth = table if against is None else compare.copy_of_table(against, table)
    result = RowsResult(str(path), str(against) if against else None, architecture, table, batches, seed=0)
    tell("reading what the file holds, row by row")
    packed = [compare.expected_packed(truth, batch.ids) for batch in batches]
    with np.errstate(invalid="ignore"):
        values = [compare.expected_f32(rows, truth) for rows in packed]
    for source in sources:
        own = table if source.path is None else compare.copy_of_table(source.path, table)
        required = cold if cold is not None else table.size_bytes >= SMALL_TABLE_BYTES
        mode = ModeRows(source.name, source.mode, cold_required=required)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fallback is told in the verdict
            tell(f"{source.name}: opening")
            try:
                with open_rows(own, source.mode, settings) as reader:
                    _judge_mode(mode, reader, own, batches, packed, values, cold is not False, tell)
                    mode.effective, mode.fallback_reason = reader.effective_mode, reader.fallback_reason
            except ModeCannotRun as refused:  # the other modes can be judged all the same
                mode.not_run = str(refused)
        result.modes.append(mode)
    if against is not None:  # last: it leaves both files in the page cache
        result.whole = compare_whole(table, truth, tell)
    return result


def _judge_mode(
    mode: ModeRows,
    reader: RowReader,
    table: Table,
    batches: list[RowBatch],
    packed: list[npt.NDArray[np.uint8]],
    values: list[npt.NDArray[np.float32]],
    cold: bool,
    tell: Tell,
) -> None:
    if cold and mode.mode != "resident":
        tell(f"{mode.name}: cold")
        reader.trim()
        mode.not_cold = _make_cold(table, attempts=3 if mode.cold_required else 2)
    first: list[npt.NDArray[np.uint8]] = []
    for number, batch in enumerate(batches):
        tell(f"{mode.name}: {batch.name}")
        found = reader.gather(batch.ids)
        if number == 0 and cold and mode.mode != "resident" and not mode.not_cold:
            mode.counters["cold"] = reader.last.as_dict()
        first.append(found)
        _compare(mode, table, batch, found, packed[number], values[number])
    for number, batch in enumerate(batches):
        tell(f"{mode.name}: {batch.name} again")
        again = reader.gather(batch.ids)
        if number == 0:
            reader.gather(batch.ids)
            mode.counters["warm"] = reader.last.as_dict()
        if mode.control is None and again.tobytes() != first[number].tobytes():
            story = compare.first_row_difference(
                "packed", again, first[number], batch.ids, table, batch.name, max(batch.heads, 1)
            )
            mode.control = f"two gathers of the same rows differ: {story.story() if story else 'unknown place'}"


def _make_cold(table: Table, attempts: int) -> str | None:
    """Evict the table and verify it; why nothing read afterwards may be called cold, None where it may."""
    try:
        eviction = residency.make_cold(table, attempts=attempts)
    except OSError as error:  # the rows can be compared all the same
        return (
            f"{error.filename or table.segments[0].path}: could not be evicted from memory and verified: "
            f"{error.strerror or error}; use a file of your own, or --no-cold, which leaves these cells out"
        )
    if eviction.cold:
        return None
    return (
        f"{eviction.resident:.1%} of the table stayed in memory after {eviction.attempts} evictions, expected at most "
        f"{residency.COLD_FRACTION:.0%}: this file system may keep files in memory, or another process has the table "
        "mapped; --no-cold leaves these cells out"
    )


def _compare(
    mode: ModeRows,
    table: Table,
    batch: RowBatch,
    found: npt.NDArray[np.uint8],
    packed: npt.NDArray[np.uint8],
    values: npt.NDArray[np.float32],
) -> None:
    """Packed bytes, then the values that the fast path would compute from them."""
    from fast.rows.dequantize import dequantize_on_device

    heads = max(batch.heads, 1)
    mode.rows_compared += batch.ids.size
    if mode.difference is None:
        mode.difference = compare.first_row_difference("packed", found, packed, batch.ids, table, batch.name, heads)
    if mode.difference is None:
        unpacked = np.array(dequantize_on_device(found, type=table.type))
        # Which bits a NaN has is the hardware's choice; every other value is compared as bits.
        both_nan = np.isnan(unpacked) & np.isnan(values)
        unpacked[both_nan] = values[both_nan]
        mode.difference = compare.first_row_difference("f32", unpacked, values, batch.ids, table, batch.name, heads)

"""The gate at the level of rows: bytes through a mode against the file's, in every size of batch, cached, far out.

Needs nothing of a model but its table, so that it works for qwen4exp (rows by the hash of real prompts) and for gemma3n
and gemma4 (row = token id). What is right comes from outside the code under test: positional reads,
`gguf`'s dequantizer.
"""

from __future__ import annotations

import errno
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import ModeCannotRun, RowCache, RowReader, RowSettings, Table, open_rows, residency, syscalls
from harness.cases.case import ModeSource
from harness.gate import compare
from harness.gate.advice import watching_madvise
from harness.gate.checks import Finding
from harness.gate.evidence import CountingCalls, Evidence, look
from harness.gate.far_rows import FarRows
from harness.gate.verdicts import ModeVerdict
from harness.oracle import TABLE_TYPES, Float32, Ids, Packed, expected_f32, expected_packed

Report = Callable[[str], None]
SINGLE_TOKENS = 24  # of each prompt, gathered one at a time as decode does it: modes treat small batches another way
CACHE_ROWS = 128  # small, so that rows of most prompts push each other out
EVIDENCE_ROWS = 256  # gathered while the kernel is watched: enough that each mode's own way shows
FAR_REPEATS = 16  # so many times the far rows are one batch, which is then more than a first portion of `auto`
RANDOM_ROWS = 12_288  # more than one portion of every mode that reads in portions, and two of `auto`
SMALL_PORTIONS: dict[str, Any] = {
    "queue_depth": 16, "workers": 4, "slice_reads": 8, "range_pages": 2, "advise_ranges": 8, "advise_rows": 64,
    "staging_bytes": 1 << 13,
}  # fmt: skip
"""Settings of a second reader, whose rings, windows and lists are used up and begun again many times in a batch."""
_COUNT_AT = {"io_submit": 1, "process_madvise": 2, "io_uring_enter": 1}  # which argument says how much is asked for


def _refused(*_: object) -> int:
    return -errno.EPERM


def _halved(name: str, *arguments: int) -> int:
    """The system call, asked for half of it, as a kernel that is short of something takes it."""
    place, asked = _COUNT_AT.get(name), list(arguments)
    if place is not None and asked[place] > 1:
        asked[place] //= 2
        if name == "io_uring_enter":  # it must not wait for more than it was given
            asked[2] = min(asked[2], asked[place])
    return syscalls.call(name, *asked)


OTHER_WAYS: dict[str, dict[str, Any]] = {
    "in small portions": SMALL_PORTIONS,
    "with every system call refused": {"syscall": _refused},
    "with system calls that do half": {"syscall": _halved},
}
SMALL_TABLE_BYTES = 64 << 20  # a smaller table is read in a moment from any disk: that it stays warm is only a note
UNSEEN = "the rows were compared, how they were read could not be seen: no /proc"
_POISON = 0xA5  # what rows are gathered over: memory that is not written must not look right because it was used before


@dataclass(frozen=True)
class ExpectedRows:
    """What every mode is compared with, for one prompt with the answer recorded for it, or for random rows.

    Shapes: ids uint64 [n], packed [n, row_bytes], f32 [n, e] ([n, 0] of a type that nothing unpacks).
    heads: rows of one token, 0 where they belong to none.
    """

    case: str
    prompt: str
    ids: Ids
    packed: Packed
    f32: Float32
    heads: int


def expect_rows(table: Table, ids: Ids, prompt: str, heads: int, case: str = "") -> ExpectedRows:
    """Rows from outside the code under test."""
    packed = expected_packed(table, ids)
    with np.errstate(invalid="ignore"):
        f32 = expected_f32(packed, table) if table.type in TABLE_TYPES else np.empty((len(ids), 0), np.float32)
        return ExpectedRows(case, prompt, ids, packed, f32, heads)


@dataclass(frozen=True)
class RowJudge:
    """Judges the rows of mode after mode. cold: whether a verified cold start is insisted on; None: it is tried."""

    expected: Sequence[ExpectedRows]
    settings: RowSettings
    without: Collection[str]
    report: Report
    cold: bool | None = False
    far: FarRows | None = None

    def judge(self, verdict: ModeVerdict, source: ModeSource, table: Table) -> None:
        """All gathers of one mode. A mode that this machine cannot run is noted in its verdict."""
        calls = CountingCalls(self.settings.syscall)
        self.report(f"{source.name}: rows")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fallback is said in the verdict
                before = look(table, calls)
                with open_rows(table, source.mode, replace(self.settings, syscall=calls, metering="full")) as reader:
                    opened = look(table, calls)
                    spread = np.linspace(0, table.rows - 1, EVIDENCE_ROWS).astype(np.uint64)
                    with watching_madvise(calls.advised):
                        reader.gather(spread)
                    after = look(table, calls)
                    self._judge_reader(verdict, source, reader, table)
                    verdict.effective, verdict.fallback_reason = reader.effective_mode, reader.fallback_reason
                    verdict.add_counters(reader.totals)
                if verdict.effective == source.mode and source.mode != "resident":  # which reads nothing when asked
                    self._judge_other_ways(verdict, source, table)
                    self._judge_far(verdict, source)
        except ModeCannotRun as refused:  # the other modes can be judged all the same
            verdict.not_run = str(refused)
            return
        if verdict.effective != source.mode:
            verdict.not_run = f"ran as {verdict.effective}: {verdict.fallback_reason}"
        elif not (before and opened and after):
            verdict.unseen = UNSEEN
        else:
            self._judge_evidence(verdict, Evidence.between(source.mode, table, spread.tolist(), before, opened, after))

    def _judge_reader(self, verdict: ModeVerdict, source: ModeSource, reader: RowReader, table: Table) -> None:
        """Every batch twice whole, the first cold where that is wanted; then token by token and through a cache."""
        cold = self.cold is not False and source.mode != "resident"
        if cold:
            verdict.cold_required = self.cold if self.cold is not None else table.size_bytes >= SMALL_TABLE_BYTES
            self.report(f"{source.name}: cold")
            reader.trim()
            verdict.not_cold = _make_cold(table, attempts=3 if verdict.cold_required else 2)
        for number, expected in enumerate(self.expected):
            notes = Notes(verdict.findings, expected, table, self.without)
            packed = reader.gather(expected.ids, out=_poisoned(expected.packed))
            if number == 0 and cold and not verdict.not_cold:
                verdict.timed["cold"] = reader.last.as_dict()
            again = reader.gather(expected.ids, out=_poisoned(expected.packed))
            if number == 0:
                reader.gather(expected.ids)
                verdict.timed["warm"] = reader.last.as_dict()
            verdict.rows_compared += len(packed)
            if packed.tobytes() != again.tobytes():
                notes.add("control rows", "packed", again, packed, "two gathers of one batch differ: ")
            notes.add("packed rows", "packed", packed, expected.packed)
            notes.add("packed rows", "packed", _token_by_token(reader, expected), expected.packed, "token by token: ")
            if "row cache" not in self.without and not notes.found("packed rows"):  # else it passes on what is known
                _judge_cache(notes, reader, expected, table)

    def _judge_other_ways(self, verdict: ModeVerdict, source: ModeSource, table: Table) -> None:
        """The first batch through readers that work under other conditions; what falls back must be right too."""
        expected = self.expected[0]
        notes = Notes(verdict.findings, expected, table, self.without)
        for words, changes in OTHER_WAYS.items():
            with open_rows(table, source.mode, replace(self.settings, **changes)) as reader:
                found = reader.gather(expected.ids, out=_poisoned(expected.packed))
            notes.add("packed rows", "packed", found, expected.packed, f"{words}: ")

    def _judge_far(self, verdict: ModeVerdict, source: ModeSource) -> None:
        """Rows beyond 2^32, from cold pages and again, and a cache asked for rows that share slot and low bits."""
        if self.far is None:
            return
        expected = expect_rows(
            self.far.table, np.tile(self.far.ids, FAR_REPEATS), "rows that collide, in nameless files of the gate", 0
        )
        notes = Notes(verdict.findings, expected, self.far.table, self.without)
        residency.evict(self.far.table)
        with open_rows(self.far.table, source.mode, self.settings) as reader:
            for turn in ("first", "second"):
                found = reader.gather(expected.ids, out=_poisoned(expected.packed))
                notes.add("packed rows", "packed", found, expected.packed, f"far out in a table, {turn} time: ")
            if "row cache" not in self.without and not notes.found("packed rows"):
                self._judge_collisions(notes, reader, expected)

    def _judge_collisions(self, notes: Notes, reader: RowReader, expected: ExpectedRows) -> None:
        ids, right = (whole[: len(whole) // FAR_REPEATS] for whole in (expected.ids, expected.packed))
        for slots in (1, 3, 7):  # fewer than rows: most of them meet another one's slot
            cache = RowCache(reader, slots * (right.shape[1] + 8))
            for turn, order in enumerate((range(len(ids)), range(len(ids) - 1, -1, -1))):
                found = np.empty_like(right)
                for place in order:
                    found[place] = cache.gather(ids[place : place + 1])[0]
                words = f"through a row cache of {cache.slots} slots, turn {turn + 1}: "
                if notes.add("row cache", "packed", found, right, words):
                    return

    def _judge_evidence(self, verdict: ModeVerdict, evidence: Evidence) -> None:
        verdict.evidence = evidence.as_dict()
        problems = evidence.problems()
        if problems and "mode evidence" not in self.without:
            message = f"{verdict.name} does not read as {evidence.mode} does: {'; '.join(problems)}"
            verdict.findings.append(Finding("mode evidence", "", "", message, {"evidence": verdict.evidence}))


def _poisoned(like: Packed) -> Packed:
    return np.full(like.shape, _POISON, np.uint8)


def _token_by_token(reader: RowReader, expected: ExpectedRows) -> Packed:
    heads = expected.heads or 1
    count = min(SINGLE_TOKENS * heads, len(expected.ids))
    parts = [
        reader.gather(expected.ids[at : at + heads], out=_poisoned(expected.packed[at : at + heads]))
        for at in range(0, count, heads)
    ]
    return np.concatenate(parts)


def _judge_cache(notes: Notes, reader: RowReader, expected: ExpectedRows, table: Table) -> None:
    cache = RowCache(reader, CACHE_ROWS * (table.row_bytes + 8))  # never closed: that would close the mode's reader
    ids, count = expected.ids, len(expected.ids)
    few = min(CACHE_ROWS, count)
    turns = {  # batches that fill it, one larger than all of it, and one that it holds
        "in pieces": [ids[at : at + CACHE_ROWS] for at in range(0, count, CACHE_ROWS)],
        "as a whole": [ids],
        "the first rows": [ids[:few]],
        "the first rows again": [ids[:few]],
    }
    for words, batches in turns.items():
        found = np.concatenate([cache.gather(batch) for batch in batches])
        if notes.add("row cache", "packed", found, expected.packed, f"through a row cache, {words}: "):
            return


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


class Notes:
    """Adds a finding to a list unless its check is taken out or has found something already."""

    def __init__(self, findings: list[Finding], expected: ExpectedRows, table: Table, without: Collection[str]) -> None:
        self.findings, self.expected, self.table, self.without = findings, expected, table, without

    def found(self, check: str) -> bool:
        """Whether that check has found something already."""
        return any(finding.check == check for finding in self.findings)

    def add(self, check: str, level: str, found: npt.NDArray[Any], right: npt.NDArray[Any], before: str = "") -> bool:
        """Compare rows with the first so many of `right`; true when something is noted."""
        if check in self.without or self.found(check):
            return False
        expected, right = self.expected, right[: len(found)]
        heads = max(expected.heads, 1)
        difference = compare.first_row_difference(
            level, found, right, expected.ids[: len(found)], self.table, expected.prompt, heads
        )
        if difference is None:
            return False
        message, detail = before + difference.message(), compare.as_json(difference) or {}
        self.findings.append(Finding(check, expected.case, expected.prompt, message, detail))
        return True

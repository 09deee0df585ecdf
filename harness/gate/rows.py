"""The gate at the level of rows: bytes through a mode against the file's, in large and small batches, and cached."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import RowCache, RowReader, Table
from harness.cases.case import Case, TokenPrompt
from harness.gate import compare
from harness.gate.checks import Finding
from harness.gate.oracle import HashOracle
from harness.gate.verdicts import ModeVerdict

SINGLE_TOKENS = 24  # of each prompt, gathered one at a time as decode does it: modes treat small batches another way
CACHE_ROWS = 128  # small, so that rows of most prompts push each other out


@dataclass(frozen=True)
class ExpectedRows:
    """What every mode is compared with, for one prompt and the answer that was recorded for it.

    Shapes: ids uint64 [t * n], packed [t * n, row_bytes], f32 [t * n, e].
    """

    case: Case
    prompt: TokenPrompt
    ids: npt.NDArray[np.uint64]
    packed: compare.Packed
    f32: compare.Float32
    heads: int


def expect_rows(
    table: Table, oracle: HashOracle, case: Case, prompt: TokenPrompt, answer: Sequence[int]
) -> ExpectedRows:
    """Rows of a prompt and its answer (all but the last token, which is never fed) from outside the code under test."""
    ids = oracle.rows([*prompt.ids, *answer[:-1]]).reshape(-1)
    packed = compare.expected_packed(table, ids)
    return ExpectedRows(case, prompt, ids, packed, compare.expected_f32(packed, table), oracle.heads)


def judge_rows(
    verdict: ModeVerdict, reader: RowReader, expected: ExpectedRows, table: Table, without: Collection[str]
) -> None:
    """Gather a prompt's rows twice whole, then token by token and through a row cache; note the first differences."""
    packed = reader.gather(expected.ids)
    again = reader.gather(expected.ids)
    verdict.rows_compared += len(packed)
    notes = _Notes(verdict.findings, expected, table, without)
    if packed.tobytes() != again.tobytes():
        notes.add("control rows", "packed", again, packed, "two gathers of one batch differ: ")
    notes.add("packed rows", "packed", packed, expected.packed)
    notes.add("packed rows", "packed", _token_by_token(reader, expected), expected.packed, "read token by token: ")
    if "row cache" not in without and not notes.found("packed rows"):  # else the cache only passes on what is known
        _judge_cache(notes, reader, expected, table)


def judge_unpacking(findings: list[Finding], expected: ExpectedRows, table: Table, without: Collection[str]) -> None:
    """Unpack the file's own bytes as the fast path does: a wrong byte from a mode is another check's to find."""
    notes = _Notes(findings, expected, table, without)
    if "f32 rows" not in without:
        notes.add("f32 rows", "f32", _unpacked(expected.packed, table), expected.f32)


def _token_by_token(reader: RowReader, expected: ExpectedRows) -> compare.Packed:
    count = min(SINGLE_TOKENS * expected.heads, len(expected.ids))
    parts = [reader.gather(expected.ids[at : at + expected.heads]) for at in range(0, count, expected.heads)]
    return np.concatenate(parts)


def _unpacked(packed: compare.Packed, table: Table) -> compare.Float32:
    import jax

    from fast.rows.dequantize import dequantize_jax

    return np.asarray(jax.jit(dequantize_jax, static_argnums=1)(packed, table.type))


def _judge_cache(notes: _Notes, reader: RowReader, expected: ExpectedRows, table: Table) -> None:
    cache = RowCache(reader, CACHE_ROWS * (table.row_bytes + 8))  # never closed: that would close the mode's reader
    for turn in ("first", "second", "third"):
        found = np.concatenate(
            [cache.gather(expected.ids[at : at + CACHE_ROWS]) for at in range(0, len(expected.ids), CACHE_ROWS)]
        )
        if notes.add("row cache", "packed", found, expected.packed, f"through a row cache, {turn} time: "):
            return


class _Notes:
    """Adds a finding to a list unless its check is taken out or has found something already."""

    def __init__(self, findings: list[Finding], expected: ExpectedRows, table: Table, without: Collection[str]) -> None:
        self.findings, self.expected, self.table, self.without = findings, expected, table, without

    def found(self, check: str) -> bool:
        """Whether that check has found something already."""
        return any(finding.check == check for finding in self.findings)

    def add(
        self,
        check: str,
        level: str,
        found: npt.NDArray[Any],
        right: npt.NDArray[Any],
        before: str = "",
    ) -> bool:
        """Compare rows with the first so many of `right`; true when something is noted."""
        if check in self.without or self.found(check):
            return False
        ids = self.expected.ids[: len(found)]
        difference = compare.first_row_difference(
            level, found, right[: len(found)], ids, self.table, self.expected.prompt.name, self.expected.heads
        )
        if difference is None:
            return False
        story = before + difference.story()
        self.findings.append(
            Finding(check, self.expected.case.id, self.expected.prompt.name, story, compare.as_json(difference) or {})
        )
        return True

"""A reader that notes which rows it is asked for, and whether these are the rows of what was fed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader

Ids = npt.NDArray[np.uint64]


class Traced:
    """Notes every id, call by call; everything else is the inner reader's."""

    def __init__(self, inner: RowReader) -> None:
        self._inner = inner
        self.calls: list[Ids] = []

    def gather(self, ids: Any, out: Any = None) -> Any:
        """The inner reader's rows."""
        self.calls.append(np.array(ids, np.uint64).reshape(-1))
        return self._inner.gather(ids, out)

    def take(self) -> list[Ids]:
        """The calls since the last time."""
        calls, self.calls = self.calls, []
        return calls

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass(frozen=True)
class WrongRow:
    """The first row that was not asked for as it should: of which sequence, at which position and head.

    found, expected: row ids; None where nothing was asked for, or nothing more should have been.
    """

    sequence: int
    position: int
    head: int
    found: int | None
    expected: int | None


def first_wrong_row(calls: Sequence[Ids], expected: Sequence[Ids]) -> WrongRow | None:
    """None where the calls ask for the rows of every sequence, each in order and all of them, and for nothing else.

    Sequences of a batch may come in any order, and one call may hold rows of several: each piece of a call belongs to
    the sequence whose next rows it matches furthest. Shapes: expected [t, n] for each sequence.
    """
    heads = expected[0].shape[1]
    flat = [rows.reshape(-1) for rows in expected]
    done = [0] * len(flat)
    for call in calls:
        at = 0
        while at < call.size:
            matched = [_same(call[at:], rows[start:]) for rows, start in zip(flat, done, strict=True)]
            best = int(np.argmax(matched))
            if matched[best] < min(heads, call.size - at):
                return _wrong(best, done[best] + matched[best], int(call[at + matched[best]]), flat[best], heads)
            at += matched[best]
            done[best] += matched[best]
    for number, (rows, end) in enumerate(zip(flat, done, strict=True)):
        if end < rows.size:
            return _wrong(number, end, None, rows, heads)
    return None


def _same(call: Ids, rows: Ids) -> int:
    """How many ids both begin with."""
    count = min(call.size, rows.size)
    differs = np.flatnonzero(call[:count] != rows[:count])
    return int(differs[0]) if differs.size else count


def _wrong(sequence: int, place: int, found: int | None, rows: Ids, heads: int) -> WrongRow:
    expected = int(rows[place]) if place < rows.size else None
    return WrongRow(sequence, place // heads, place % heads, found, expected)

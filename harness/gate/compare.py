"""Comparisons that promise equality, and the smallest account of the first difference.

Rows are compared as bytes and tokens as ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import Table
from harness.oracle import Packed

SHOWN_BYTES = 12


@dataclass(frozen=True)
class RowDifference:
    """The first row that is not what the file holds.

    level: `packed` (bytes as stored) or `f32` (after dequantizing). byte: inside the row at that level.
    offset_bytes: where that packed row starts in `shard`. found_row, expected_row: the whole row, hexadecimal.
    """

    level: str
    prompt: str
    token: int
    head: int
    row: int
    byte: int
    found: int
    expected: int
    shard: str
    offset_bytes: int
    found_row: str
    expected_row: str

    def message(self) -> str:
        """One sentence with everything needed to look at it."""
        return (
            f"first difference in {self.level} rows: prompt {self.prompt}, token {self.token}, head {self.head}, "
            f"row {self.row} (at byte {self.offset_bytes} of {self.shard}), byte {self.byte} of the row: "
            f"found 0x{self.found:02x}, expected 0x{self.expected:02x}; from there found {self._from(self.found_row)}, "
            f"expected {self._from(self.expected_row)}"
        )

    def _from(self, row: str) -> str:
        """The row's bytes from the first difference on, a few of them; all are in the JSON."""
        shown = row[2 * self.byte : 2 * (self.byte + SHOWN_BYTES)]
        return shown + ("..." if len(row) > 2 * (self.byte + SHOWN_BYTES) else "")


@dataclass(frozen=True)
class TokenDifference:
    """The first greedy token that differs; margin: top-1 minus top-2 logit of the expected run at that step."""

    prompt: str
    step: int
    found: int | None
    expected: int | None
    margin: float | None

    def message(self) -> str:
        """One sentence with everything needed to look at it."""
        margin = "" if self.margin is None else f" (its margin there: {self.margin:.3g})"
        return (
            f"first difference in tokens: prompt {self.prompt}, generated token {self.step}: "
            f"found {self.found}, expected {self.expected}{margin}"
        )


def first_row_difference(
    level: str,
    found: npt.NDArray[Any],
    expected: npt.NDArray[Any],
    ids: npt.NDArray[np.uint64],
    table: Table,
    prompt: str,
    heads: int,
) -> RowDifference | None:
    """None where both are the same bytes; else the first row, in prompt order, that is not.

    Shapes: found, expected [n, ...] of one dtype; ids [n], `heads` of them for each token.
    """
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        raise AssertionError(f"{level} rows: {found.dtype}{found.shape}, expected {expected.dtype}{expected.shape}")
    left, right = _bytes(found), _bytes(expected)
    if left.tobytes() == right.tobytes():
        return None
    index, byte = (int(place) for place in np.argwhere(left != right)[0])
    segment, offset = table.place(int(ids[index]))
    return RowDifference(
        level=level,
        prompt=prompt,
        token=index // heads,
        head=index % heads,
        row=int(ids[index]),
        byte=byte,
        found=int(left[index, byte]),
        expected=int(right[index, byte]),
        shard=segment.path.name,
        offset_bytes=offset,
        found_row=left[index].tobytes().hex(),
        expected_row=right[index].tobytes().hex(),
    )


def first_token_difference(
    found: Sequence[int], expected: Sequence[int], margins: Sequence[float], prompt: str
) -> TokenDifference | None:
    """None where both are the same ids; else the first step that is not, a missing token included."""
    for step in range(max(len(found), len(expected))):
        left = found[step] if step < len(found) else None
        right = expected[step] if step < len(expected) else None
        if left != right:
            return TokenDifference(prompt, step, left, right, margins[step] if step < len(margins) else None)
    return None


def as_json(difference: RowDifference | TokenDifference | None) -> dict[str, Any] | None:
    """A difference as plain values."""
    return None if difference is None else {"message": difference.message(), **asdict(difference)}


def _bytes(rows: npt.NDArray[Any]) -> Packed:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(rows.shape[0], -1)

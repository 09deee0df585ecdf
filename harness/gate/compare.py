"""Comparisons that promise equality, and the smallest story of the first difference.

Rows are compared as bytes and tokens as ids. What is expected of rows comes from outside the code under test: plain
positional reads of the file, and the `gguf` package's own dequantizer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from fast.rows import Table, locate_table
from model_file.errors import InputError
from model_file.gguf_file import open_gguf

Packed = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
SHOWN_BYTES = 12
_Type = gguf.GGMLQuantizationType
# What the fast path unpacks (a test holds the two lists equal); here, so that `plegate inspect` needs no JAX.
TABLE_TYPES = (
    _Type.F32,
    _Type.F16,
    _Type.BF16,
    _Type.Q8_0,
    _Type.Q5_0,
    _Type.Q5_1,
    _Type.Q4_0,
    _Type.IQ4_NL,
    _Type.Q6_K,
    _Type.IQ1_S,
)


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

    def story(self) -> str:
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

    def story(self) -> str:
        """One sentence with everything needed to look at it."""
        margin = "" if self.margin is None else f" (its margin there: {self.margin:.3g})"
        return (
            f"first difference in tokens: prompt {self.prompt}, generated token {self.step}: "
            f"found {self.found}, expected {self.expected}{margin}"
        )


def expected_packed(table: Table, ids: npt.NDArray[np.uint64]) -> Packed:
    """The packed rows that the file holds, read one by one with positional reads: slow, and nothing to get wrong.

    Shapes: ids [n] -> uint8 [n, row_bytes].
    """
    unique, inverse = np.unique(ids, return_inverse=True)
    rows = np.empty((unique.size, table.row_bytes), np.uint8)
    for segment in table.segments:
        descriptor = os.open(segment.path, os.O_RDONLY)
        try:
            for index, row in enumerate(unique.tolist()):
                if segment.first_row <= row < segment.first_row + segment.rows:
                    start = segment.offset_bytes + (row - segment.first_row) * table.row_bytes
                    rows[index] = np.frombuffer(os.pread(descriptor, table.row_bytes, start), np.uint8)
        finally:
            os.close(descriptor)
    return rows[inverse]


def copy_of_table(path: Path, own: Table) -> Table:
    """The table of another file. Raises: InputError where it cannot be a copy of `own`, the model's table."""
    with open_gguf(path) as other:
        table = locate_table(other)
    if (table.type, table.rows, table.row_width) != (own.type, own.rows, own.row_width):
        raise InputError(
            f"{path}: found a table of {table.rows} rows of {table.row_width} values in {table.type.name}, expected "
            f"{own.rows} of {own.row_width} in {own.type.name}, as in the model: name a copy of the same table"
        )
    return table


def check_type(table: Table) -> Table:
    """The table, where its rows can be unpacked on both sides. Raises: InputError naming its file and type."""
    if table.type not in TABLE_TYPES:
        raise InputError(
            f"{table.segments[0].path}: the table's type is {table.type.name}, expected one of "
            f"{', '.join(type.name for type in TABLE_TYPES)}: convert or quantize the model anew to one of them"
        )
    return table


def expected_f32(packed: Packed, table: Table) -> Float32:
    """The `gguf` package's dequantizer: uint8 [n, row_bytes] -> float32 [n, row_width]. Raises: as `check_type`."""
    check_type(table)
    plain = {gguf.GGMLQuantizationType.F32: np.float32, gguf.GGMLQuantizationType.F16: np.float16}
    typed = packed.view(plain[table.type]) if table.type in plain else packed
    return gguf.quants.dequantize(typed, table.type).astype(np.float32, copy=False)


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
    return None if difference is None else {"story": difference.story(), **asdict(difference)}


def _bytes(rows: npt.NDArray[Any]) -> Packed:
    return np.ascontiguousarray(rows).view(np.uint8).reshape(rows.shape[0], -1)

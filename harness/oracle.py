"""The table's rows from outside the code under test: plain integers for the hash, plain positional reads for the bytes.

Nothing here imports the hash, the configuration or a reader: whatever is wrong there shows as a difference from here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from fast.rows import Table, locate_table
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf

Ids = npt.NDArray[np.uint64]
Packed = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
_KEY = "qwen4exp.ple."
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
    _Type.Q4_K,
    _Type.IQ1_S,
)
_PLAIN = {"F64": np.float64, "F32": np.float32, "F16": np.float16} | {
    f"I{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)
}


class HashOracle:
    """Row ids of a whole sequence at once, in Python's own integers, from the constants as the file stores them.

    Raises: InputError for a constant that is missing or cannot be one.
    """

    def __init__(self, model: GgufFile) -> None:
        self._model = model
        self.multipliers = self._numbers("layer_multipliers", least=0)
        if len(self.multipliers) < 2:
            found = f"{len(self.multipliers)} values"
            raise self._problem("layer_multipliers", found, "one for each token of an n-gram, 2 or more")
        self.per_order = self._number("heads_per_ngram", least=1)
        heads = (len(self.multipliers) - 1) * self.per_order
        self.sizes = self._numbers("head_vocab_sizes", least=1, count=heads)
        self.offsets = self._numbers("head_offsets", least=0, count=heads)
        ends = [size + offset for size, offset in zip(self.sizes, self.offsets, strict=True)]
        if max(ends) > 1 << 64:
            raise self._problem("head_offsets", f"a head that ends at row {max(ends)}", f"at most {1 << 64}")
        self.eos = self._number("eos_token_id", least=0)

    def _number(self, name: str, least: int) -> int:
        value = self._found(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self._problem(name, repr(value), f"a whole number of at least {least}")
        return value

    def _numbers(self, name: str, least: int, count: int | None = None) -> list[int]:
        value = self._found(name)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu":
            found = f"values of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise self._problem(name, found, "an array of whole numbers")
        numbers = [int(number) for number in value]
        if count is not None and len(numbers) != count:
            raise self._problem(name, f"{len(numbers)} values", f"{count}, one for each head of each n-gram")
        bad = next((place for place, number in enumerate(numbers) if number < least), None)
        if bad is not None:
            raise self._problem(name, f"{numbers[bad]} as value {bad}", f"at least {least}")
        return numbers

    def _found(self, name: str) -> object:
        if _KEY + name not in self._model.metadata:
            raise self._problem(name, "no such key", "a constant of the hash")
        return self._model.metadata[_KEY + name]

    def _problem(self, name: str, found: str, expected: str) -> InputError:
        advice = "convert the model again with a current converter"
        return InputError(f"{self._model.paths[0]}: {_KEY}{name}: found {found}, expected {expected}: {advice}")

    @property
    def heads(self) -> int:
        """Rows that one token reads."""
        return len(self.sizes)

    def rows(self, tokens: Sequence[int]) -> Ids:
        """Rows [t, n] of a sequence that starts with the first of these tokens."""
        return np.array([self._rows_at(tokens, place) for place in range(len(tokens))], np.uint64)

    def _rows_at(self, tokens: Sequence[int], place: int) -> list[int]:
        rows: list[int] = []
        product_sum, ended = tokens[place] * self.multipliers[0], False
        for lag in range(1, len(self.multipliers)):
            ended = ended or place - lag < 0 or tokens[place - lag] == self.eos
            product_sum ^= (self.eos if ended else tokens[place - lag]) * self.multipliers[lag]
            first = (lag - 1) * self.per_order
            for head in range(first, first + self.per_order):
                rows.append(product_sum % 2**64 % self.sizes[head] + self.offsets[head])
        return rows


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
                    with naming(segment.path, start):
                        rows[index] = np.frombuffer(os.pread(descriptor, table.row_bytes, start), np.uint8)
        finally:
            os.close(descriptor)
    return rows[inverse]


@contextmanager
def naming(path: Path, start: int) -> Iterator[None]:
    """An error of the disk, with the file and the byte where it was being read."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"reading at byte {start}: {error.strerror}", str(path)) from None


def copy_of_table(path: Path, own: Table) -> Table:
    """The table of another file. Raises: InputError where it cannot be a copy of `own`, the model's table."""
    with open_gguf(path) as other:
        table = locate_table(other)
    for segment in own.segments:
        if any(segment.path.samefile(one.path) for one in table.segments):
            raise InputError(
                f"{path}: is the model's own file ({segment.path}), expected a copy of it: compared with itself, "
                "anything is equal"
            )
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


def values_of(packed: Packed, kind: gguf.GGMLQuantizationType) -> npt.NDArray[Any] | None:
    """What packed rows hold, by the `gguf` package; None of a type that it does not unpack."""
    if kind.name in _PLAIN:
        return packed.view(_PLAIN[kind.name])
    try:
        with np.errstate(invalid="ignore"):
            return gguf.quants.dequantize(packed, kind)
    except NotImplementedError:
        return None


def expected_f32(packed: Packed, table: Table) -> Float32:
    """The `gguf` package's dequantizer: uint8 [n, row_bytes] -> float32 [n, row_width]. Raises: as `check_type`."""
    values = values_of(packed, check_type(table).type)
    assert values is not None
    return values.astype(np.float32, copy=False)


@dataclass(frozen=True)
class PlainReader:
    """What an engine asks of a reader, by positional reads: nothing of the access modes is in it."""

    table: Table

    def gather(self, ids: Ids, out: Packed | None = None) -> Packed:
        """Packed rows of `ids`, in their order."""
        rows = expected_packed(self.table, ids)
        if out is None:
            return rows
        out[:] = rows
        return out


def row_digests(table: Table, rows: Ids, chunk: int) -> tuple[str, ...]:
    """SHA-256 of the packed rows of each chunk of tokens. Shapes: rows [t, n]."""
    return packed_digests(expected_packed(table, rows.reshape(-1)), chunk * rows.shape[1])


def packed_digests(packed: Packed, rows: int) -> tuple[str, ...]:
    """SHA-256 of every so many packed rows, in order."""
    return tuple(hashlib.sha256(packed[at : at + rows].tobytes()).hexdigest() for at in range(0, len(packed), rows))

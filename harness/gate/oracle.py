"""The table's rows from outside the code under test: plain integers for the hash, plain positional reads for the bytes.

Nothing here imports the hash, the configuration or a reader: whatever is wrong there shows as a difference from here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fast.rows import Table
from harness.gate.compare import Packed, expected_packed
from model_file.errors import InputError
from model_file.gguf_file import GgufFile

Ids = npt.NDArray[np.uint64]
_KEY = "qwen4exp.ple."


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


@dataclass(frozen=True)
class PlainReader:
    """What an engine asks of a reader, by positional reads: nothing of the access modes is in it."""

    table: Table

    def gather(self, ids: Ids) -> Packed:
        """Packed rows of `ids`, in their order."""
        return expected_packed(self.table, ids)


def row_digests(table: Table, rows: Ids, chunk: int) -> tuple[str, ...]:
    """SHA-256 of the packed rows of each chunk of tokens. Shapes: rows [t, n]."""
    return tuple(
        _digest(expected_packed(table, rows[start : start + chunk].reshape(-1))) for start in range(0, len(rows), chunk)
    )


def _digest(packed: Packed) -> str:
    return hashlib.sha256(packed.tobytes()).hexdigest()

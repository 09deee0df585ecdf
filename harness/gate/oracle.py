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
from reference.gguf_file import GgufFile

Ids = npt.NDArray[np.uint64]
_KEY = "qwen4exp.ple."


class HashOracle:
    """Row ids of a whole sequence at once, in Python's own integers, from the constants as the file stores them."""

    def __init__(self, model: GgufFile) -> None:
        metadata = model.metadata
        self.multipliers, self.sizes, self.offsets = (
            [int(value) for value in metadata[_KEY + name]]
            for name in ("layer_multipliers", "head_vocab_sizes", "head_offsets")
        )
        self.eos = int(metadata[_KEY + "eos_token_id"])
        self.per_order = int(metadata[_KEY + "heads_per_ngram"])

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

"""Row ids as wrong engines make them, in Python's own integers: one rule for each way of getting them wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from fast.rows import Table
from harness.oracle import HashOracle, Ids, Packed, expected_packed

Numbers = Sequence[int]
Read = Callable[[Table, Ids], Packed]
OLDER, NOTHING, ITSELF = "hides what is older", "hides nothing", "hides its own past too"


def unsigned(product_sum: int, bits: int = 64) -> int:
    """The value modulo 2^bits, as the hash has it."""
    return product_sum % (1 << bits)


def signed(product_sum: int, bits: int = 64) -> int:
    """The same bits as a signed number."""
    low = unsigned(product_sum, bits)
    return low - (1 << bits) if low >> (bits - 1) else low


def _same(values: Numbers) -> Numbers:
    return values


@dataclass(frozen=True)
class RowRule:
    """How an engine makes row ids; what is not given is right.

    eos: what an EOS among the tokens before does. multipliers, offsets: from the file's to those that are used. fold:
    the value that is divided. magnitude: a remainder below zero loses its sign, as with C's `%` and `abs`.
    interleaved: the heads of all orders take turns. read: how the bytes of a row are found.
    """

    eos: str = OLDER
    multipliers: Callable[[Numbers], Numbers] = _same
    offsets: Callable[[Numbers], Numbers] = _same
    fold: Callable[[int], int] = unsigned
    magnitude: bool = False
    interleaved: bool = False
    read: Read = expected_packed

    def rows(self, oracle: HashOracle, tokens: Numbers, starts: Numbers, first: int = 0) -> Ids:
        """Rows [t, n] of the tokens from position `first` on, of which each sees none before its start."""
        multipliers, offsets = self.multipliers(oracle.multipliers), self.offsets(oracle.offsets)
        found = np.empty((len(tokens) - first, oracle.heads), np.uint64)
        for place in range(first, len(tokens)):
            seen = self._context(oracle, tokens, place, starts[place])
            products, rows = seen[0] * multipliers[0], list[int]()
            for lag in range(1, len(multipliers)):
                products ^= seen[lag] * multipliers[lag]
                for head in range((lag - 1) * oracle.per_order, lag * oracle.per_order):
                    rows.append(self._remainder(self.fold(products), oracle.sizes[head]) + offsets[head])
            found[place - first] = self._ordered(rows, oracle)
        return found

    def _context(self, oracle: HashOracle, tokens: Numbers, place: int, start: int) -> list[int]:
        """The token and those before it, hidden ones as EOS."""
        seen, ended = [tokens[place]], self.eos == ITSELF and tokens[place] == oracle.eos
        for lag in range(1, len(oracle.multipliers)):
            missing = place - lag < start
            before = oracle.eos if missing else tokens[place - lag]
            ended = ended or missing or (before == oracle.eos and self.eos != NOTHING)
            seen.append(oracle.eos if ended else before)
        return seen

    def _remainder(self, value: int, size: int) -> int:
        return abs(value) % size if self.magnitude else value % size

    def _ordered(self, rows: list[int], oracle: HashOracle) -> list[int]:
        if not self.interleaved:
            return rows
        orders = [rows[at : at + oracle.per_order] for at in range(0, len(rows), oracle.per_order)]
        return list(chain.from_iterable(zip(*orders, strict=True)))


def read_at_32_bits(table: Table, ids: Ids) -> Packed:
    """The bytes at offsets that are cut to 32 bits: for tables of up to 4 GiB the right ones."""
    rows = np.empty((ids.size, table.row_bytes), np.uint8)
    for place, row in enumerate(ids.tolist()):
        segment, offset = table.place(row)
        wrong = segment.offset_bytes + (offset - segment.offset_bytes) % (1 << 32)
        with segment.path.open("rb", buffering=0) as file:
            file.seek(wrong)
            rows[place] = np.frombuffer(file.read(table.row_bytes), np.uint8)
    return rows


def read_in_lexical_order(table: Table, ids: Ids) -> Packed:
    """The rows of shards that are put together in the order of their names' letters."""
    first, segments = 0, []
    for segment in sorted(table.segments, key=lambda segment: segment.path.name):
        segments.append(replace(segment, first_row=first))
        first += segment.rows
    return expected_packed(replace(table, segments=tuple(segments)), ids)


RIGHT = RowRule()

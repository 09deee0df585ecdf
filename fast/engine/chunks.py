"""From tokens to what a program takes: chunks padded to a bucket, their ids hashed and their packed rows read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fast.engine.hashing import TokenHash
from fast.engine.settings import EngineSettings
from model_file.config import ModelConfig

PackedRows = npt.NDArray[np.uint8]
Ids = npt.NDArray[np.uint64]


@runtime_checkable
class Reader(Protocol):
    """What the engine asks of a table reader; `fast.rows.open_rows` gives one."""

    def gather(self, ids: Any, out: PackedRows | None = None) -> PackedRows:
        """Packed rows of `ids`, in order, duplicates included."""
        ...


@dataclass(frozen=True)
class Cut:
    """The next tokens of every sequence of a batch; a sequence that is through has none."""

    tokens: list[list[int]]
    ids: list[Ids]


@dataclass(frozen=True)
class Chunk:
    """What a program takes, and the ids of the rows that were read for it, padding left out.

    Shapes: tokens int32 [sequences, t], counts int32 [sequences], packed uint8 [sequences * t * n, row bytes].
    """

    tokens: npt.NDArray[np.int32]
    counts: npt.NDArray[np.int32]
    packed: PackedRows
    ids: Ids
    gather_s: float

    @property
    def total(self) -> int:
        """Tokens in it, padding not counted."""
        return int(self.counts.sum())


class ChunkMaker:
    """Cuts tokens into chunks and reads their rows."""

    def __init__(self, config: ModelConfig, settings: EngineSettings, reader: Reader, row_bytes: int) -> None:
        self.settings, self.reader = settings, reader
        self.hash = TokenHash(config.ple.hash)
        self._heads, self._row_bytes = config.ple.heads, row_bytes

    def cut(self, before: list[list[int]], fed: list[list[int]]) -> Iterator[Cut]:
        """The chunks of several sequences' tokens, each after the tokens it was fed before."""
        size = self.settings.chunk
        histories = [tokens[-self.hash.constants.order :] for tokens in before]
        for start in range(0, max(map(len, fed)), size):
            pieces = [tokens[start : start + size] for tokens in fed]
            ids = [self.hash.many(piece, history) for piece, history in zip(pieces, histories, strict=True)]
            histories = [
                (history + piece)[-self.hash.constants.order :]
                for history, piece in zip(histories, pieces, strict=True)
            ]
            yield Cut(pieces, ids)

    def padding(self, sequences: int, length: int) -> Chunk:
        """A chunk without a token, for which no row is read."""
        packed = np.zeros((sequences * length * self._heads, self._row_bytes), np.uint8)
        tokens, counts = np.zeros((sequences, length), np.int32), np.zeros(sequences, np.int32)
        return Chunk(tokens, counts, packed, np.zeros(0, np.uint64), 0.0)

    def make(self, cut: Cut, length: int | None = None) -> Chunk:
        """Pad a cut and read its rows. Padding has zeros for rows: no row is read that no token names.

        length: what it is padded to; None: its bucket.
        """
        counts = np.array([len(piece) for piece in cut.tokens], np.int32)
        length = length or self.settings.bucket(int(counts.max()))
        tokens = np.zeros((len(cut.tokens), length), np.int32)
        packed = np.zeros((len(cut.tokens), length * self._heads, self._row_bytes), np.uint8)
        gather_s = 0.0
        for index, (piece, ids) in enumerate(zip(cut.tokens, cut.ids, strict=True)):
            tokens[index, : len(piece)] = piece
            if piece:
                started = perf_counter()
                self.reader.gather(ids.reshape(-1), out=packed[index, : ids.size])
                gather_s += perf_counter() - started
        named = np.concatenate([ids.reshape(-1) for ids in cut.ids])
        return Chunk(tokens, counts, packed.reshape(-1, self._row_bytes), named, gather_s)

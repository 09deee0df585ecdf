"""The reference behind the protocol: one sequence after the other, 64 tokens at a time, what is left one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from fast.engine.settings import EngineSettings
from fast.rows import RowReader
from fast.rows.dequantize import dequantize_numpy
from harness.engines.closing import Closing, Unable
from harness.engines.protocol import LOGITS, RECORD, ROWS, Float32, Named
from model_file.config import config_from
from model_file.gguf_file import GgufFile
from reference.decode import Session, greedy
from reference.parameters import load_parameters

CHUNK = 64  # every other chunk length is a compilation of its own, so that a short rest goes token by token


class ReferenceSequence(Unable):
    """A session of `reference.decode`."""

    name = "reference"

    def __init__(self, session: Session, chunk: int) -> None:
        self._session, self._chunk = session, chunk
        self._last: Float32 | None = None

    @property
    def position(self) -> int:
        """Tokens fed so far."""
        return self._session.position

    def feed(self, ids: Sequence[int]) -> None:
        """Feed the next tokens."""
        self.logits(ids)

    def logits(self, ids: Sequence[int]) -> Float32:
        """Logits [t, v] at each of them."""
        logits = np.concatenate([self._session.feed(piece) for piece in self._pieces(ids)])
        self._last = logits[-1]
        return logits

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """Token by token; the last one is not fed."""
        if self._last is None:
            raise ValueError("greedy continues a sequence: feed at least one token first")
        return greedy(self._session, self._last, count)

    def record(self, ids: Sequence[int]) -> tuple[Float32, Named]:
        """As `logits`, with every named intermediate."""
        parts = [self._session.feed_recorded(piece) for piece in self._pieces(ids)]
        logits = np.concatenate([part for part, _ in parts])
        self._last = logits[-1]
        return logits, {name: np.concatenate([named[name] for _, named in parts]) for name in parts[0][1]}

    def _pieces(self, ids: Sequence[int]) -> list[list[int]]:
        whole = len(ids) - len(ids) % self._chunk
        bounds = [*range(0, whole, self._chunk), *range(whole, len(ids) + 1)]
        return [list(ids[a:b]) for a, b in pairwise(bounds)]


class ReferenceAdapter(Unable, Closing):
    """`reference`, its rows read by a reader of ours and unpacked by `gguf`'s rules in NumPy."""

    name = "reference"
    abilities = frozenset((ROWS, LOGITS, RECORD))

    def __init__(self, model: GgufFile, reader: RowReader, settings: EngineSettings) -> None:
        self.config = config_from(model)
        self.parameters = load_parameters(model, self.config)
        self.reader, self.room, self.chunk = reader, settings.context, min(settings.chunk, CHUNK)

    def new_sequence(self) -> ReferenceSequence:
        """A sequence at its start."""

        def read_rows(ids: npt.NDArray[np.uint64]) -> Float32:
            return dequantize_numpy(self.reader.gather(ids), self.reader.table.type)

        return ReferenceSequence(Session(self.parameters, self.config, read_rows, self.room), self.chunk)


def load(model: GgufFile, reader: RowReader, settings: EngineSettings) -> ReferenceAdapter:
    """The reference, with the room of these settings."""
    return ReferenceAdapter(model, reader, settings)

"""The fast engine behind the protocol: chunks, buckets and the decoder as its settings say, nothing of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import RowReader
from harness.engines.closing import Closing
from harness.engines.protocol import ABILITIES, Float32, Named, Run
from model_file.gguf_file import GgufFile


class FastSequence:
    """A sequence of `fast.engine`."""

    def __init__(self, engine: FastEngine) -> None:
        self._engine, self.inner = engine, engine.new_sequence()

    @property
    def position(self) -> int:
        """Tokens fed so far."""
        return self.inner.position

    def feed(self, ids: Sequence[int]) -> None:
        """Feed the next tokens."""
        self.inner.feed(ids, last_only=True)

    def logits(self, ids: Sequence[int]) -> Float32:
        """Logits [t, v] at each of them."""
        return self.inner.feed(ids)

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """By the decoder of single sequences; every token that is handed out has been fed."""
        return self.inner.generate(count)

    def record(self, ids: Sequence[int]) -> tuple[Float32, Named]:
        """Chunk by chunk, as `logits` has it."""
        size = self._engine.settings.chunk
        parts = [
            self._engine.feed_recorded(self.inner, ids[start : start + size]) for start in range(0, len(ids), size)
        ]
        names = parts[0][1]
        return np.concatenate([logits for logits, _ in parts]), {
            name: np.concatenate([named[name] for _, named in parts]) for name in names
        }

    def save(self) -> Any:
        """A copy in host memory."""
        return self.inner.save()

    def restore(self, saved: Any) -> None:
        """Become what was saved."""
        self.inner.restore(saved)

    def truncate(self, position: int) -> None:
        """Go back."""
        self.inner.truncate(position)


class FastAdapter(Closing):
    """`fast.engine.FastEngine`; `inner` is the engine itself, for its timings and its warm-up."""

    name = "fast"
    abilities = frozenset(ABILITIES)

    def __init__(self, model: GgufFile, reader: RowReader, settings: EngineSettings) -> None:
        self.inner = FastEngine(model, reader, settings)
        self.config, self.settings = self.inner.config, settings

    @property
    def reader(self) -> RowReader:
        """What rows are read with."""
        return cast(RowReader, self.inner.reader)

    @reader.setter
    def reader(self, reader: RowReader) -> None:
        self.inner.reader = reader

    def new_sequence(self) -> FastSequence:
        """A sequence at its start."""
        return FastSequence(self.inner)

    def feed_batch(self, work: Sequence[tuple[FastSequence, Sequence[int]]]) -> None:
        """As one batch: short ones are padded while others are fed."""
        self.inner.feed_batch([(sequence.inner, ids) for sequence, ids in work], last_only=True)

    def greedy_batch(self, sequences: Sequence[FastSequence], count: int) -> list[Run]:
        """As one batch."""
        before = [len(sequence.inner.margins) for sequence in sequences]
        chosen = self.inner.greedy_batch([sequence.inner for sequence in sequences], count)
        margins = [
            tuple(float(margin) for margin in sequence.inner.margins[start:])
            for sequence, start in zip(sequences, before, strict=True)
        ]
        return [Run(tuple(tokens), found) for tokens, found in zip(chosen, margins, strict=True)]

    def memory(self) -> dict[str, int]:
        """Bytes by purpose; `experts` are those that are read when they are chosen."""
        return self.inner.memory()

    def close(self) -> None:
        """Stop the engine's reading thread."""
        self.inner.close()


def load(model: GgufFile, reader: RowReader, settings: EngineSettings) -> FastAdapter:
    """The fast engine with these settings."""
    return FastAdapter(model, reader, settings)

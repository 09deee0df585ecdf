"""Both engines behind what the gate and the goldens need: greedy runs of several prompts, and recorded intermediates.

The table reader can be exchanged between runs: one set of weights, many ways of reading rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader
from model_file.config import ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile

Float32 = npt.NDArray[np.float32]
Named = dict[str, npt.NDArray[Any]]
BATCH = 5  # sequences that the fast engine runs together; every new number of them is another compilation


@dataclass(frozen=True)
class Run:
    """A greedy continuation: the token of every step, and its margin (top-1 minus top-2 logit)."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class RecordedChunk:
    """What an engine computed for tokens from `start` on. Shapes: logits [t, v]; named [t, ...]."""

    start: int
    logits: Float32
    named: Named


class Runner(Protocol):
    """An engine with a model loaded; `reader` may be exchanged between runs."""

    name: str
    config: ModelConfig
    reader: RowReader

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> list[Run]:
        """The greedy continuation of every prompt, each in a sequence of its own."""
        ...

    def record(self, ids: Sequence[int]) -> Iterator[RecordedChunk]:
        """Teacher-forced logits and named intermediates of one sequence, chunk after chunk."""
        ...

    def asked(self, lengths: Sequence[int], count: int) -> list[tuple[int, int, int]]:
        """In which order `generate` reads rows: of prompt number so-and-so, tokens from start to stop.

        Units: positions count prompt and answer. Prompts have these `lengths`.
        """
        ...

    def close(self) -> None:
        """Release what the engine holds beside the model."""
        ...


class ReferenceRunner:
    """The reference: one sequence after the other, a chunk at a time, what is left over token by token."""

    name = "reference"

    def __init__(self, model: GgufFile, reader: RowReader, room: int, chunk: int) -> None:
        from reference.parameters import load_parameters

        self.config = config_from(model)
        self.parameters = load_parameters(model, self.config)
        self.reader, self.room, self.chunk = reader, room, chunk

    def _session(self) -> Any:
        from fast.rows.dequantize import dequantize_numpy
        from reference.decode import Session

        def read_rows(ids: npt.NDArray[np.uint64]) -> Float32:
            return dequantize_numpy(self.reader.gather(ids), self.reader.table.type)

        return Session(self.parameters, self.config, read_rows, self.room)

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> list[Run]:
        from reference.decode import greedy

        runs = []
        for ids in prompts:
            session = self._session()
            last = session.feed_in_chunks(list(ids), self.chunk)[-1]
            steps = list(greedy(session, last, count))
            runs.append(Run(tuple(token for token, _ in steps), tuple(margin for _, margin in steps)))
        return runs

    def record(self, ids: Sequence[int]) -> Iterator[RecordedChunk]:
        session = self._session()
        start = 0
        while start < len(ids):
            # Another chunk length is another compilation, so that a short rest goes one by one.
            count = self.chunk if len(ids) - start >= self.chunk else 1
            logits, named = session.feed_recorded(list(ids[start : start + count]))
            yield RecordedChunk(start, logits, named)
            start += count

    def asked(self, lengths: Sequence[int], count: int) -> list[tuple[int, int, int]]:
        return [(number, 0, length + count - 1) for number, length in enumerate(lengths)]

    def close(self) -> None:
        """Nothing is held."""


class FastRunner:
    """The fast path: prompts in batches of `BATCH`, chunks padded to one length so that little is compiled."""

    name = "fast"

    def __init__(
        self, model: GgufFile, reader: RowReader, room: int, chunk: int, program_cache: Path | None = None
    ) -> None:
        from fast.engine.engine import FastEngine
        from fast.engine.settings import EngineSettings

        self.chunk = chunk
        settings = EngineSettings(context=room, chunk=chunk, buckets=(1,), checkpoints=1, cache_dir=program_cache)
        self.engine = FastEngine(model, reader, settings)
        self.config = self.engine.config

    @property
    def reader(self) -> RowReader:
        """What the engine reads rows with."""
        return self.engine.reader  # type: ignore[return-value]

    @reader.setter
    def reader(self, reader: RowReader) -> None:
        self.engine.reader = reader

    def generate(self, prompts: Sequence[Sequence[int]], count: int) -> list[Run]:
        runs: list[Run] = []
        for start in range(0, len(prompts), BATCH):
            runs += self._together(prompts[start : start + BATCH], count)
        return runs

    def _together(self, prompts: Sequence[Sequence[int]], count: int) -> list[Run]:
        sequences = [self.engine.new_sequence() for _ in prompts]
        self.engine.feed_batch(list(zip(sequences, prompts, strict=True)), last_only=True)
        alone = len(sequences) == 1
        chosen = [sequences[0].greedy(count)] if alone else self.engine.greedy_batch(sequences, count)
        return [
            Run(tuple(tokens), tuple(float(margin) for margin in sequence.margins))
            for tokens, sequence in zip(chosen, sequences, strict=True)
        ]

    def record(self, ids: Sequence[int]) -> Iterator[RecordedChunk]:
        sequence = self.engine.new_sequence()
        for start in range(0, len(ids), self.chunk):
            logits, named = self.engine.feed_recorded(sequence, list(ids[start : start + self.chunk]))
            yield RecordedChunk(start, logits, named)

    def asked(self, lengths: Sequence[int], count: int) -> list[tuple[int, int, int]]:
        order = []
        for first in range(0, len(lengths), BATCH):
            group = list(enumerate(lengths))[first : first + BATCH]
            for start in range(0, max(length for _, length in group), self.chunk):
                order += [(n, start, min(start + self.chunk, length)) for n, length in group if length > start]
            for step in range(count):  # every chosen token is fed, the last one too
                order += [(n, length + step, length + step + 1) for n, length in group]
        return order

    def close(self) -> None:
        """Stop the engine's reading thread."""
        self.engine.close()


def make_runner(
    name: str, model: GgufFile, reader: RowReader, room: int, chunk: int = 64, program_cache: Path | None = None
) -> Runner:
    """An engine by name over an open model and an open reader of its table. Raises: InputError for another name."""
    if name == "reference":
        return ReferenceRunner(model, reader, room, chunk)
    if name == "fast":
        return FastRunner(model, reader, room, chunk, program_cache)
    raise InputError(f"engine {name!r} does not exist, expected reference or fast")

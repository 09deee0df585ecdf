"""Opens a model with an engine and a way of reading its table: the one door for every command that runs tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from harness.cases.prompts import check_context, check_ids
from model_file.config import ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf

if TYPE_CHECKING:
    from fast.rows import RowReader

Logits = npt.NDArray[np.float32]


class EngineSequence(Protocol):
    """One sequence of tokens; two sequences share nothing but weights."""

    def feed(self, tokens: Sequence[int]) -> Logits:
        """Teacher-forced logits, float32 [t, v]."""

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """The temperature-0 continuation: `count` times the token and its margin, top-1 minus top-2 logit."""


class Engine(Protocol):
    """An engine with a model loaded."""

    config: ModelConfig

    def new_sequence(self) -> EngineSequence:
        """A sequence at its start."""


class _ReferenceSequence:
    def __init__(self, engine: ReferenceEngine) -> None:
        from reference.decode import Session

        self._chunk = engine.chunk
        self._session = Session(engine.parameters, engine.config, engine.read_rows, engine.room)
        self._last: Logits | None = None

    def feed(self, tokens: Sequence[int]) -> Logits:
        logits = self._session.feed_in_chunks(tokens, self._chunk)
        self._last = logits[-1]
        return logits

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        from reference.decode import greedy

        if self._last is None:
            raise ValueError("greedy continues a sequence: feed at least one token first")
        return greedy(self._session, self._last, count)


class ReferenceEngine:
    """The reference behind the interface that both engines share."""

    def __init__(self, model: GgufFile, reader: RowReader, room: int, chunk: int) -> None:
        from reference.parameters import load_parameters

        self.config = config_from(model)
        self.parameters = load_parameters(model, self.config)
        self.reader, self.room, self.chunk = reader, room, chunk

    def read_rows(self, ids: npt.NDArray[np.uint64]) -> Logits:
        """Rows as float32 [n, e], by the reader under test and gguf's dequantizer."""
        from fast.rows.dequantize import dequantize_numpy

        return dequantize_numpy(self.reader.gather(ids), self.reader.table.type)

    def new_sequence(self) -> EngineSequence:
        return _ReferenceSequence(self)


@contextmanager
def open_engine(path: Path, name: str, mode: str, room: int, chunk: int = 64) -> Iterator[OpenedEngine]:
    """Open a model file with engine `name` ("reference" or "fast"), its table read in `mode`.

    room: positions that a sequence may take. Raises: InputError for a file or mode that cannot be used.
    """
    from fast.rows import locate_table, open_rows

    with open_gguf(path) as model, open_rows(locate_table(model), mode) as reader:
        check_context(path, config_from(model).context, room, "use a shorter prompt or a smaller --generate")
        chunk = min(chunk, max(room, 1))  # a longer one would only take memory
        yield OpenedEngine(model, make_engine(name, model, reader, room, chunk), reader)


def make_engine(name: str, model: GgufFile, reader: RowReader, room: int, chunk: int = 64) -> Engine:
    """An engine over an open model and an open reader of its table."""
    if name == "reference":
        return ReferenceEngine(model, reader, room, chunk)
    if name == "fast":
        from fast.engine.engine import FastEngine
        from fast.engine.settings import EngineSettings
        from harness.synth import cache_folder

        return FastEngine(
            model, reader, EngineSettings(context=room, chunk=chunk, cache_dir=cache_folder() / "programs")
        )
    raise InputError(f"engine {name!r} does not exist, expected reference or fast")


class OpenedEngine:
    """An engine with what it was opened from."""

    def __init__(self, model: GgufFile, engine: Engine, reader: RowReader) -> None:
        self.model, self.engine, self.reader = model, engine, reader
        self.config = engine.config

    def new_sequence(self) -> EngineSequence:
        """A sequence at its start."""
        return self.engine.new_sequence()

    def check_ids(self, ids: Sequence[int], name: str) -> None:
        """Raises: InputError when ids are none, or outside the model's vocabulary."""
        check_ids(ids, self.config.vocab, name)

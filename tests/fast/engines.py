"""Engines over the small models, with programs shared between tests wherever their shapes allow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.engine.engine import FastEngine
from fast.engine.settings import EngineSettings
from fast.rows import locate_table, open_rows
from harness.synth import cache_folder
from model_file.gguf_file import open_gguf
from tests.conftest import FIXTURES, larger_fixture

ROOM = 1024  # of every engine here: the same room is the same program

LOGIT_BOUND = 5e-5
"""Relative error per position, L2 over the vocabulary, against engines that are not ours and against the reference.
Float32 sums in another order differ by up to 2e-5 on these files (measured over all positions, chunks and splits); a
wrong selection, history or rotation shows as 1e-3 and more."""

STATE_BOUND = 2e-4
"""Relative error of a whole state array, L2, between two splits of the same tokens. The delta net's memory sums
products over the whole past: 3e-5 measured; a token too many or too few shows as 1e-2."""


def find(name: str) -> Path:
    own = FIXTURES / name
    return own if own.exists() else larger_fixture(name)


def answers(name: str) -> dict[str, npt.NDArray[np.generic]]:
    """The answers of an engine that is not ours."""
    with np.load(find(f"{name}.npz")) as archive:
        return dict(archive)


@contextmanager
def opened(name: str, mode: str = "mmap", chunk: int = 64, **settings: Any) -> Iterator[FastEngine]:
    """An engine on a fixture, its table read in `mode`; chunks are padded to `chunk`, or are single tokens."""
    chosen = _settings(chunk, **settings)
    with (
        open_gguf(find(f"{name}.gguf")) as model,
        open_rows(locate_table(model), mode) as reader,
        FastEngine(model, reader, chosen) as engine,
    ):
        yield engine


@cache
def shared(name: str, chunk: int = 64, **settings: Any) -> FastEngine:
    """An engine that stays open for all tests; nobody may change its settings."""
    model = open_gguf(find(f"{name}.gguf"))
    reader = open_rows(locate_table(model), "resident")
    return FastEngine(model, reader, _settings(chunk, **settings))


def _settings(chunk: int, **settings: Any) -> EngineSettings:
    programs = cache_folder() / "programs"  # so that a second run of the tests compiles nothing
    return EngineSettings(
        **{"context": ROOM - _padded(chunk), "chunk": chunk, "buckets": (chunk,), "cache_dir": programs, **settings}
    )


def _padded(chunk: int) -> int:
    return EngineSettings(chunk=chunk, buckets=(chunk,)).bucket_sizes[-1]


def worst_error(found: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> float:
    """The largest relative error of any position. Raises AssertionError when types or shapes differ."""
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    return float(np.max(np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)))

"""Recorded intermediates of engines: in pieces of one size, so that two engines' values stand side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engines.protocol import Engine, Named

PIECE = 64  # tokens recorded at a time; every engine can, and each has one program for it
_STEP_ORDER = ("ple", "mixer", "experts", "streams")


def recorded(engine: Engine, ids: Sequence[int]) -> Iterator[tuple[int, Named]]:
    """First position and named values, `logits` too, of a sequence, piece by piece. Shapes: each value [t, ...]."""
    sequence = engine.new_sequence()
    for start in range(0, len(ids), PIECE):
        logits, named = sequence.record(ids[start : start + PIECE])
        yield start, {**named, "logits": logits}


def in_order(mine: Named, others: Named) -> list[str]:
    """Names that both recorded, in the order in which the model computes them."""

    def key(name: str) -> tuple[int, int]:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", name)
        return (int(match[1]), _STEP_ORDER.index(match[2])) if match else (1 << 30, 0)

    shared = [name for name in mine if name in others and (name == "logits" or name.rpartition(".")[2] in _STEP_ORDER)]
    return sorted(shared, key=key)


def errors_by_position(found: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Largest difference of a value by the root mean square of the right vector. Shapes: both [t, ...] -> [t]."""
    flat, expected = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (found, right))
    rms = np.sqrt(np.mean(expected**2, axis=1))
    return np.asarray(np.abs(flat - expected).max(axis=1) / np.maximum(rms, 1e-30))

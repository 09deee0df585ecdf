"""The n-gram hash: which rows of the PLE table a token reads. Exact unsigned 64-bit arithmetic, NumPy only.

Float32 has 24 bits and JAX without x64 has 32; the products here use all 64. Nothing here may pass through either.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from model_file.hash_constants import HashConstants

UInt64 = npt.NDArray[np.uint64]


def fresh_history(constants: HashConstants) -> UInt64:
    """The N-1 tokens before a sequence's first: all EOS."""
    return np.full(constants.order - 1, constants.eos, dtype=np.uint64)


def context(constants: HashConstants, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
    """What every token sees of itself and its predecessors.

    Shapes: tokens [t], history [N-1] (oldest first) -> [t, N]; column j is the token j back.
    A predecessor that is EOS hides everything older than itself; a token that is EOS hides nothing of its own past.
    """
    past = np.concatenate([np.asarray(history, dtype=np.uint64), np.asarray(tokens, dtype=np.uint64)])
    count = past.size - (constants.order - 1)
    columns = [past[constants.order - 1 - lag : constants.order - 1 - lag + count] for lag in range(constants.order)]
    cut = np.zeros(count, dtype=bool)
    for lag in range(1, constants.order):
        cut = cut | (columns[lag] == constants.eos)
        columns[lag] = np.where(cut, np.uint64(constants.eos), columns[lag])
    return np.stack(columns, axis=1)


def row_ids(constants: HashConstants, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
    """Table rows of every token, in head order.

    Shapes: tokens [t], history [N-1] (the tokens before, oldest first; see `fresh_history`) -> uint64 [t, n].
    Source: shared contract of the checkpoint and both engines; for order m the hash is the exclusive or of
    token * multiplier over the last m tokens, modulo 2^64.
    """
    products = context(constants, tokens, history) * np.asarray(
        constants.multipliers, dtype=np.uint64
    )  # wraps, mod 2^64
    rows = []
    mix = products[:, 0]
    for lag in range(1, constants.order):
        mix = mix ^ products[:, lag]
        heads = slice((lag - 1) * constants.heads_per_ngram, lag * constants.heads_per_ngram)
        sizes = np.asarray(constants.sizes[heads], dtype=np.uint64)
        rows.append(mix[:, None] % sizes + np.asarray(constants.offsets[heads], dtype=np.uint64))
    return np.concatenate(rows, axis=1)


def next_history(constants: HashConstants, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
    """The history after `tokens`: the last N-1 of both together."""
    both = np.concatenate([np.asarray(history, dtype=np.uint64), np.asarray(tokens, dtype=np.uint64)])
    return both[both.size - (constants.order - 1) :]

"""The n-gram hash of one token at a time, for decode: plain Python integers, 3 us where NumPy's calls take 40.

Whole chunks go through NumPy. Both are exact modulo 2^64; tests hold them equal to each other and to the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model_file.hash_constants import HashConstants

_MASK64 = (1 << 64) - 1


class TokenHash:
    """Row ids of single tokens, and of whole chunks in NumPy."""

    def __init__(self, constants: HashConstants) -> None:
        self.constants = constants
        per_order = constants.heads_per_ngram
        ranges = list(zip(constants.sizes, constants.offsets, strict=True))
        self._orders = [ranges[i * per_order : (i + 1) * per_order] for i in range(constants.order - 1)]

    def one(self, token: int, before: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Rows [n] of a token after the tokens `before` (all of them, or at least the last N-1)."""
        constants, eos = self.constants, self.constants.eos
        mix = token * constants.multipliers[0]
        rows: list[int] = []
        cut, available = False, len(before)
        for lag, heads in enumerate(self._orders, start=1):
            cut = cut or lag > available or before[-lag] == eos
            mix ^= (eos if cut else before[-lag]) * constants.multipliers[lag]
            low = mix & _MASK64  # products modulo 2^64 and exclusive or commute with cutting to 64 bits
            rows += [low % size + offset for size, offset in heads]
        return np.array(rows, dtype=np.uint64)

    def many(self, tokens: Sequence[int], before: Sequence[int]) -> npt.NDArray[np.uint64]:
        """Rows [t, n] of consecutive tokens after the tokens `before`."""
        keep = self.constants.order - 1
        history = np.full(keep, self.constants.eos, dtype=np.uint64)
        last = before[max(0, len(before) - keep) :]
        if last:
            history[keep - len(last) :] = last
        return _rows(self.constants, _context(self.constants, tokens, history))


def _context(
    constants: HashConstants, tokens: Sequence[int], history: npt.NDArray[np.uint64]
) -> npt.NDArray[np.uint64]:
    """The tokens [t, N] that each token hashes, itself first; what EOS hides reads as EOS."""
    past = np.concatenate([history, np.asarray(tokens, dtype=np.uint64)])
    columns = [past[history.size - lag : past.size - lag] for lag in range(constants.order)]
    cut = np.zeros(len(tokens), dtype=bool)
    for lag in range(1, constants.order):
        cut = cut | (columns[lag] == constants.eos)
        columns[lag] = np.where(cut, np.uint64(constants.eos), columns[lag])
    return np.stack(columns, axis=1)


def _rows(constants: HashConstants, context: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Rows [t, n] of contexts [t, N], in head order."""
    mixes = np.bitwise_xor.accumulate(context * np.asarray(constants.multipliers, dtype=np.uint64), axis=1)[:, 1:]
    sizes = np.asarray(constants.sizes, dtype=np.uint64)
    return np.repeat(mixes, constants.heads_per_ngram, axis=1) % sizes + np.asarray(constants.offsets, dtype=np.uint64)

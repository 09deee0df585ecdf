"""The n-gram hash of one token at a time, for decode: plain Python integers, 3 us where NumPy's calls take 40.

The arithmetic is that of `model_file.ngram.NgramHash`, exact modulo 2^64; a test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from model_file.ngram import NgramHash

_MASK64 = (1 << 64) - 1


class TokenHash:
    """Row ids of single tokens, and of whole chunks through `NgramHash`."""

    def __init__(self, constants: NgramHash) -> None:
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
        history = self.constants.fresh_history()
        last = before[max(0, len(before) - history.size) :]
        if last:
            history[history.size - len(last) :] = last
        return self.constants.row_ids(tokens, history)

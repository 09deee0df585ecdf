"""The n-gram hash: which rows of the PLE table a token reads. Exact unsigned 64-bit arithmetic, NumPy only.

Float32 has 24 bits and JAX without x64 has 32; the products here use all 64. Nothing here may pass through either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

UInt64 = npt.NDArray[np.uint64]

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class NgramHash:
    """The constants of a model's hash, in the order of the file.

    multipliers: one odd number per lag, N of them. sizes, offsets: one per head, (N-1) * heads_per_ngram of them.
    eos: the token that ends a document and cuts the context behind it.
    """

    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    heads_per_ngram: int
    eos: int

    @property
    def order(self) -> int:
        """N, the longest n-gram in tokens."""
        return len(self.multipliers)

    def fresh_history(self) -> UInt64:
        """The N-1 tokens before a sequence's first: all EOS."""
        return np.full(self.order - 1, self.eos, dtype=np.uint64)

    def context(self, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
        """What every token sees of itself and its predecessors.

        Shapes: tokens [t], history [N-1] (oldest first) -> [t, N]; column j is the token j back.
        A predecessor that is EOS hides everything older than itself; a token that is EOS hides nothing of its own past.
        """
        past = np.concatenate([np.asarray(history, dtype=np.uint64), np.asarray(tokens, dtype=np.uint64)])
        count = past.size - (self.order - 1)
        columns = [past[self.order - 1 - lag : self.order - 1 - lag + count] for lag in range(self.order)]
        cut = np.zeros(count, dtype=bool)
        for lag in range(1, self.order):
            cut = cut | (columns[lag] == self.eos)
            columns[lag] = np.where(cut, np.uint64(self.eos), columns[lag])
        return np.stack(columns, axis=1)

    def row_ids(self, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
        """Table rows of every token, in head order.

        Shapes: tokens [t], history [N-1] (the tokens before, oldest first; see `fresh_history`) -> uint64 [t, n].
        Source: shared contract of the checkpoint and both engines; for order m the hash is the exclusive or of
        token * multiplier over the last m tokens, modulo 2^64.
        """
        context = self.context(tokens, history)
        products = context * np.asarray(self.multipliers, dtype=np.uint64)  # wraps modulo 2^64, as intended
        rows = []
        mix = products[:, 0]
        for lag in range(1, self.order):
            mix = mix ^ products[:, lag]
            heads = slice((lag - 1) * self.heads_per_ngram, lag * self.heads_per_ngram)
            sizes = np.asarray(self.sizes[heads], dtype=np.uint64)
            rows.append(mix[:, None] % sizes + np.asarray(self.offsets[heads], dtype=np.uint64))
        return np.concatenate(rows, axis=1)

    def next_history(self, tokens: npt.ArrayLike, history: npt.ArrayLike) -> UInt64:
        """The history after `tokens`: the last N-1 of both together."""
        both = np.concatenate([np.asarray(history, dtype=np.uint64), np.asarray(tokens, dtype=np.uint64)])
        return both[both.size - (self.order - 1) :]


def splitmix64(state: int) -> int:
    """One output of the splitmix64 generator: the state is advanced first, then mixed (Steele, Lea and Flood 2014)."""
    mixed = (state + _GOLDEN_GAMMA) & _MASK64
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK64
    return mixed ^ (mixed >> 31)


CHECKPOINT_SEED = 1234  # found by search: the published Flash-Next multipliers follow from it, index 0, vocab 248320


def checkpoint_multipliers(seed: int, index: int, order: int, vocab: int) -> tuple[int, ...]:
    """The odd multipliers that a checkpoint of this family draws for its PLE layer number `index` (0: the first)."""
    half_bound = ((2**63 - 1) // vocab) // 2
    return tuple(
        2 * (splitmix64(seed + 10007 * index + _GOLDEN_GAMMA * (lag + 1)) % half_bound) + 1 for lag in range(order)
    )


def prime_sizes(base: int, count: int) -> tuple[int, ...]:
    """The `count` consecutive primes from `base` on: the head sizes of a checkpoint with that base."""
    sizes: list[int] = []
    candidate = base
    while len(sizes) < count:
        if _is_prime(candidate):
            sizes.append(candidate)
        candidate += 1
    return tuple(sizes)


def offsets_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Where each head's range starts when the ranges stand one after the other."""
    return tuple(sum(sizes[:head]) for head in range(len(sizes)))


def _is_prime(number: int) -> bool:
    """Deterministic Miller-Rabin: these twelve bases decide every number below 2^64."""
    if number < 2:
        return False
    small = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if any(number % prime == 0 for prime in small):
        return number in small
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(number, base, odd, twos) for base in small)


def _passes(number: int, base: int, odd: int, twos: int) -> bool:
    power = pow(base, odd, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False

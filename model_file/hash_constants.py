"""The constants of the n-gram hash, and the rules by which checkpoints of this family choose them.

Constants only: the reference and the fast path each have arithmetic of their own, so that one can check the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class HashConstants:
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

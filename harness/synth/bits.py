"""Raw random bits and the exact arithmetic that turns them into float32 weights and into packed table blocks.

The bytes of a made model may depend on no library's version. So only Philox4x64-10 counter output is taken from NumPy
(its stream is fixed by the algorithm, and a test compares it with a big-integer implementation), and everything after
it is integer arithmetic, bit masks, or one float32 multiplication whose factors are exact: IEEE 754 then fixes the
result.
"""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]

# Odd integers -65535, -65533 ... 65535, all equally likely: their standard deviation is sqrt((65536^2 - 1) / 3).
_UNIFORM_VARIANCE = Fraction(65536**2 - 1, 3)


class BitStream:
    """The random bytes of one tensor, in order.

    The Philox key is the first 16 bytes of SHA-256("plegate/<preset>/<seed>/<tensor>"), little endian: every tensor
    has a stream of its own, so adding a tensor or making a table longer changes no other byte.
    """

    def __init__(self, preset: str, seed: int, tensor: str) -> None:
        digest = hashlib.sha256(f"plegate/{preset}/{seed}/{tensor}".encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))
        self._left = np.empty(0, dtype=np.uint8)

    def take(self, count_bytes: int) -> Bytes:
        """The next bytes of the stream, as a fresh array; any split gives the same bytes as one call."""
        missing = count_bytes - self._left.size
        if missing > 0:
            words = self._generator.random_raw(-(-missing // 8)).astype("<u8", copy=False)
            drawn = words.view(np.uint8)
            if self._left.size:
                drawn = np.concatenate([self._left, drawn])
        else:
            drawn = self._left
        self._left = drawn[count_bytes:].copy()
        return drawn[:count_bytes]


def weight_scale(gain: Fraction, fan_in: int) -> np.float32:
    """The factor that gives `uniform` a standard deviation near gain / sqrt(fan_in): m * 2^-k with m in 4..7.

    A three-bit m keeps every product with a 17-bit integer exact. Found with integers only: m is 2^k times the wanted
    factor, rounded down.
    """
    wanted_squared = gain * gain / fan_in / _UNIFORM_VARIANCE
    shift = 0
    while True:
        scaled = wanted_squared * 4**shift
        mantissa = math.isqrt(scaled.numerator // scaled.denominator)
        if mantissa >= 4:
            return np.float32(math.ldexp(min(mantissa, 7), -shift))
        shift += 1


def uniform(raw: Bytes, scale: np.float32) -> Float32:
    """Two random bytes per weight: an odd integer in -65535..65535 times `scale`.

    Shapes: uint8 [2 * count] -> float32 [count].
    """
    values = raw.view("<u2").astype(np.float32)  # exact: 16 bits
    values *= np.float32(2.0)
    values -= np.float32(65535.0)
    values *= scale
    return values


def around_one(raw: Bytes, scale: np.float32) -> Float32:
    """One random byte per weight: a multiple of 1/256 in 0.75..1.25 times a power of two `scale`.

    Shapes: uint8 [count] -> float32 [count].
    """
    values = ((raw >> 1).astype(np.float32) + np.float32(192.0)) * np.float32(2.0**-8)
    return values * scale

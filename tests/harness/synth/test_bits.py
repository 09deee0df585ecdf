"""The random bits are Philox4x64-10 and nothing else; what is made of them is exact."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.synth.bits import BitStream, around_one, uniform, weight_scale

_MASK = (1 << 64) - 1


def philox_words(key: int, count: int) -> list[int]:
    """Philox4x64-10 (Salmon, Moraes, Dror and Shaw 2011) in Python integers; NumPy's first block has counter 1."""
    words: list[int] = []
    block = 0
    while len(words) < count:
        block += 1
        counter = [block & _MASK, block >> 64, 0, 0]
        keys = [key & _MASK, key >> 64]
        for _ in range(10):
            low, high = 0xD2E7470EE14C6C93 * counter[0], 0xCA5A826395121157 * counter[2]
            counter = [
                (high >> 64) ^ counter[1] ^ keys[0],
                high & _MASK,
                (low >> 64) ^ counter[3] ^ keys[1],
                low & _MASK,
            ]
            keys = [(keys[0] + 0x9E3779B97F4A7C15) & _MASK, (keys[1] + 0xBB67AE8584CAA73B) & _MASK]
        words += counter
    return words[:count]


def test_bit_stream_is_philox_of_the_stated_key() -> None:
    key = int.from_bytes(hashlib.sha256(b"plegate/nano/7/blk.0.attn_qkv.weight").digest()[:16], "little")
    expected = b"".join(word.to_bytes(8, "little") for word in philox_words(key, 33))
    assert BitStream("nano", 7, "blk.0.attn_qkv.weight").take(8 * 33).tobytes() == expected


@given(st.lists(st.integers(0, 50), max_size=12))
def test_bit_stream_does_not_depend_on_the_split(pieces: list[int]) -> None:
    stream = BitStream("nano", 0, "x")
    joined = b"".join(stream.take(piece).tobytes() for piece in pieces)
    assert joined == BitStream("nano", 0, "x").take(sum(pieces)).tobytes()


@pytest.mark.parametrize("other", [("mini", 0, "x"), ("nano", 1, "x"), ("nano", 0, "y")])
def test_bit_stream_differs_by_preset_seed_and_tensor(other: tuple[str, int, str]) -> None:
    assert BitStream(*other).take(16).tobytes() != BitStream("nano", 0, "x").take(16).tobytes()


@given(st.fractions(min_value=Fraction(1, 16), max_value=64), st.integers(1, 20000))
def test_weight_scale_is_three_bits_and_near(gain: Fraction, fan_in: int) -> None:
    scale = weight_scale(gain, fan_in)
    mantissa, _ = math.frexp(float(scale))
    assert (mantissa * 8).is_integer()
    wanted = float(gain) / math.sqrt(fan_in) / 37837.0
    assert 0.79 * wanted <= float(scale) <= 1.001 * wanted  # m is 4..7, rounded down: at most a fifth too small


def test_uniform_is_exact() -> None:
    raw = np.frombuffer(np.arange(65536, dtype="<u2").tobytes(), dtype=np.uint8)
    scale = weight_scale(Fraction(2), 640)
    values = uniform(raw, scale)
    assert values.dtype == np.float32
    exact = [Fraction(2 * number - 65535) * Fraction(float(scale)) for number in range(65536)]
    assert [Fraction(float(value)) for value in values] == exact


def test_around_one_is_exact() -> None:
    values = around_one(np.arange(256, dtype=np.uint8), np.float32(2.0))
    assert values.tolist() == [2 * (192 + number // 2) / 256 for number in range(256)]
    assert values.min() == 1.5 and values.max() == 2.4921875

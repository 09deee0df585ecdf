"""Unpacked values are gguf's, bit for bit: every float16 scale there is, random codes, on the host and under jit."""

from __future__ import annotations

import gguf
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fast.rows.dequantize import UNPACKERS, dequantize_jax, dequantize_numpy, dequantize_on_device
from model_file.errors import InputError
from tests.fast.rows.tables import WIDTHS, row_bytes_of

Type = gguf.GGMLQuantizationType
ALL = pytest.mark.parametrize("type", list(WIDTHS), ids=lambda type: type.name)
# Byte places of the float16 scales in a block.
SCALES = {
    Type.Q8_0: [0],
    Type.Q5_0: [0],
    Type.Q5_1: [0, 2],
    Type.Q4_0: [0],
    Type.IQ4_NL: [0],
    Type.Q6_K: [208],
    Type.Q4_K: [0, 2],
    Type.IQ1_S: [0],
}


def assert_same_bits(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bits; a NaN must be a NaN, but may be a quiet one where the other is signalling."""
    assert (found.dtype, found.shape) == (np.float32, expected.shape)
    both_nan = np.isnan(found) & np.isnan(expected)
    left, right = found.view(np.uint32), expected.view(np.uint32)
    wrong = np.argwhere((left != right) & ~both_nan)
    assert wrong.size == 0, f"first at {wrong[0]}: {left[tuple(wrong[0])]:#x}, expected {right[tuple(wrong[0])]:#x}"


def expected_values(packed: np.ndarray, type: Type) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return gguf.dequantize(packed, type)


def test_unpackers_cover_every_type_that_is_made() -> None:
    assert set(UNPACKERS) == set(WIDTHS)


@ALL
def test_dequantize_equals_gguf_for_every_scale(type: Type) -> None:
    """All 65,536 float16 values as scale (subnormals, infinities and NaN too), or as the value itself, with random
    codes.
    """
    block, block_bytes = gguf.GGML_QUANT_SIZES[type]
    rng = np.random.default_rng(11)
    rows = rng.integers(0, 256, (65_536, block_bytes if block > 1 else 64), dtype=np.uint8)
    scales = np.arange(65_536, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    for place in SCALES.get(type, [0]):
        rows[:, place : place + 2] = scales if place != 2 else scales[::-1]
    expected = expected_values(rows, type)
    assert_same_bits(dequantize_numpy(rows, type), expected)
    assert_same_bits(np.asarray(dequantize_on_device(rows, type=type)), expected)


@ALL
def test_dequantize_equals_gguf_for_random_rows(type: Type) -> None:
    @given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 5), st.just(row_bytes_of(type)))))
    def check(rows: np.ndarray) -> None:
        expected = expected_values(rows, type) if rows.size else np.empty((0, WIDTHS[type]), np.float32)
        assert_same_bits(dequantize_numpy(rows, type), expected)

    check()


@ALL
def test_dequantize_is_the_same_inside_a_larger_jit(type: Type) -> None:
    """Fused with arithmetic around it (where a multiply-add could form), and large enough for several threads."""
    rows = np.random.default_rng(5).integers(0, 256, (8192, row_bytes_of(type)), dtype=np.uint8)
    expected = expected_values(rows, type)

    @jax.jit
    def unpack_and_more(packed: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = dequantize_jax(packed, type)
        return values, values * 2 + 1

    assert_same_bits(np.asarray(unpack_and_more(rows)[0]), expected)


def test_q5_1_rounds_its_sum_once() -> None:
    """The one addition of all types, where fused and unfused arithmetic would differ if the product were not exact."""
    rng = np.random.default_rng(2)
    rows = rng.integers(0, 256, (40_000, 24), dtype=np.uint8)
    rows[:, :2] = rng.uniform(-0.004, 0.004, 40_000).astype(np.float16).view(np.uint8).reshape(-1, 2)
    rows[:, 2:4] = rng.uniform(-3000, 3000, 40_000).astype(np.float16).view(np.uint8).reshape(-1, 2)
    expected = expected_values(rows, Type.Q5_1)
    inexact = np.float64(expected) != _q5_1_in_float64(rows)
    assert inexact.mean() > 0.1  # the sum does round: the test can fail
    assert_same_bits(np.asarray(dequantize_on_device(rows, type=Type.Q5_1)), expected)


def _q5_1_in_float64(rows: np.ndarray) -> np.ndarray:
    codes = np.concatenate([rows[:, 8:] & 15, rows[:, 8:] >> 4], axis=1).astype(np.float64)
    codes += 16.0 * np.unpackbits(rows[:, 4:8], axis=1, bitorder="little")
    scale = np.ascontiguousarray(rows[:, 0:2]).view(np.float16).astype(np.float64)
    return codes * scale + np.ascontiguousarray(rows[:, 2:4]).view(np.float16).astype(np.float64)


def test_a_planted_wrong_code_is_caught() -> None:
    """The comparison can fail: one nibble changed gives one value changed, and it is named."""
    rows = np.random.default_rng(1).integers(0, 100, (4, 90), dtype=np.uint8)
    expected = expected_values(rows, Type.IQ4_NL)
    rows[2, 5] ^= 0x10
    with pytest.raises(AssertionError, match=r"first at \[ 2 19\]"):
        assert_same_bits(dequantize_numpy(rows, Type.IQ4_NL), expected)


def test_dequantize_takes_leading_axes() -> None:
    rows = np.random.default_rng(1).integers(0, 100, (3, 4, 90), dtype=np.uint8)
    assert_same_bits(np.asarray(dequantize_on_device(rows, type=Type.IQ4_NL)), expected_values(rows, Type.IQ4_NL))
    assert dequantize_numpy(rows, Type.IQ4_NL).shape == (3, 4, 160)


def test_dequantize_refuses_other_types_and_broken_rows() -> None:
    with pytest.raises(InputError, match="no unpacker for table type Q2_K, expected one of F32, F16"):
        dequantize_numpy(np.zeros((1, 84), np.uint8), Type.Q2_K)
    with pytest.raises(InputError, match=r"uint8\[\.\.\., 89\], expected uint8 in whole blocks of 18 bytes"):
        dequantize_numpy(np.zeros((1, 89), np.uint8), Type.IQ4_NL)

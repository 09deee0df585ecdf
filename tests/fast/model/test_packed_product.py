"""Products with packed matrices: weights enter bit for bit, sums are as good as float32 sums can be."""

from __future__ import annotations

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fast.model.packed import Beside, PackedMatrix, PackedRows
from fast.model.packed_product import PLANES, ROWS, TILES, product, side_by_side
from fast.rows.dequantize import UNPACKERS, dequantize_numpy

Type = gguf.GGMLQuantizationType
ALL = pytest.mark.parametrize("type", list(UNPACKERS), ids=lambda type: type.name)


def random_blocks(type: Type, rows: int, width: int, seed: int = 3) -> np.ndarray:
    """Packed rows of finite values: codes are random, float16 scales between 2^-9 and 2^-5."""
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[type]
    if type == Type.F32:
        return rng.standard_normal((rows, width)).astype(np.float32).view(np.uint8)
    if size == 2:
        values = rng.standard_normal((rows, width)).astype(np.float32)
        return np.asarray(gguf.quantize(values, type)).view(np.uint8)
    packed = rng.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
    places = {Type.Q5_1: [0, 2], Type.Q4_K: [0, 2], Type.Q6_K: [208]}.get(type, [0])
    for place in places:
        scales = rng.uniform(2**-9, 2**-5, packed.shape[:2]).astype(np.float16)
        packed[..., place : place + 2] = scales[..., None].view(np.uint8)
    return packed.reshape(rows, -1)


def multiplied(x: np.ndarray, packed: np.ndarray, type: Type) -> np.ndarray:
    parts = tuple(jnp.asarray(part) for part in side_by_side(packed, type))
    with jax.default_matmul_precision("highest"):
        return np.asarray(jax.jit(lambda x, *parts: product(x, parts, len(packed), type))(x, *parts))


@ALL
@pytest.mark.parametrize(("tokens", "rows"), [(1, 3 * ROWS + 5), (70, ROWS), (3, 1)])
def test_the_product_is_that_of_the_unpacked_rows(type: Type, tokens: int, rows: int) -> None:
    """Against float64. A float32 sum of n products in any order is off by at most n eps of the sum of their sizes."""
    packed = random_blocks(type, rows, 512)
    x = np.random.default_rng(5).standard_normal((tokens, 512)).astype(np.float32)
    weights = dequantize_numpy(packed, type).astype(np.float64)
    found, exact = multiplied(x, packed, type), x.astype(np.float64) @ weights.T
    assert found.shape == exact.shape
    bound = 512 * np.finfo(np.float32).eps * (np.abs(x).astype(np.float64) @ np.abs(weights).T)
    assert (np.abs(found - exact) <= bound).all()


@ALL
def test_weights_enter_bit_for_bit(type: Type) -> None:
    """A vector of one 1 takes a column out: no sum rounds anything."""
    packed = random_blocks(type, ROWS + 3, 256)
    found = multiplied(np.eye(256, dtype=np.float32), packed, type)
    expected = dequantize_numpy(packed, type).T
    assert np.array_equal(found, expected)
    nonzero = expected != 0
    assert np.array_equal(found[nonzero].view(np.uint32), expected[nonzero].view(np.uint32)) and nonzero.mean() > 0.5


@pytest.mark.parametrize("rows", [ROWS * TILES, ROWS * (TILES + 1), ROWS * 2 * TILES + 1])
def test_groups_of_tiles_follow_each_other(rows: int) -> None:
    packed = random_blocks(Type.Q8_0, rows, 32)
    found = multiplied(np.eye(32, dtype=np.float32), packed, Type.Q8_0)
    assert np.array_equal(found, dequantize_numpy(packed, Type.Q8_0).T)


def test_planes_hold_every_byte_of_a_block_once() -> None:
    for type, planes in PLANES.items():
        size = gguf.GGML_QUANT_SIZES[type][1]
        ends = sorted((start, stop) for start, stop, _ in planes.parts)
        assert [start for start, _ in ends] == [0, *(stop for _, stop in ends[:-1])] and ends[-1][1] == size
        assert all(np.prod(axes) == stop - start for start, stop, axes in planes.parts)


def test_packed_matrices_stand_where_others_do() -> None:
    packed = random_blocks(Type.Q8_0, 40, 64)
    weights = dequantize_numpy(packed, Type.Q8_0)
    parts = tuple(jnp.asarray(part) for part in side_by_side(packed, Type.Q8_0))
    matrix = PackedMatrix(parts, jnp.float32(2.0), 40, int(Type.Q8_0))
    x = jnp.asarray(np.random.default_rng(1).standard_normal((2, 3, 64)), jnp.float32)
    out = x @ matrix
    assert out.shape == (2, 3, 40)
    np.testing.assert_allclose(out, 2 * np.asarray(x) @ weights.T, rtol=1e-4, atol=1e-5)
    both = x @ Beside((matrix, jnp.asarray(weights.T)))
    np.testing.assert_allclose(both, np.concatenate([out, np.asarray(x) @ weights.T], axis=-1), rtol=1e-4, atol=1e-5)
    rows = PackedRows(jnp.asarray(packed), int(Type.Q8_0))
    assert np.array_equal(rows[jnp.asarray([5, 0, 5])], weights[[5, 0, 5]])

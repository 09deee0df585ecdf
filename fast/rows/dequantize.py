"""Packed rows to float32, bit for bit as gguf's own dequantizer, in NumPy and traceable by JAX.

Both back ends run the same formulas; only bit casts and table lookups differ. Why no compiler can change a bit:
every product is exact. A float16 scale has 11 significant bits, a quantised value at most 8 (Q6_K: 8 more for its sub-
scale, Q4_K: 6 + 4, IQ1_S: 4 + 4), so each product fits the 24 bits of a float32 in any order of multiplication. The one
sum of any type, Q5_1's `d * q + m` and Q4_K's `d * s * q - e * m`, then rounds once, fused or not: a multiply-add whose
product is exact gives the rounded sum either way. Subnormals: the smallest non-zero product is 2^-24, a normal float32,
so flushing denormals changes nothing; BF16 and F32 are moved as bits and never computed with. A NaN in the file (no
quantiser writes one) gives NaN; whether a signalling one is made quiet is the converter's choice.

Source: the block layouts of ggml, as `gguf.quants` reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from jax import lax

from model_file.errors import InputError

IQ4_NL_VALUES = gguf.quants.IQ4_NL.kvalues
_IQ1_S_DELTA = 0.125


class _NumpyOps:
    """Bit casts and lookups in NumPy."""

    xp: Any = np

    @staticmethod
    def cast(array: Any, dtype: Any) -> Any:
        """Reinterpret the bytes of the last axis."""
        return np.ascontiguousarray(array).view(dtype)

    @staticmethod
    def codebook(codes: Any, values: tuple[int, ...]) -> Any:
        """values[codes] as float32."""
        return np.array(values, np.float32).take(codes)

    @staticmethod
    def rows_of(table: npt.NDArray[np.float32], index: Any) -> Any:
        """table[index]."""
        return table.take(index, axis=0)


class _JaxOps:
    """The same under a JAX trace."""

    xp: Any = jnp

    @staticmethod
    def cast(array: Any, dtype: Any) -> Any:
        """Reinterpret the bytes of the last axis."""
        size = np.dtype(dtype).itemsize
        if size == 1:
            return lax.bitcast_convert_type(array, dtype)
        return lax.bitcast_convert_type(array.reshape(*array.shape[:-1], -1, size), dtype)

    @staticmethod
    def codebook(codes: Any, values: tuple[int, ...]) -> Any:
        """values[codes] by a tree of selects: vector instructions, where an indexed load would go value by value."""
        level: list[Any] = [jnp.float32(value) for value in values]
        for bit in range((len(values) - 1).bit_length()):
            is_set = (codes & np.uint8(1 << bit)) != 0
            level = [jnp.where(is_set, high, low) for low, high in zip(level[::2], level[1::2], strict=True)]
        return level[0]

    @staticmethod
    def rows_of(table: npt.NDArray[np.float32], index: Any) -> Any:
        """table[index]."""
        return jnp.asarray(table)[index.astype(jnp.int32)]


codebook = _JaxOps.codebook
_Ops = type[_NumpyOps] | type[_JaxOps]


def _scale(blocks: Any, at: int, ops: _Ops) -> Any:
    """The float16 at byte `at` of every block, as float32 with a trailing axis of 1."""
    return ops.cast(blocks[..., at : at + 2], np.float16).astype(np.float32)


def _nibbles(packed: Any, ops: _Ops) -> Any:
    """Low nibbles, then high ones: ggml's order inside a block. One concatenation of two plain loops compiles best."""
    return ops.xp.concatenate([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)


def _fifth_bits(blocks: Any, at: int) -> Any:
    """The 32 bits at bytes at..at+3, lowest first, each as 0 or 16."""
    shifts = np.arange(8, dtype=np.uint8)
    bits = (blocks[..., at : at + 4, None] >> shifts) & np.uint8(1)
    return bits.reshape(*bits.shape[:-2], 32) << np.uint8(4)


def _q4_0(blocks: Any, ops: _Ops) -> Any:
    return _scale(blocks, 0, ops) * (_nibbles(blocks[..., 2:], ops).astype(np.float32) - np.float32(8))


def _iq4_nl(blocks: Any, ops: _Ops) -> Any:
    packed = blocks[..., 2:]
    low = ops.codebook(packed & np.uint8(15), IQ4_NL_VALUES)
    high = ops.codebook(packed >> np.uint8(4), IQ4_NL_VALUES)
    return _scale(blocks, 0, ops) * ops.xp.concatenate([low, high], axis=-1)


def _q5_0(blocks: Any, ops: _Ops) -> Any:
    codes = _nibbles(blocks[..., 6:], ops) | _fifth_bits(blocks, 2)
    return _scale(blocks, 0, ops) * (codes.astype(np.float32) - np.float32(16))


def _q5_1(blocks: Any, ops: _Ops) -> Any:
    codes = _nibbles(blocks[..., 8:], ops) | _fifth_bits(blocks, 4)
    return _scale(blocks, 0, ops) * codes.astype(np.float32) + _scale(blocks, 2, ops)


def _q8_0(blocks: Any, ops: _Ops) -> Any:
    return _scale(blocks, 0, ops) * ops.cast(blocks[..., 2:], np.int8).astype(np.float32)


def _sub_scales(blocks: Any, at: int, ops: _Ops) -> tuple[Any, Any]:
    """Eight 6-bit scales and eight 6-bit minima of a K block from the 12 bytes at `at`."""
    low, middle, high = (blocks[..., at + place : at + place + 4] for place in (0, 4, 8))
    scales = ops.xp.concatenate([low & np.uint8(63), high & np.uint8(15) | low >> np.uint8(6) << np.uint8(4)], axis=-1)
    minima = ops.xp.concatenate(
        [middle & np.uint8(63), high >> np.uint8(4) | middle >> np.uint8(6) << np.uint8(4)], axis=-1
    )
    return scales.astype(np.float32), minima.astype(np.float32)


def _q4_k(blocks: Any, ops: _Ops) -> Any:
    """256 values in four pairs of groups of 32, low nibbles before high ones; a scale and a minimum per group."""
    lead = blocks.shape[:-1]
    scales, minima = _sub_scales(blocks, 4, ops)
    codes = _nibbles(blocks[..., 16:144].reshape(*lead, 4, 32), ops).reshape(*lead, 8, 32)
    values = (_scale(blocks, 0, ops) * scales)[..., None] * codes.astype(np.float32)
    return (values - (_scale(blocks, 2, ops) * minima)[..., None]).reshape(*lead, 256)


def _q6_k(blocks: Any, ops: _Ops) -> Any:
    """256 values in two halves of four groups of 32; low nibbles, two high bits, one int8 scale per 16 values."""
    lead = blocks.shape[:-1]
    low = blocks[..., :128].reshape(*lead, 2, 64)
    low = _nibbles(low, ops).reshape(*lead, 8, 32)
    high = (blocks[..., 128:192].reshape(*lead, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & np.uint8(3)
    codes = low | (high.reshape(*lead, 8, 32) << np.uint8(4))
    values = (codes.astype(np.float32) - np.float32(32)).reshape(*lead, 16, 16)
    sub_scales = ops.cast(blocks[..., 192:208], np.int8).astype(np.float32)
    scales = _scale(blocks, 208, ops) * sub_scales
    return (scales[..., None] * values).reshape(*lead, 256)


@lru_cache(maxsize=1)
def _iq1_s_grid() -> npt.NDArray[np.float32]:
    """gguf's codebook of IQ1_S: 2048 rows of 8 values in {-1, 0, 1}."""
    gguf.quants.IQ1_S.init_grid()  # type: ignore[no-untyped-call]
    grid = gguf.quants.IQ1_S.grid
    assert grid is not None
    return np.ascontiguousarray(grid.reshape(2048, 8))


def _iq1_s(blocks: Any, ops: _Ops) -> Any:
    """256 values in eight groups of 32: a 3-bit scale, a signed offset of 1/8 and four 11-bit codes each."""
    lead = blocks.shape[:-1]
    heads = ops.cast(blocks[..., 34:50], np.uint16)
    scales = _scale(blocks, 0, ops) * (2 * ((heads >> np.uint16(12)) & np.uint16(7)) + 1).astype(np.float32)
    offset = ops.xp.where((heads & np.uint16(0x8000)) == 0, np.float32(_IQ1_S_DELTA), np.float32(-_IQ1_S_DELTA))
    high = (heads[..., None] >> np.array([0, 3, 6, 9], np.uint16)) & np.uint16(7)
    index = blocks[..., 2:34].reshape(*lead, 8, 4).astype(np.uint16) | (high << np.uint16(8))
    values = ops.rows_of(_iq1_s_grid(), index).reshape(*lead, 8, 32)
    return (scales[..., None] * (values + offset[..., None])).reshape(*lead, 256)


def _f32(blocks: Any, ops: _Ops) -> Any:
    return ops.cast(blocks, np.float32)


def _f16(blocks: Any, ops: _Ops) -> Any:
    return ops.cast(blocks, np.float16).astype(np.float32)


def _bf16(blocks: Any, ops: _Ops) -> Any:
    words = ops.cast(blocks, np.uint16).astype(np.uint32) << np.uint32(16)
    if ops is _NumpyOps:
        return words.view(np.float32)
    return lax.bitcast_convert_type(words, jnp.float32)


UNPACKERS: dict[Type, Callable[[Any, _Ops], Any]] = {
    Type.F32: _f32,
    Type.F16: _f16,
    Type.BF16: _bf16,
    Type.Q8_0: _q8_0,
    Type.Q5_0: _q5_0,
    Type.Q5_1: _q5_1,
    Type.Q4_0: _q4_0,
    Type.IQ4_NL: _iq4_nl,
    Type.Q6_K: _q6_k,
    Type.Q4_K: _q4_k,
    Type.IQ1_S: _iq1_s,
}


def dequantize_numpy(packed: npt.NDArray[np.uint8], type: Type) -> npt.NDArray[np.float32]:
    """Unpack rows on the host.

    Shapes: uint8[n, row_bytes] -> float32[n, row_width].
    Raises: InputError for a type without an unpacker or rows that are not whole blocks.
    """
    with np.errstate(invalid="ignore"):  # a scale that is infinite or NaN, as in random bytes
        return _unpack(packed, type, _NumpyOps)


def dequantize_jax(packed: Any, type: Type) -> jax.Array:
    """Unpack rows on the device; to be called under a trace, with `type` static.

    Shapes: uint8[n, row_bytes] -> float32[n, row_width]. Leading axes may be more than one.
    Raises: InputError as `dequantize_numpy`.
    """
    return _unpack(packed, type, _JaxOps)


dequantize_on_device = partial(jax.jit, static_argnames="type")(dequantize_jax)


def _unpack(packed: Any, type: Type, ops: _Ops) -> Any:
    unpacker = UNPACKERS.get(type)
    if unpacker is None:
        known = ", ".join(t.name for t in UNPACKERS)
        raise InputError(f"no unpacker for table type {Type(type).name}, expected one of {known}")
    block, block_bytes = gguf.GGML_QUANT_SIZES[type]
    *lead, row_bytes = packed.shape
    if row_bytes % block_bytes or packed.dtype != np.uint8:
        raise InputError(
            f"packed rows are {packed.dtype}[..., {row_bytes}], expected uint8 in whole blocks of {block_bytes} bytes "
            f"({Type(type).name})"
        )
    blocks = packed if block_bytes in (2, 4) else packed.reshape(*lead, row_bytes // block_bytes, block_bytes)
    return unpacker(blocks, ops).reshape(*lead, row_bytes // block_bytes * block)

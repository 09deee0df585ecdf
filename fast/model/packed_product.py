"""The product of activations with a packed matrix, which is never unpacked as a whole.

Rows lie side by side: byte i of a block of 64 rows, then byte i + 1 of them, so that every step of unpacking is one of
whole vectors, whatever a block looks like inside. Nothing is permuted or joined: a type is a few planes (low nibbles,
high nibbles), and it is the activations that are put in the order of each plane, once. XLA would compute the scales
anew for every value if they stood in the same loop, so they are operands of a loop, which it must store.

Measured on 2 cores, G weights/s times one vector, beside 4.8 of float32 weights from memory: unpacked rows times the
vector 0.3 in Q4_K and Q6_K; in planes 0.7 in Q6_K; in planes with rows side by side 2.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from jax import lax

from fast.rows.dequantize import IQ4_NL_VALUES, codebook, dequantize_jax
from reference.shapes import Array, Float

ROWS = 64  # of a tile
TILES = 20  # of a group, whose scales are stored together
Bytes: TypeAlias = npt.NDArray[np.uint8]
Parts = tuple[Array, ...]
_FLOAT, _BYTE = jnp.float32, np.uint8


class Planes(NamedTuple):
    """How a type's blocks are multiplied.

    parts: the bytes of a block, from, to, and the axes that they are counted in; each part is an array of its own
    [blocks, *axes, rows], because XLA computes places value by value where it must cut a part out. scales: the parts to
    what is stored apart. unpack: parts and scales to planes of values [..., rows]. arrange: activations
    [t, blocks, values] in the order of each plane.
    """

    parts: tuple[tuple[int, int, tuple[int, ...]], ...]
    scales: Callable[[Parts], Parts]
    unpack: Callable[[Parts, Parts], tuple[Array, ...]]
    arrange: Callable[[Any], tuple[Array, ...]]


def part_shapes(out: int, row_bytes: int, type: Type) -> list[tuple[int, ...]]:
    """Shapes of the parts of a matrix [out, row_bytes]: [tiles, blocks, *axes, ROWS] each, padded to whole tiles."""
    lead = (-(-out // ROWS), row_bytes // gguf.GGML_QUANT_SIZES[type][1])
    return [(*lead, *axes, ROWS) for _, _, axes in planes_of(type).parts]


def lay_side_by_side(packed: Bytes, type: Type, into: Sequence[Bytes]) -> None:
    """Matrices as their file has them to their parts. Padding of `into` is left as it is.

    Shapes: packed uint8 [n, out, row_bytes]; into: [n, *shape] for every shape of `part_shapes`.
    """
    number, out, row_bytes = packed.shape
    block_bytes = gguf.GGML_QUANT_SIZES[type][1]
    whole = out // ROWS
    for rows, tiles, size in (
        (packed[:, : whole * ROWS], slice(0, whole), ROWS),
        (packed[:, whole * ROWS :], slice(whole, None), out % ROWS),
    ):
        if not rows.shape[1]:
            continue
        blocks = np.moveaxis(rows.reshape(number, -1, size, row_bytes // block_bytes, block_bytes), 2, 4)
        for (start, stop, axes), part in zip(planes_of(type).parts, into, strict=True):
            part[:, tiles, ..., :size] = blocks[..., start:stop, :].reshape(*blocks.shape[:3], *axes, size)


def side_by_side(packed: Bytes, type: Type) -> list[Bytes]:
    """One matrix [out, row_bytes] as `lay_side_by_side` has it, in memory of its own."""
    parts = [np.zeros((1, *shape), np.uint8) for shape in part_shapes(packed.shape[0], packed.shape[1], type)]
    lay_side_by_side(packed[None], type, parts)
    return [part[0] for part in parts]


def product(x: Float[Array, "t d"], parts: Parts, out: int, type: Type) -> Float[Array, "t out"]:
    """x times the transpose of the unpacked matrix. Every weight is what gguf makes of it, only sums have their order.

    parts: as `lay_side_by_side` leaves them. out: rows of the matrix, padding left out. To be called under a trace.
    Raises: InputError for a type that nothing unpacks.
    """
    planes, (count, blocks) = planes_of(type), parts[0].shape[:2]
    arranged = tuple(part.reshape(x.shape[0], -1) for part in planes.arrange(x.reshape(x.shape[0], blocks, -1)))
    whole, pieces = count // TILES * TILES, []
    if whole:
        groups = lax.map(lambda start: _group(arranged, parts, start, TILES, planes), jnp.arange(0, whole, TILES))
        pieces.append(groups.reshape(whole, x.shape[0], ROWS))
    if whole < count:
        pieces.append(_group(arranged, parts, whole, count - whole, planes))
    joined = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
    return jnp.moveaxis(joined, 0, 1).reshape(x.shape[0], -1)[:, :out]


def _group(
    arranged: tuple[Array, ...], parts: Parts, start: Any, count: int, planes: Planes
) -> Float[Array, "count t rows"]:
    """The product with some tiles, one after the other."""
    scales = jax.vmap(planes.scales)(tuple(lax.dynamic_slice_in_dim(part, start, count) for part in parts))

    def multiply(place: Any) -> Array:
        number, stored = place
        tile = tuple(lax.dynamic_index_in_dim(part, start + number, keepdims=False) for part in parts)
        values = (plane.reshape(-1, ROWS) for plane in planes.unpack(tile, stored))
        return sum(x @ plane for plane, x in zip(values, arranged, strict=True))  # type: ignore[return-value]

    return lax.map(multiply, (jnp.arange(count), scales))


def _half(part: Any) -> Any:
    """Float16 numbers of two bytes each [..., 2, rows], as float32 [..., rows]."""
    words = part[..., 0, :].astype(np.uint16) | part[..., 1, :].astype(np.uint16) << np.uint16(8)
    return lax.bitcast_convert_type(words, jnp.float16).astype(_FLOAT)


def _low(codes: Any) -> Any:
    return codes & _BYTE(15)


def _high(codes: Any) -> Any:
    return codes >> _BYTE(4)


_NIBBLES = (_low, _high)


def _halves(x: Any) -> tuple[Array, ...]:
    half = x.shape[-1] // 2
    return x[..., :half], x[..., half:]


def _quarters(parts: int) -> Callable[[Any], tuple[Array, ...]]:
    """Runs of 32 values that go round the planes."""

    def arrange(x: Any) -> tuple[Array, ...]:
        runs = x.reshape(*x.shape[:-1], -1, parts, 32)
        return tuple(runs[..., part, :] for part in range(parts))

    return arrange


def _q4_k_scales(parts: Parts) -> Parts:
    both, codes = parts[0], parts[1]
    low, middle, high = codes[:, 0], codes[:, 1], codes[:, 2]
    scales = low & _BYTE(63), _low(high) | (low >> _BYTE(6)) << _BYTE(4)
    minima = middle & _BYTE(63), _high(high) | (middle >> _BYTE(6)) << _BYTE(4)
    # Groups 0 to 3, then 4 to 7, two of them to every 32 bytes of codes: the even ones are low nibbles.
    return tuple(
        _half(both[:, place])[:, None] * jnp.concatenate([half[:, nibble::2] for half in halves], axis=1).astype(_FLOAT)
        for place, halves in enumerate((scales, minima))
        for nibble in (0, 1)
    )


def _q4_k(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return tuple(
        half(parts[2]).astype(_FLOAT) * scales[nibble][:, :, None] - scales[2 + nibble][:, :, None]
        for nibble, half in enumerate(_NIBBLES)
    )


def _fifth_bits(part: Any, nibble: int) -> Any:
    """Of the 32 bits [blocks, 4, rows], those of the values in low nibbles or in high ones: [blocks, 2, 8, rows]."""
    return (part[:, 2 * nibble : 2 * nibble + 2, None] >> np.arange(8, dtype=_BYTE)[:, None] & _BYTE(1)) << _BYTE(4)


def _q5_1(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    scale, minimum = (part[:, None, None] for part in scales)
    return tuple(
        (half(parts[2]) | _fifth_bits(parts[1], nibble)).astype(_FLOAT) * scale + minimum
        for nibble, half in enumerate(_NIBBLES)
    )


def _q5_0(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return tuple(
        ((half(parts[2]) | _fifth_bits(parts[1], nibble)).astype(_FLOAT) - 16) * scales[0][:, None, None]
        for nibble, half in enumerate(_NIBBLES)
    )


def _q6_k_scales(parts: Parts) -> Parts:
    scales = lax.bitcast_convert_type(parts[2], jnp.int8).astype(_FLOAT) * _half(parts[3])[:, None, None, None]
    return tuple(scales[:, :, part] for part in range(4))


def _q6_k(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    low, high = parts[0], parts[1]

    def plane(part: int) -> Any:
        nibbles = _NIBBLES[part // 2](low[:, :, part % 2])
        codes = nibbles | (high >> _BYTE(2 * part) & _BYTE(3)) << _BYTE(4)
        return (codes.astype(_FLOAT) - 32) * scales[part][:, :, :, None]

    return tuple(plane(part) for part in range(4))


def _q8_0(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return (lax.bitcast_convert_type(parts[1], jnp.int8).astype(_FLOAT) * scales[0][:, None],)


def _q4_1(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return tuple(half(parts[1]).astype(_FLOAT) * scales[0][:, None] + scales[1][:, None] for half in _NIBBLES)


def _q4_0(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return tuple((half(parts[1]).astype(_FLOAT) - 8) * scales[0][:, None] for half in _NIBBLES)


def _iq4_nl(parts: Parts, scales: Parts) -> tuple[Array, ...]:
    return tuple(codebook(half(parts[1]), IQ4_NL_VALUES) * scales[0][:, None] for half in _NIBBLES)


def _scale(parts: Parts) -> Parts:
    return (_half(parts[0]),)


def _scale_and_minimum(parts: Parts) -> Parts:
    return _half(parts[0][:, 0]), _half(parts[0][:, 1])


def _as_it_is(x: Any) -> tuple[Array, ...]:
    return (x,)


_ONE, _TWO = (0, 2, (2,)), (0, 4, (2, 2))
_Q6_K = (0, 128, (2, 2, 2, 16)), (128, 192, (2, 2, 16)), (192, 208, (2, 4, 2)), (208, 210, (2,))
PLANES: dict[Type, Planes] = {
    Type.F16: Planes((_ONE,), _scale, lambda _, values: values, _as_it_is),
    Type.Q8_0: Planes((_ONE, (2, 34, (32,))), _scale, _q8_0, _as_it_is),
    Type.Q6_K: Planes(_Q6_K, _q6_k_scales, _q6_k, _quarters(4)),
    Type.Q4_K: Planes((_TWO, (4, 16, (3, 4)), (16, 144, (4, 32))), _q4_k_scales, _q4_k, _quarters(2)),
    Type.Q5_1: Planes((_TWO, (4, 8, (4,)), (8, 24, (2, 8))), _scale_and_minimum, _q5_1, _halves),
    Type.Q5_0: Planes((_ONE, (2, 6, (4,)), (6, 22, (2, 8))), _scale, _q5_0, _halves),
    Type.Q4_1: Planes((_TWO, (4, 20, (16,))), _scale_and_minimum, _q4_1, _halves),
    Type.Q4_0: Planes((_ONE, (2, 18, (16,))), _scale, _q4_0, _halves),
    Type.IQ4_NL: Planes((_ONE, (2, 18, (16,))), _scale, _iq4_nl, _halves),
}
"""Types by how they are multiplied; every other one is unpacked as rows are, a group of tiles at a time."""


@lru_cache
def planes_of(type: Type) -> Planes:
    """Of any type that is unpacked."""
    if type in PLANES:
        return PLANES[type]
    size = gguf.GGML_QUANT_SIZES[type][1]

    def unpacked(parts: Parts) -> Parts:
        return (jnp.moveaxis(dequantize_jax(jnp.moveaxis(parts[0], -1, 0), type), 0, -1),)

    return Planes(((0, size, (size,)),), unpacked, lambda _, values: values, _as_it_is)

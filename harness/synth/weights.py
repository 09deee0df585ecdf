"""The values of every weight of a made model; names and shapes are those of `model_file.tensors`.

The gains were chosen by measurement, so that a random model behaves enough like a trained one to test with:
activations stay of order one over 32,768 tokens, greedy output does not fall into short loops, the PLE rows decide
what comes next, and the leading logit stands clear of float32 noise. A gain is the standard deviation of a matrix's
output for inputs of root mean square 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from harness.synth.bits import BitStream, Bytes, Float32, around_one, uniform, weight_scale
from harness.synth.table import Mask, masked
from model_file.config import ModelConfig
from model_file.tensors import Group, Tensor, sizes

F32 = GGMLQuantizationType.F32
_PIECE_VALUES, _PACKED_BYTES = 1 << 20, 8 << 20

Fill = Callable[[BitStream, GGMLQuantizationType, tuple[int, ...]], Iterator[Bytes]]


@dataclass(frozen=True)
class Weight:
    """One tensor. Shapes: NumPy order, slowest first."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    fill: Fill


def _count(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64))


def _matrix(gain: str, fan_in: int | None = None) -> Fill:
    """Random weights with standard deviation gain / sqrt(fan_in); the fan-in is the last axis unless given."""

    def fill(stream: BitStream, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Iterator[Bytes]:
        inputs = fan_in or shape[-1]
        if kind in _PACKED:
            return _packed(stream, kind, shape, float(gain) / math.sqrt(inputs))
        scale = weight_scale(Fraction(gain), inputs)
        return _q8_0(stream, shape, scale) if kind == GGMLQuantizationType.Q8_0 else _float32(stream, shape, scale)

    return fill


def _float32(stream: BitStream, shape: tuple[int, ...], scale: np.float32) -> Iterator[Bytes]:
    left = _count(shape)
    while left:
        count = min(left, _PIECE_VALUES)
        yield uniform(stream.take(2 * count), scale).view(np.uint8)
        left -= count


def _q8_0(stream: BitStream, shape: tuple[int, ...], scale: np.float32) -> Iterator[Bytes]:
    """Blocks of one float16 scale, the same for the whole tensor, and 32 random int8.

    The int8 are uniform in -128..127 and the odd integers of `uniform` 512 times as wide, so the scale is 512 times as
    large.
    """
    half = np.array(scale * np.float32(512.0), dtype="<f2").reshape(1).view(np.uint8)
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType.Q8_0]
    left = _count(shape) // block
    while left:
        count = min(left, _PIECE_VALUES // block)
        blocks = np.empty((count, block_bytes), dtype=np.uint8)
        blocks[:, :2] = half
        blocks[:, 2:] = stream.take(block * count).reshape(count, block)
        yield blocks.reshape(-1)
        left -= count


@dataclass(frozen=True)
class _Packed:
    """A packed type of random bits: where its float16 scale lies, and the minimum that makes its values' mean zero.

    unit: the standard deviation of its values where the scale is 1. minimum: its place, and how many scales it is.
    """

    unit: float
    scale: int
    minimum: tuple[int, float] | None = None


_PACKED = {  # with 6-bit scales and minima, q of 0..15; q of 0..31; int8 scales, q of -32..31
    GGMLQuantizationType.Q4_K: _Packed(258.3, 0, (2, 7.5)),
    GGMLQuantizationType.Q5_1: _Packed(9.233, 0, (2, -15.5)),
    GGMLQuantizationType.Q6_K: _Packed(1365.7, 208),
}


def _packed(stream: BitStream, kind: GGMLQuantizationType, shape: tuple[int, ...], deviation: float) -> Iterator[Bytes]:
    """Random blocks whose scales differ in their last 6 bits, so that no block can stand for another."""
    packing = _PACKED[kind]
    scale, mean = _half(deviation / packing.unit, 6)
    masks = [Mask(packing.scale, 2, 0x3F, scale)]
    if packing.minimum is not None:
        place, factor = packing.minimum
        sign = 0x8000 if factor < 0 else 0
        masks.append(Mask(place, 2, 0x07, sign | _half(abs(factor) * mean, 3)[0]))
    block, block_bytes = GGML_QUANT_SIZES[kind]
    left = _count(shape) // block
    while left:
        count = min(left, _PACKED_BYTES // block_bytes // 4 * 4)  # whole words, nothing is left over to be copied
        yield masked(stream.take(count * block_bytes), block_bytes, masks)
        left -= count


def _half(value: float, free_bits: int) -> tuple[int, float]:
    """A positive normal float16 whose last bits are free, as a word with zeros there, and its mean over them."""
    fraction, exponent = math.frexp(value)
    assert -13 <= exponent <= 15, value
    mantissa = int((fraction * 2 - 1) * 1024) >> free_bits << free_bits
    return (exponent + 14) << 10 | mantissa, math.ldexp(1024 + mantissa + (2**free_bits - 1) / 2, exponent - 11)


def _whole(values: Callable[[BitStream, int], Float32]) -> Fill:
    def fill(stream: BitStream, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Iterator[Bytes]:
        assert kind == F32
        yield values(stream, _count(shape)).astype("<f4", copy=False).view(np.uint8)

    return fill


def _norm(scale: str) -> Fill:
    """Norm gains, as stored (1 + w): 0.75..1.25 times a power of two."""
    return _whole(lambda stream, count: around_one(stream.take(count), np.float32(float(scale))))


def _decay(stream: BitStream, count: int) -> Float32:
    """`ssm_a`: minus 1..2 times 2^-1 for the first value head, down to 2^-11 for the last.

    With softplus around 0.7 the heads forget after about 2 to 2,000 tokens, whatever the number of heads.
    """
    mantissa = (stream.take(count) >> 1).astype(np.float32) * np.float32(2.0**-7) + np.float32(1.0)
    halvings = [1 + 10 * head // max(count - 1, 1) for head in range(count)]
    return -mantissa * np.array([2.0**-exponent for exponent in halvings], dtype=np.float32)


def _time_bias(stream: BitStream, count: int) -> Float32:
    """`ssm_dt`: multiples of 1/128 in -1..1."""
    return (stream.take(count).astype(np.float32) - np.float32(128.0)) * np.float32(2.0**-7)


def _output_rows(special: frozenset[int], gain: str) -> Fill:
    """The output matrix, with the rows of reserved and unused tokens at 1/16: greedy text never shows them or ends."""
    matrix = _matrix(gain)

    def fill(stream: BitStream, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Iterator[Bytes]:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes, start = shape[1] // block * block_bytes, 0
        for piece in matrix(stream, kind, shape):
            for row in special:
                first, last = (min(max(edge * row_bytes - start, 0), piece.size) for edge in (row, row + 1))
                _quieten(piece[first:last], kind, block_bytes)
            yield piece
            start += piece.size

    return fill


def _quieten(blocks: Bytes, kind: GGMLQuantizationType, block_bytes: int) -> None:
    """A sixteenth of these values."""
    if kind == F32:
        blocks.view("<f4")[:] *= np.float32(2.0**-4)
        return
    factors = slice(192, 208) if kind == GGMLQuantizationType.Q6_K else slice(2, None)  # int8 scales; Q8_0's quants
    integers = blocks.reshape(-1, block_bytes)[:, factors].view(np.int8)
    integers >>= 4


_GAINS = {  # of matrices; 2 where nothing is said
    "output.weight": "8",
    "down.weight": "4",
    "ssm_conv1d.weight": "1",
    "ssm_alpha.weight": "1",
    "ssm_out.weight": "1",
    "ple_key.weight": "1",
    "ple_conv1d.weight": "1",
    "ffn_gate_inp.weight": "4",
}
_NORMS = {"attn_q_norm.weight": "2", "ple_norm_key.weight": "2", "ssm_norm.weight": "1"}  # 1 where nothing is said
_OTHERS = {
    "token_embd.weight": _matrix("1", fan_in=1),
    "ssm_dt.bias": _whole(_time_bias),
    "ssm_a": _whole(_decay),
}


def model_weights(
    groups: Iterable[tuple[str, Group]],
    config: ModelConfig,
    quiet: frozenset[int],
    large: GGMLQuantizationType,
    tied: bool = False,
    others: Mapping[str, GGMLQuantizationType] = MappingProxyType({}),
) -> list[Weight]:
    """The tensors of these groups, in file order. large: the format of quantizable matrices; others: of tensors by
    name; tied: without an output matrix."""
    return [
        Weight(
            prefix + tensor.name,
            sizes(tensor.stored[0], config),
            others.get(tensor.name, large if tensor.quantized else F32),
            _fill_of(tensor, quiet),
        )
        for prefix, group in groups
        for tensor in group
        if not (tied and tensor.optional)
    ]


def _fill_of(tensor: Tensor, quiet: frozenset[int]) -> Fill:
    name = tensor.name
    if name == "output.weight":
        return _output_rows(quiet, _GAINS[name])
    if tensor.gain or name in _NORMS:
        return _norm(_NORMS.get(name, "1"))
    return _OTHERS.get(name) or _matrix(_GAINS.get(name, "2"))

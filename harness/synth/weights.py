"""Every weight of a made model: its name, shape, number format and the rule for its values.

The gains were chosen by measurement, so that a random model behaves enough like a trained one to test with:
activations stay of order one over 32,768 tokens, greedy output does not fall into short loops, the PLE rows decide
what comes next, and the leading logit stands clear of float32 noise. A gain is the standard deviation of a matrix's
output for inputs of root mean square 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from harness.synth.bits import BitStream, Bytes, Float32, around_one, uniform, weight_scale
from harness.synth.presets import Dimensions

F32 = GGMLQuantizationType.F32
_PIECE_VALUES = 1 << 20

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
        scale = weight_scale(Fraction(gain), fan_in or shape[-1])
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


def _whole(values: Callable[[BitStream, int], Float32]) -> Fill:
    def fill(stream: BitStream, kind: GGMLQuantizationType, shape: tuple[int, ...]) -> Iterator[Bytes]:
        assert kind == F32
        yield values(stream, _count(shape)).astype("<f4", copy=False).view(np.uint8)

    return fill


def _norm(scale: str = "1") -> Fill:
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
        pieces = list(matrix(stream, kind, shape))
        rows = np.concatenate(pieces).reshape(shape[0], -1)
        quiet = sorted(special)
        if kind == F32:
            rows.view("<f4")[quiet] *= np.float32(2.0**-4)
        else:  # Q8_0: shift the quants
            blocks = rows.reshape(shape[0], -1, GGML_QUANT_SIZES[kind][1])
            quants = blocks[:, :, 2:].view(np.int8)
            quants[quiet] >>= 4
        yield rows.reshape(-1)

    return fill


def model_weights(sizes: Dimensions, vocab: int, quiet: frozenset[int], big: GGMLQuantizationType) -> list[Weight]:
    """All tensors of a complete model but the table, which comes last. `big`: the format of large matrices."""
    wide = sizes.streams * sizes.width
    weights = [
        Weight("token_embd.weight", (vocab, sizes.width), big, _matrix("1", fan_in=1)),
        Weight("output.weight", (vocab, sizes.width), big, _output_rows(quiet, "8")),
        *_hyper_connection("output_hc", sizes, wide, inject=False),
    ]
    for block in range(sizes.blocks):
        prefix = f"blk.{block}."
        weights += _hyper_connection(f"{prefix}hc_attn", sizes, wide, inject=True)
        weights += _hyper_connection(f"{prefix}hc_ffn", sizes, wide, inject=True)
        weights += _attention(prefix, sizes, big) if sizes.is_attention(block) else _delta_net(prefix, sizes, big)
        if block == sizes.ple_layer:
            weights += _ple(prefix, sizes, wide, big)
        weights += _experts(prefix, sizes, big)
    return weights


def _hyper_connection(prefix: str, sizes: Dimensions, wide: int, *, inject: bool) -> list[Weight]:
    weights = [
        Weight(f"{prefix}_norm.weight", (wide,), F32, _norm()),
        Weight(f"{prefix}_down.weight", (sizes.low_rank, wide), F32, _matrix("4")),
        Weight(f"{prefix}_up.weight", (wide, sizes.low_rank), F32, _matrix("2")),
    ]
    if inject:
        weights.append(Weight(f"{prefix}_inject.weight", (sizes.streams, wide), F32, _matrix("2")))
    return weights


def _delta_net(prefix: str, sizes: Dimensions, big: GGMLQuantizationType) -> list[Weight]:
    inner = sizes.value_heads * sizes.state_width
    channels = 2 * sizes.key_heads * sizes.state_width + inner
    heads = sizes.value_heads
    return [
        Weight(f"{prefix}attn_qkv.weight", (channels, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}attn_gate.weight", (inner, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}ssm_conv1d.weight", (channels, sizes.conv_kernel), F32, _matrix("1")),
        Weight(f"{prefix}ssm_dt.bias", (heads,), F32, _whole(_time_bias)),
        Weight(f"{prefix}ssm_a", (heads,), F32, _whole(_decay)),
        Weight(f"{prefix}ssm_beta.weight", (heads, sizes.width), F32, _matrix("2")),
        Weight(f"{prefix}ssm_alpha.weight", (heads, sizes.width), F32, _matrix("1")),
        Weight(f"{prefix}ssm_norm.weight", (sizes.state_width,), F32, _norm()),
        Weight(f"{prefix}ssm_out.weight", (sizes.width, inner), big, _matrix("1")),
    ]


def _attention(prefix: str, sizes: Dimensions, big: GGMLQuantizationType) -> list[Weight]:
    queries, keys = sizes.query_heads * sizes.head_width, sizes.kv_heads * sizes.head_width
    index_width, index_queries = sizes.indexer_width, sizes.indexer_heads * sizes.indexer_width
    return [
        Weight(f"{prefix}attn_q.weight", (2 * queries, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}attn_k.weight", (keys, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}attn_v.weight", (keys, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}attn_output.weight", (sizes.width, queries), big, _matrix("2")),
        Weight(f"{prefix}attn_q_norm.weight", (sizes.head_width,), F32, _norm("2")),
        Weight(f"{prefix}attn_k_norm.weight", (sizes.head_width,), F32, _norm()),
        Weight(f"{prefix}indexer.q_proj.weight", (index_queries, sizes.width), F32, _matrix("2")),
        Weight(f"{prefix}indexer.k_proj.weight", (index_width, sizes.width), F32, _matrix("2")),
        Weight(f"{prefix}indexer.q_norm.weight", (index_width,), F32, _norm()),
        Weight(f"{prefix}indexer.k_norm.weight", (index_width,), F32, _norm()),
    ]


def _ple(prefix: str, sizes: Dimensions, wide: int, big: GGMLQuantizationType) -> list[Weight]:
    return [
        Weight(f"{prefix}ple_key.weight", (wide, sizes.width), big, _matrix("1")),
        Weight(f"{prefix}ple_value.weight", (sizes.width, sizes.width), big, _matrix("2")),
        Weight(f"{prefix}ple_norm_key.weight", (wide,), F32, _norm("2")),
        Weight(f"{prefix}ple_norm_query.weight", (wide,), F32, _norm()),
        Weight(f"{prefix}ple_norm_conv.weight", (wide,), F32, _norm()),
        Weight(f"{prefix}ple_conv1d.weight", (wide, sizes.ple_conv_kernel), F32, _matrix("1")),
    ]


def _experts(prefix: str, sizes: Dimensions, big: GGMLQuantizationType) -> list[Weight]:
    many, width, inner = sizes.experts, sizes.width, sizes.expert_width
    return [
        Weight(f"{prefix}ffn_gate_inp.weight", (many, width), F32, _matrix("4")),
        Weight(f"{prefix}ffn_gate_exps.weight", (many, inner, width), big, _matrix("2")),
        Weight(f"{prefix}ffn_up_exps.weight", (many, inner, width), big, _matrix("2")),
        Weight(f"{prefix}ffn_down_exps.weight", (many, width, inner), big, _matrix("2")),
        Weight(f"{prefix}ffn_gate_inp_shexp.weight", (width,), F32, _matrix("2")),
        Weight(f"{prefix}ffn_gate_shexp.weight", (inner, width), big, _matrix("2")),
        Weight(f"{prefix}ffn_up_shexp.weight", (inner, width), big, _matrix("2")),
        Weight(f"{prefix}ffn_down_shexp.weight", (width, inner), big, _matrix("2")),
    ]

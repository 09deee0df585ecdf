"""Packed blocks of every table type the maker offers: raw random bits, with the scales forced to sane values.

A random float16 or float32 pattern is NaN, infinite or absurdly large once in a while. Each rule below keeps the
mantissa random and narrows the exponent to one or two values, so that rows have a root mean square near 1 whatever the
type, and every byte still differs from row to row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from harness.synth.bits import Bytes
from model_file.errors import InputError


@dataclass(frozen=True)
class Mask:
    """One scale of a block, a word of `width_bytes` from `offset_bytes` on: `word = (word & keep) | force`."""

    offset_bytes: int
    width_bytes: int
    keep: int
    force: int


# float16: sign 0x8000, exponent 0x7c00 (bias 15), mantissa 0x03ff. Sign and mantissa stay random, `force` sets the
# exponent and an exponent bit left in `keep` makes it one of two values.
_Type = GGMLQuantizationType
TABLE_MASKS: dict[GGMLQuantizationType, tuple[Mask, ...]] = {
    _Type.F32: (Mask(0, 4, 0x807FFFFF | 0x01000000, 0x3E800000),),  # 0.25..0.5 or 1..2
    _Type.F16: (Mask(0, 2, 0x83FF | 0x0800, 0x3400),),  # 0.25..0.5 or 1..2
    _Type.BF16: (Mask(0, 2, 0x807F | 0x0100, 0x3E80),),  # 0.25..0.5 or 1..2
    _Type.Q4_0: (Mask(0, 2, 0x03FF, 0x3000),),  # d in 2^-3..2^-2; quants -8..7
    _Type.Q5_0: (Mask(0, 2, 0x03FF, 0x2C00),),  # d in 2^-4..2^-3; quants -16..15
    _Type.Q5_1: (Mask(0, 2, 0x03FF, 0x2C00), Mask(2, 2, 0x03FF, 0xBC00)),  # d as above; m in -2..-1; quants 0..31
    _Type.Q8_0: (Mask(0, 2, 0x03FF, 0x2000),),  # d in 2^-7..2^-6; quants -128..127
    _Type.IQ4_NL: (Mask(0, 2, 0x03FF, 0x2000),),  # d in 2^-7..2^-6; codebook -127..113
    _Type.Q6_K: (Mask(208, 2, 0x03FF, 0x1000),),  # d in 2^-11..2^-10; scales -128..127, quants -32..31
    _Type.Q4_K: (Mask(0, 2, 0x03FF, 0x1800), Mask(2, 2, 0x03FF, 0x2400)),  # d in 2^-9..2^-8, times 0..945; m 8 times it
    _Type.IQ1_S: (Mask(0, 2, 0x03FF, 0x2C00),),  # d in 2^-4..2^-3; times 1..15, ternary
}


def table_type(name: str) -> GGMLQuantizationType:
    """The type of that name, in any case. Raises: InputError when the maker does not offer it."""
    for known in TABLE_MASKS:
        if known.name == name.upper():
            return known
    offered = ", ".join(known.name for known in TABLE_MASKS)
    raise InputError(f"--type {name}: not a table type this command makes; choose one of {offered}")


def row_bytes(kind: GGMLQuantizationType, width: int) -> int:
    """Bytes of one packed row. Raises: InputError when the width is no multiple of the type's block."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if width <= 0 or width % block:
        advice = f"choose another --type, or for `table` a --width that is a multiple of {block}"
        raise InputError(f"--type {kind.name}: rows of {width} values do not fill blocks of {block}; {advice}")
    return width // block * block_bytes


def table_blocks(raw: Bytes, kind: GGMLQuantizationType) -> Bytes:
    """Turn random bytes into packed blocks, in place: only the scale fields change. `raw` holds whole blocks."""
    return masked(raw, GGML_QUANT_SIZES[kind][1], TABLE_MASKS[kind])


def masked(raw: Bytes, block_bytes: int, masks: Iterable[Mask]) -> Bytes:
    """Force the fields of whole blocks, in place."""
    for mask in masks:
        fields = raw.reshape(-1, block_bytes)[:, mask.offset_bytes : mask.offset_bytes + mask.width_bytes]
        words = fields.view(f"<u{mask.width_bytes}")
        words &= words.dtype.type(mask.keep)
        words |= words.dtype.type(mask.force)
    return raw

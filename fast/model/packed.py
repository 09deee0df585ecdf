"""Matrices in the blocks of their file, unpacked inside the compiled program, tile by tile as they are multiplied.

A packed matrix stands wherever a float32 one does: what multiplies by it need not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from gguf import GGMLQuantizationType

from fast.model.packed_product import product
from fast.rows.dequantize import dequantize_jax
from reference.shapes import Array, Float, Int, UInt8


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedMatrix:
    """`x @ matrix` is x times the transpose of the unpacked rows, as for a float32 matrix `[in, out]`.

    parts: as `fast.model.packed_product` has them. scale: what a `.scale` of the file multiplies products by.
    """

    parts: tuple[UInt8[Array, "count blocks ... rows"], ...]
    scale: Float[Array, ""] | None
    out: int = field(metadata={"static": True})
    type: int = field(metadata={"static": True})

    def __rmatmul__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        """Bit-equal weights; only the order of sums is the product's own."""
        flat = product(x.reshape(-1, x.shape[-1]), self.parts, self.out, GGMLQuantizationType(self.type))
        out = flat.reshape(*x.shape[:-1], self.out)
        return out if self.scale is None else out * self.scale


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PackedRows:
    """A packed matrix of which single rows are wanted: embeddings of tokens."""

    data: UInt8[Array, "rows row_bytes"]
    type: int = field(metadata={"static": True})

    def __getitem__(self, rows: Int[Array, "..."]) -> Float[Array, "... in"]:
        """Some rows, unpacked."""
        return dequantize_jax(self.data[rows], GGMLQuantizationType(self.type))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Beside:
    """Matrices of one input, packed or not, their outputs one after the other."""

    parts: tuple[Any, ...]

    def __rmatmul__(self, x: Float[Array, "... in"]) -> Float[Array, "... out"]:
        """The products side by side."""
        return jnp.concatenate([x @ part for part in self.parts], axis=-1)


Packed = PackedMatrix | Beside
"""What stands where a float32 matrix may stand: `x @ matrix` is the same."""

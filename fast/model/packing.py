"""Weights handed to a program as few arrays: the large ones as they are, all small ones in one.

Starting a program costs the host about 2 us per array when its caches are cold, and after every decode step they are.
Gains, biases and convolution taps are a third of all arrays and a thousandth of all bytes; compiled programs read them
out of one array at no cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import jax
import jax.numpy as jnp

from reference.shapes import Array, Float

SMALL_FLOATS = 1 << 14


@dataclass(frozen=True, eq=False)
class Layout:
    """Where every leaf of a tree went. Compared by identity; `_layout` gives the same object for the same tree."""

    structure: Any
    shapes: tuple[tuple[int, ...], ...]
    small: tuple[bool, ...]


@lru_cache(maxsize=64)
def _layout(structure: Any, shapes: tuple[tuple[int, ...], ...], small: tuple[bool, ...]) -> Layout:
    return Layout(structure, shapes, small)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Packed:
    """A tree of arrays as few arrays. `small` holds the small leaves one after the other, in the tree's order."""

    large: tuple[Array, ...]
    small: Float[Array, "floats"]
    layout: Layout = field(metadata={"static": True})

    def unpack(self) -> Any:
        """The tree again; to be called inside a compiled program."""
        large, place, leaves = iter(self.large), 0, []
        for shape, small in zip(self.layout.shapes, self.layout.small, strict=True):
            size = prod(shape)
            if not small:
                leaves.append(next(large))
                continue
            leaves.append(self.small[place : place + size].reshape(shape))
            place += size
        return jax.tree_util.tree_unflatten(self.layout.structure, leaves)


def pack(tree: Any) -> Packed:
    """A tree of arrays as few arrays: small ones of float32 in one, the others shared with it."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    small = tuple(leaf.size <= SMALL_FLOATS and leaf.dtype == jnp.float32 for leaf in leaves)
    joined = [leaf.reshape(-1) for leaf, is_small in zip(leaves, small, strict=True) if is_small]
    return Packed(
        large=tuple(leaf for leaf, is_small in zip(leaves, small, strict=True) if not is_small),
        small=jnp.concatenate(joined) if joined else jnp.zeros(0, jnp.float32),
        layout=_layout(structure, tuple(leaf.shape for leaf in leaves), small),
    )

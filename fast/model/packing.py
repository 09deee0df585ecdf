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


@lru_cache(maxsize=64)
def _layout(structure: Any, shapes: tuple[tuple[int, ...], ...]) -> Layout:
    return Layout(structure, shapes)


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
        for shape in self.layout.shapes:
            size = prod(shape)
            if size > SMALL_FLOATS:
                leaves.append(next(large))
                continue
            leaves.append(self.small[place : place + size].reshape(shape))
            place += size
        return jax.tree_util.tree_unflatten(self.layout.structure, leaves)


def pack(tree: Any) -> Packed:
    """A tree of float32 arrays as few arrays, the large ones shared with it."""
    leaves, structure = jax.tree_util.tree_flatten(tree)
    small = [leaf.reshape(-1) for leaf in leaves if leaf.size <= SMALL_FLOATS]
    return Packed(
        large=tuple(leaf for leaf in leaves if leaf.size > SMALL_FLOATS),
        small=jnp.concatenate(small) if small else jnp.zeros(0, jnp.float32),
        layout=_layout(structure, tuple(leaf.shape for leaf in leaves)),
    )

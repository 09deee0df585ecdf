"""What a sequence carries between calls, all of it on the device, in buffers that every call takes over and gives back.

Two kinds: `Recurrent` is small and overwritten by every token, so going back needs a copy of it; `KeyValues` only grows
with the position, so going back needs nothing but a smaller position.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fast.model.plan import Plan
from reference.shapes import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DeltaState:
    """The delta net's last K-1 convolution inputs, and its memory."""

    past: Float[Array, "q c"]
    memory: Float[Array, "b w w"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IndexState:
    """The last ratio-1 raw indexer keys: with the next ones they make the next block's key. Empty in a dense layer."""

    raw: Float[Array, "z1 j"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recurrent:
    """All that tokens overwrite. mixers: one per layer."""

    position: Int[Array, ""]
    ple_past: Float[Array, "q sd"]
    mixers: tuple[DeltaState | IndexState, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValues:
    """An attention layer's caches; from the current position on they hold leftovers of padding, never read.

    Heads come first, so that a block of a head's keys is one run of memory. blocks: one key per complete block, keys
    as columns, so that a query is multiplied with a run of them without turning anything.
    """

    keys: Float[Array, "g p k"]
    values: Float[Array, "g p k"]
    blocks: Float[Array, "j y"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SequenceState:
    """One sequence. caches: one per attention layer, in layer order."""

    recurrent: Recurrent
    caches: tuple[KeyValues, ...]

    def without_mixers(self, count: int) -> SequenceState:
        """The same with the states of the first `count` layers left out."""
        recurrent = self.recurrent
        kept = Recurrent(recurrent.position, recurrent.ple_past, recurrent.mixers[count:])
        return SequenceState(kept, self.caches)


def fresh_state(plan: Plan, caches: bool = True) -> SequenceState:
    """The state before a sequence's first token: zeros; without `caches` only its `recurrent` part."""
    config, ple = plan.config, plan.config.ple
    mixers: list[DeltaState | IndexState] = []
    key_values: list[KeyValues] = []
    for layer, linear in enumerate(config.linear_layers):
        if linear:
            memory = (config.delta_value_heads, config.delta_width, config.delta_width)
            past = (config.delta_conv_kernel - 1, config.delta_channels)
            mixers.append(DeltaState(jnp.zeros(past, jnp.float32), jnp.zeros(memory, jnp.float32)))
            continue
        ratio = config.compress_ratios[layer]
        mixers.append(IndexState(jnp.zeros((max(ratio - 1, 0), config.indexer_width), jnp.float32)))
        shape = (config.kv_heads, plan.room, config.head_width)
        blocks = (config.indexer_width, plan.key_blocks(ratio))
        if not caches:
            continue
        key_values.append(
            KeyValues(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(blocks, jnp.float32))
        )
    recurrent = Recurrent(
        position=jnp.zeros((), jnp.int32),
        ple_past=jnp.zeros(((ple.conv_kernel - 1) * ple.hash.order, config.streams * config.width), jnp.float32),
        mixers=tuple(mixers),
    )
    return SequenceState(recurrent, tuple(key_values))


def early_state(mixers: tuple[DeltaState, ...]) -> SequenceState:
    """Only the delta nets of the first layers: all that the layers before the PLE layer read and write in decode."""
    return SequenceState(Recurrent(jnp.zeros((), jnp.int32), jnp.zeros((0, 0), jnp.float32), mixers), ())


def size_bytes(tree: object) -> int:
    """Bytes of all arrays of a state or a part of one."""
    return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(tree))

"""What a sequence carries between calls: the states of all layers, in device buffers that every call takes over.

Two kinds: `Recurrent` is small and overwritten by every token, so going back needs a copy of it; the caches only grow
with the position, so going back needs nothing but a smaller position.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from fast.model.attention import IndexState, KeyValues
from fast.model.delta_net import DeltaState
from fast.model.plan import Plan
from fast.model.ple import PleState
from reference.shapes import Array, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recurrent:
    """All that tokens overwrite. mixers: one per layer."""

    position: Int[Array, ""]
    ple: PleState
    mixers: tuple[DeltaState | IndexState, ...]

    @classmethod
    def fresh(cls, plan: Plan) -> Recurrent:
        """The state before a sequence's first token: zeros."""
        config = plan.config
        mixers = tuple(
            DeltaState.fresh(config) if linear else IndexState.fresh(ratio, plan)
            for ratio, linear in zip(config.compress_ratios, config.linear_layers, strict=True)
        )
        return cls(jnp.zeros((), jnp.int32), PleState.fresh(config), mixers)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SequenceState:
    """One sequence. caches: one per attention layer, in layer order."""

    recurrent: Recurrent
    caches: tuple[KeyValues, ...]

    @classmethod
    def fresh(cls, plan: Plan) -> SequenceState:
        """The state before a sequence's first token."""
        return cls(Recurrent.fresh(plan), tuple(KeyValues.fresh(ratio, plan) for ratio in plan.attention_ratios))

    def without_mixers(self, count: int) -> SequenceState:
        """The same with the states of the first `count` layers left out."""
        recurrent = self.recurrent
        kept = Recurrent(recurrent.position, recurrent.ple, recurrent.mixers[count:])
        return SequenceState(kept, self.caches)


def early_state(mixers: tuple[DeltaState, ...]) -> SequenceState:
    """Only the delta nets of the first layers: all that the layers before the PLE layer read and write in decode."""
    none = PleState(jnp.zeros((0, 0), jnp.float32))
    return SequenceState(Recurrent(jnp.zeros((), jnp.int32), none, mixers), ())


def size_bytes(tree: object) -> int:
    """Bytes of all arrays of a state or a part of one."""
    return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(tree))

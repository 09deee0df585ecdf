"""What a sequence carries between calls: the states of all layers, in device buffers that every call takes over.

Two kinds: `Recurrent` is small and overwritten by every token, so going back needs a copy of it; the caches only grow
with the position, so going back needs nothing but a smaller position.

A step that does not know yet how many of its tokens count leaves them open: every past with all inputs of the step
behind it, every memory after each token. `settled` takes what one count of tokens leaves, when it is known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from fast.model.attention import IndexState, KeyValues
from fast.model.delta_net import DeltaState
from fast.model.plan import Plan
from fast.model.ple import PleState
from reference.shapes import Array, Float, Int


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recurrent:
    """All that tokens overwrite. mixers: one per layer, the draft head's last; None where a program does without it.

    residual: the last token's streams, which the draft head joins with the next token; None without a head.
    """

    position: Int[Array, ""]
    ple: PleState
    mixers: tuple[DeltaState | IndexState | None, ...]
    residual: Float[Array, "q s d"] | None = None

    @classmethod
    def fresh(cls, plan: Plan) -> Recurrent:
        """The state before a sequence's first token: zeros."""
        config = plan.config
        mixers = tuple(
            DeltaState.fresh(config) if linear else IndexState.fresh(ratio, plan) for ratio, linear in plan.layers
        )
        residual = jnp.zeros((1, config.streams, config.width), jnp.float32) if plan.draft else None
        return cls(jnp.zeros((), jnp.int32), PleState.fresh(config), mixers, residual)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LayerState:
    """What one layer of one sequence carries, beside the position. cache: of an attention layer."""

    mixer: DeltaState | IndexState | None
    cache: KeyValues | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SequenceState:
    """One sequence. caches: one per attention layer, in layer order; None as in `Recurrent`."""

    recurrent: Recurrent
    caches: tuple[KeyValues | None, ...]

    @classmethod
    def fresh(cls, plan: Plan) -> SequenceState:
        """The state before a sequence's first token."""
        return cls(Recurrent.fresh(plan), tuple(KeyValues.fresh(ratio, plan) for ratio in plan.attention_ratios))

    def of_layer(self, number: int, plan: Plan) -> LayerState:
        """What one layer reads and writes of it."""
        cache = None if plan.layers[number][1] else self.caches[plan.cache_place(number)]
        return LayerState(self.recurrent.mixers[number], cache)

    def with_layer(self, number: int, plan: Plan, state: LayerState) -> SequenceState:
        """The same with what a layer left; the position stays."""
        mixers, caches = self.recurrent.mixers, self.caches
        mixers = (*mixers[:number], state.mixer, *mixers[number + 1 :])
        if state.cache is not None:
            place = plan.cache_place(number)
            caches = (*caches[:place], state.cache, *caches[place + 1 :])
        return SequenceState(replace(self.recurrent, mixers=mixers), caches)

    def without_mixers(self, count: int) -> SequenceState:
        """The same with the states of the first `count` layers left out."""
        return replace(self, recurrent=replace(self.recurrent, mixers=self.recurrent.mixers[count:]))

    def of_head(self) -> SequenceState:
        """Only what the draft head reads and writes, in its place."""
        mixers, caches = self.recurrent.mixers, self.caches
        alone = replace(self.recurrent, mixers=(*[None] * (len(mixers) - 1), mixers[-1]))
        return SequenceState(alone, (*[None] * (len(caches) - 1), caches[-1]))


def early_state(mixers: tuple[DeltaState, ...]) -> SequenceState:
    """Only the delta nets of the first layers: all that the layers before the PLE layer read and write in decode."""
    none = PleState(jnp.zeros((0, 0), jnp.float32))
    return SequenceState(Recurrent(jnp.zeros((), jnp.int32), none, mixers), ())


def settled(opened: SequenceState, count: Int[Array, ""], length: int) -> SequenceState:
    """The state after the first `count` tokens, at least one, of a step of `length` that left it open.

    The caches stay as they are: what the other tokens wrote stands behind the position, where nothing is read before
    it is written again.
    """

    def last(whole: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(whole, count, max(whole.shape[0] - length, 0))

    def mixer(state: DeltaState | IndexState | None) -> DeltaState | IndexState:
        if isinstance(state, DeltaState):
            memory = jax.lax.dynamic_index_in_dim(state.memory, count - 1, keepdims=False)
            return DeltaState(last(state.past), memory)
        assert state is not None
        return IndexState(last(state.raw))

    recurrent = opened.recurrent
    after = Recurrent(
        position=recurrent.position + count,
        ple=PleState(last(recurrent.ple.past)),
        mixers=tuple(mixer(state) for state in recurrent.mixers),
        residual=None if recurrent.residual is None else last(recurrent.residual),
    )
    return SequenceState(after, opened.caches)


def size_bytes(tree: object) -> int:
    """Bytes of all arrays of a state or a part of one."""
    return sum(leaf.nbytes for leaf in jax.tree_util.tree_leaves(tree))

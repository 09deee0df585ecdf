"""The compiled programs: one function each under `jax.jit`, the states handed over and given back in place."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import gguf
import jax
import jax.numpy as jnp

from fast.model.attention import KeyValues
from fast.model.delta_net import DeltaState
from fast.model.packing import Packed, pack
from fast.model.plan import Plan
from fast.model.state import SequenceState, early_state, settled
from fast.model.trunk import States, add_ple, embed, finish, forward, head, run_draft_head, run_layers, run_trunk
from fast.model.weights import Weights
from fast.rows.dequantize import dequantize_jax
from reference.shapes import Array, Float, Int

Tree = TypeVar("Tree")

# XLA on the CPU writes 256-bit vectors by default, even where 512-bit ones cost nothing: decode gains 3 %.
# Other devices have no use for the option and ignore it.
# What XLA_FLAGS may say about exactness does not hold here.
OPTIONS = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_enable_fast_math": False, "xla_cpu_enable_fast_min_max": False}


class Outcome(NamedTuple):
    """What a step leaves: the greedy next token of every sequence, its margin over the second, and the last logits.

    A margin is NaN where a logit, or a stream of a token before, is not finite.

    Shapes: tokens int32 [sequences], margins float32 [sequences], logits [sequences, v]; all of it on the device.
    """

    tokens: Array
    margins: Array
    logits: Array


class Checked(NamedTuple):
    """What a step over a token and guesses at those after it leaves: the outcome of its last token that counts.

    Shapes: tokens int32 [t] and margins float32 [t] are the trunk's own choice after each token, accepted int32 [] how
    many guesses it agreed with before the first that it did not.
    """

    outcome: Outcome
    tokens: Array
    margins: Array
    accepted: Array


def outcome_of(logits: Float[Array, "sequences v"]) -> Outcome:
    """The best token, the lowest id among equals, and how far ahead of the second it is."""
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    first = jnp.max(logits, axis=-1)
    # XLA's argmax goes through a vocabulary of 248320 in 1.06 ms on the CPU, a maximum and a minimum in 0.11.
    best = jnp.min(jnp.where(logits == first[:, None], ids, ids[-1]), axis=-1)
    # Minus infinity, which no maximum shows, counts as infinity here: seen in the same pass, at no cost.
    others = jnp.where(ids == best[:, None], -jnp.inf, jnp.where(logits == -jnp.inf, jnp.inf, logits))
    margin = first - jnp.max(others, axis=-1)
    return Outcome(best, jnp.where(jnp.isfinite(margin), margin, jnp.nan), logits)


def marked(outcome: Outcome, streams: Float[Array, "all s d"], counts: Int[Array, "sequences"]) -> Outcome:
    """The outcome, its margins NaN where streams of a sequence's tokens are not finite; padding may be what it is."""
    by_token = streams.reshape(counts.shape[0], -1, streams.shape[1] * streams.shape[2])
    real = jnp.arange(by_token.shape[1]) < counts[:, None]
    finite = jnp.all(jnp.isfinite(by_token) | ~real[:, :, None], axis=(1, 2))
    return outcome._replace(margins=jnp.where(finite, outcome.margins, jnp.nan))


def dequantize(packed: Array, kind: int) -> Array:
    return dequantize_jax(packed, gguf.GGMLQuantizationType(kind))


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("states",), compiler_options=OPTIONS)
def advance(
    packed_weights: Packed, tokens: Array, packed: Array, states: States, counts: Array, plan: Plan
) -> tuple[Outcome, Array, States]:
    """One step of every sequence, a chunk of prefill or a token of decode; with the final streams, for `all_logits`."""
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        logits, streams, states = forward(weights, tokens, packed, states, counts, plan, dequantize)
        outcome = outcome_of(logits)
        return outcome if tokens.shape[1] == 1 else marked(outcome, streams, counts), streams, states


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def all_logits(packed_weights: Packed, streams: Array, plan: Plan) -> Float[Array, "all v"]:
    """Logits of every token of a step. Apart from the step, so that it is compiled once, not with and without them."""
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        return head(weights.head, weights.hc_out, streams, plan)


def draft_weights(weights: Weights) -> Packed:
    """What `draft` takes."""
    return pack((weights.embedding, weights.draft, weights.head))


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("cache",), compiler_options=OPTIONS)
def draft(
    packed_weights: Packed, token: Array, head_state: SequenceState, cache: KeyValues, plan: Plan
) -> tuple[Array, KeyValues]:
    """Guesses at the `plan.draft` tokens after one that may still be computed, and the head's caches.

    It takes these over: what it writes stands behind the position. head_state: `SequenceState.of_head` without them.
    """
    embedding, draft_head, matrix = packed_weights.unpack()
    one = jnp.ones(1, jnp.int32)

    def step(carried: tuple[Array, SequenceState], _: None) -> tuple[tuple[Array, SequenceState], Array]:
        token, state = carried
        before, position = state.recurrent.residual, state.recurrent.position
        assert before is not None
        streams, (state,) = run_draft_head(embedding, draft_head, token[None], before, (state,), one, plan)
        token = outcome_of(head(matrix, draft_head.hc_out, streams, plan)).tokens
        recurrent = replace(state.recurrent, residual=streams, position=position + 1)
        return (token, replace(state, recurrent=recurrent)), token[0]

    with jax.default_matmul_precision(plan.precision):
        state = replace(head_state, caches=(*head_state.caches[:-1], cache))
        (_, state), guesses = jax.lax.scan(step, (token, state), None, length=plan.draft)
        kept = state.caches[-1]
        assert kept is not None
        return guesses, kept


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("state",), compiler_options=OPTIONS)
def check(
    packed_weights: Packed, tokens: Array, packed: Array, most: Array, state: SequenceState, plan: Plan
) -> tuple[Checked, SequenceState]:
    """A token and guesses at those after it in one step: the guesses that the trunk makes its own leave their state.

    Shapes: tokens int32 [1, t]; of the guesses the first `most` are there, the rest is padding.
    """
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        streams, (opened,) = run_trunk(weights, tokens, packed, (state,), None, plan, dequantize)
        every = outcome_of(head(weights.head, weights.hc_out, streams, plan))
        right = (tokens[0, 1:] == every.tokens[:-1]) & (jnp.arange(tokens.shape[1] - 1) < most)
        accepted = jnp.sum(jnp.cumprod(right.astype(jnp.int32)))
        last = Outcome(*(jax.lax.dynamic_slice_in_dim(x, accepted, 1) for x in every))
        return Checked(last, every.tokens, every.margins, accepted), settled(opened, accepted + 1, tokens.shape[1])


def early_weights(weights: Weights, plan: Plan) -> Packed:
    """What `decode_before_ple` takes."""
    return pack((weights.embedding, weights.layers[: plan.config.ple.layer]))


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def decode_before_ple(
    packed_weights: Packed, token: Array, mixers: tuple[DeltaState, ...], one: Array, plan: Plan
) -> tuple[Array, tuple[Any, ...]]:
    """The part of a decode step that needs no rows: the streams, and the states of the layers before the PLE layer.

    packed_weights: the embedding and those layers (`early_weights`).
    It takes nothing over: a step that was begun and is not wanted is dropped, and the sequence stands where it stood.
    """
    embedding, layers = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        streams = embed(embedding, token, plan)
        states: States = (early_state(mixers),)
        streams, states = run_layers(layers, range(len(layers)), streams, states, one, plan)
        return streams, states[0].recurrent.mixers


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("state", "mixers"), compiler_options=OPTIONS)
def decode_from_ple(
    packed_weights: Packed,
    streams: Array,
    packed: Array,
    state: SequenceState,
    mixers: tuple[DeltaState, ...],
    one: Array,
    plan: Plan,
) -> tuple[Outcome, SequenceState]:
    """The rest of it; `mixers` are those of `decode_before_ple`, and take the place of the first ones of the state."""
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        rows = dequantize(packed, plan.table_type).reshape(streams.shape[0], -1)
        recurrent = replace(state.recurrent, mixers=(*mixers, *state.recurrent.mixers))
        states: States = (replace(state, recurrent=recurrent),)
        streams, states = add_ple(weights, streams, rows, states, one, plan)
        layers = range(plan.config.ple.layer, plan.config.layers)
        streams, states = run_layers(weights.layers, layers, streams, states, one, plan)
        logits, states = finish(weights, streams, states, one, plan)
        return outcome_of(logits), states[0]


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("states",), compiler_options=OPTIONS)
def advance_recorded(
    packed_weights: Packed, tokens: Array, packed: Array, states: States, counts: Array, plan: Plan
) -> tuple[Outcome, Array, States, dict[str, Array]]:
    """As `advance`, with every named intermediate."""
    weights: Weights = packed_weights.unpack()
    named: dict[str, Array] = {}
    with jax.default_matmul_precision(plan.precision):
        logits, streams, states = forward(weights, tokens, packed, states, counts, plan, dequantize, named.__setitem__)
        return marked(outcome_of(logits), streams, counts), streams, states, named


@jax.jit
def copied(tree: Tree) -> Tree:
    """The same values in buffers of their own, which no later step takes over."""
    return jax.tree_util.tree_map(jnp.copy, tree)

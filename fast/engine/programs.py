"""The compiled programs: one function each under `jax.jit`, the states handed over and given back in place."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple, TypeVar

import gguf
import jax
import jax.numpy as jnp

from fast.model.delta_net import DeltaState
from fast.model.packing import Packed, pack
from fast.model.plan import Plan
from fast.model.state import Recurrent, SequenceState, early_state
from fast.model.trunk import States, add_ple, embed, finish, forward, head, run_layers
from fast.model.weights import Weights
from fast.rows.dequantize import dequantize_jax
from reference.shapes import Array, Float, Int

Tree = TypeVar("Tree")

# XLA on the CPU writes 256-bit vectors by default, even where 512-bit ones cost nothing: decode gains 3 %.
# Other devices have no use for the option and ignore it.
# What XLA_FLAGS may say about exactness does not hold here.
_OPTIONS = {"xla_cpu_prefer_vector_width": 512, "xla_cpu_enable_fast_math": False, "xla_cpu_enable_fast_min_max": False}


class Outcome(NamedTuple):
    """What a step leaves: the greedy next token of every sequence, its margin over the second, and the last logits.

    A margin is NaN where a logit, or a stream of a token before, is not finite.

    Shapes: tokens int32 [sequences], margins float32 [sequences], logits [sequences, v]; all of it on the device.
    """

    tokens: Array
    margins: Array
    logits: Array


def _outcome(logits: Float[Array, "sequences v"]) -> Outcome:
    """The best token, the lowest id among equals, and how far ahead of the second it is."""
    ids = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    first = jnp.max(logits, axis=-1)
    # XLA's argmax goes through a vocabulary of 248320 in 1.06 ms on the CPU, a maximum and a minimum in 0.11.
    best = jnp.min(jnp.where(logits == first[:, None], ids, ids[-1]), axis=-1)
    # Minus infinity, which no maximum shows, counts as infinity here: seen in the same pass, at no cost.
    others = jnp.where(ids == best[:, None], -jnp.inf, jnp.where(logits == -jnp.inf, jnp.inf, logits))
    margin = first - jnp.max(others, axis=-1)
    return Outcome(best, jnp.where(jnp.isfinite(margin), margin, jnp.nan), logits)


def _marked(outcome: Outcome, streams: Float[Array, "all s d"], counts: Int[Array, "sequences"]) -> Outcome:
    """The outcome, its margins NaN where streams of a sequence's tokens are not finite; padding may be what it is."""
    by_token = streams.reshape(counts.shape[0], -1, streams.shape[1] * streams.shape[2])
    real = jnp.arange(by_token.shape[1]) < counts[:, None]
    finite = jnp.all(jnp.isfinite(by_token) | ~real[:, :, None], axis=(1, 2))
    return outcome._replace(margins=jnp.where(finite, outcome.margins, jnp.nan))


def _dequantize(packed: Array, kind: int) -> Array:
    return dequantize_jax(packed, gguf.GGMLQuantizationType(kind))


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("states",), compiler_options=_OPTIONS)
def advance(
    packed_weights: Packed, tokens: Array, packed: Array, states: States, counts: Array, plan: Plan
) -> tuple[Outcome, Array, States]:
    """One step of every sequence, a chunk of prefill or a token of decode; with the final streams, for `all_logits`."""
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        logits, streams, states = forward(weights, tokens, packed, states, counts, plan, _dequantize)
        outcome = _outcome(logits)
        return outcome if tokens.shape[1] == 1 else _marked(outcome, streams, counts), streams, states


@partial(jax.jit, static_argnames=("plan",), compiler_options=_OPTIONS)
def all_logits(packed_weights: Packed, streams: Array, plan: Plan) -> Float[Array, "all v"]:
    """Logits of every token of a step. Apart from the step, so that it is compiled once, not with and without them."""
    weights: Weights = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        return head(weights, streams, plan)


def early_weights(weights: Weights, plan: Plan) -> Packed:
    """What `decode_before_ple` takes."""
    return pack((weights.embedding, weights.layers[: plan.config.ple.layer]))


@partial(jax.jit, static_argnames=("plan",), compiler_options=_OPTIONS)
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


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("state", "mixers"), compiler_options=_OPTIONS)
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
        rows = _dequantize(packed, plan.table_type).reshape(streams.shape[0], -1)
        recurrent = state.recurrent
        rest = (*mixers, *recurrent.mixers)
        states: States = (SequenceState(Recurrent(recurrent.position, recurrent.ple, rest), state.caches),)
        streams, states = add_ple(weights, streams, rows, states, one, plan)
        layers = range(plan.config.ple.layer, plan.config.layers)
        streams, states = run_layers(weights.layers, layers, streams, states, one, plan)
        logits, states = finish(weights, streams, states, one, plan)
        return _outcome(logits), states[0]


@partial(jax.jit, static_argnames=("plan",), donate_argnames=("states",), compiler_options=_OPTIONS)
def advance_recorded(
    packed_weights: Packed, tokens: Array, packed: Array, states: States, counts: Array, plan: Plan
) -> tuple[Outcome, Array, States, dict[str, Array]]:
    """As `advance`, with every named intermediate."""
    weights: Weights = packed_weights.unpack()
    named: dict[str, Array] = {}
    with jax.default_matmul_precision(plan.precision):
        logits, streams, states = forward(weights, tokens, packed, states, counts, plan, _dequantize, named.__setitem__)
        return _marked(_outcome(logits), streams, counts), streams, states, named


@jax.jit
def copied(tree: Tree) -> Tree:
    """The same values in buffers of their own, which no later step takes over."""
    return jax.tree_util.tree_map(jnp.copy, tree)

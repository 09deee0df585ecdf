"""Mixture of experts: every token's few experts and no others.

Prefill sorts the (token, expert) pairs by expert and cuts each expert's run into tiles of equal length, so that all of
them are one batched product; decode multiplies by the few chosen experts' matrices where they stand.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fast.model.plan import Plan
from fast.model.weights import Experts
from reference.shapes import Array, Float, Int

COPIED_FLOATS = 1 << 24  # of expert matrices at a time in prefill: 64 MiB
DIRECT_TOKENS = 4  # up to so many tokens each expert's matrices are used where they stand


class Routed(NamedTuple):
    """Which experts a token goes to, with which shares of their sum, and what the shared expert adds to it."""

    chosen: Int[Array, "t u"]
    shares: Float[Array, "t u"]
    shared: Float[Array, "t d"]


def route(weights: Experts, x: Float[Array, "t d"], plan: Plan) -> Routed:
    """All of a block of experts but the routed ones."""
    config = plan.config
    read = x @ weights.read
    chances = jax.nn.softmax(read[:, : config.experts], axis=-1)
    best, chosen = jax.lax.top_k(chances, config.experts_used)
    shares = best / jnp.sum(best, axis=-1, keepdims=True) * (config.expert_weights_scale or 1.0)
    opening = jax.nn.sigmoid(read[:, config.experts : config.experts + 1])
    return Routed(chosen, shares, opening * (gated(read[:, config.experts + 1 :]) @ weights.shared_down))


def experts(weights: Experts, x: Float[Array, "t d"], plan: Plan) -> Float[Array, "t d"]:
    """The weighted sum of each token's chosen experts, plus the gated shared expert."""
    chosen, shares, shared = route(weights, x, plan)
    if x.shape[0] <= DIRECT_TOKENS:
        routed = jnp.stack([_direct(weights, x[i], chosen[i], shares[i]) for i in range(x.shape[0])])
    else:
        routed = _grouped(weights, x, chosen, shares, plan)
    return routed + shared


def gated(both: Float[Array, "... ff"]) -> Float[Array, "... f"]:
    """What an expert's gate rows let through of its up rows."""
    gate, up = jnp.split(both, 2, axis=-1)
    return jax.nn.silu(gate) * up


def _stacked(weights: Experts) -> tuple[Array, Array]:
    assert weights.gate_up is not None and weights.down is not None, "experts that the host brings"
    return weights.gate_up, weights.down


def _direct(
    weights: Experts, x: Float[Array, "d"], chosen: Int[Array, "u"], shares: Float[Array, "u"]
) -> Float[Array, "d"]:
    """One token: matrix-vector products, one chosen expert after the other.

    A loop and not four independent products: XLA copies a dynamically chosen matrix on the CPU before it multiplies,
    and in a loop, and stored output-major, the product reads the matrix where it stands. 4 experts of 123k weights,
    read from memory, take 57 us so, 75 with `down` input-major, 90 with both, 340 unrolled (2 cores).
    """

    stacked_gate_up, stacked_down = _stacked(weights)

    def add_expert(place: Array, total: Array) -> Array:
        gate_up, down = (
            jax.lax.dynamic_index_in_dim(stack, chosen[place], 0, keepdims=False)
            for stack in (stacked_gate_up, stacked_down)
        )
        return total + (gated(x[None] @ gate_up.T) * shares[place]) @ down.T

    return jax.lax.fori_loop(0, chosen.shape[0], add_expert, jnp.zeros_like(x[None]))[0]


def _grouped(
    weights: Experts, x: Float[Array, "t d"], chosen: Int[Array, "t u"], shares: Float[Array, "t u"], plan: Plan
) -> Float[Array, "t d"]:
    """Many tokens: tiles of tokens of one expert each.

    There are at most (pairs / tile + experts) tiles, whatever the router does; those that stay empty compute nothing
    that is read. Every tile multiplies by a copy of its expert's matrices; so that the copies stay few where experts
    are large or many, tiles go through in groups.
    """
    count, used = chosen.shape
    gate_up, down = _stacked(weights)
    number = gate_up.shape[0]
    pairs = count * used
    tile, tiles, group = tiling(pairs, number, gate_up[0].size + down[0].size, plan)
    flat = chosen.reshape(-1)
    order = jnp.argsort(flat, stable=True)  # pairs by expert
    sizes = jnp.zeros(number, jnp.int32).at[flat].add(1)
    tiles_of = (sizes + tile - 1) // tile
    first_tile = jnp.cumsum(tiles_of) - tiles_of
    first_pair = jnp.cumsum(sizes) - sizes
    sorted_expert = flat[order]
    slot = first_tile[sorted_expert] * tile + jnp.arange(pairs) - first_pair[sorted_expert]
    expert_of = jnp.clip(jnp.searchsorted(jnp.cumsum(tiles_of), jnp.arange(tiles), side="right"), 0, number - 1)
    token_of = jnp.zeros(tiles * tile, jnp.int32).at[slot].set((order // used).astype(jnp.int32))
    tiled = x[token_of].reshape(tiles, tile, -1)

    def multiply(now: tuple[Array, Array]) -> Array:
        rows, expert = now
        hidden = gated(jnp.einsum("ntd,nfd->ntf", rows, gate_up[expert]))
        return jnp.einsum("ntf,ndf->ntd", hidden, down[expert])

    if group == tiles:
        out = multiply((tiled, expert_of))
    else:
        in_groups = (tiled.reshape(-1, group, *tiled.shape[1:]), expert_of.reshape(-1, group))
        out = jax.lax.map(multiply, in_groups)
    out = out.reshape(tiles * tile, -1)
    slot_of = jnp.zeros(pairs, jnp.int32).at[order].set(slot.astype(jnp.int32)).reshape(count, used)
    return jnp.sum(out[slot_of] * shares[:, :, None], axis=1)


def tiling(pairs: int, number: int, expert_floats: int, plan: Plan) -> tuple[int, int, int]:
    """Tokens of a tile, number of tiles, and tiles of a group, for so many (token, expert) pairs.

    A tile is twice as long as an expert's run is on average, 8 to `plan.expert_tile`; groups divide the tiles evenly.
    """
    tile = min(plan.expert_tile, max(8, 1 << (pairs // number).bit_length()))
    tiles = min(pairs, pairs // tile + number)
    group = max(1, COPIED_FLOATS // expert_floats)
    if group >= tiles:
        return tile, tiles, tiles
    return tile, -(-tiles // group) * group, group

"""QSA: grouped-query attention that reads only the blocks of keys an indexer picks, plus the unfinished tail block."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from reference.layers import rms_norm, rotate
from reference.parameters import Attention, Indexer
from reference.shapes import Array, Bool, Float, Int, Record


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionState:
    """Keys and values of every position so far, and the indexer's raw (unnormalised, unrotated) keys.

    The arrays have room for `p` positions, those from the current one on are zeros and masked.
    """

    keys: Float[Array, "p g k"]
    values: Float[Array, "p g k"]
    index_keys: Float[Array, "p j"]


def fresh_attention_state(config: ModelConfig, room: int) -> AttentionState:
    """An empty cache with room for `room` positions."""
    shape = (room, config.kv_heads, config.head_width)
    return AttentionState(
        keys=jnp.zeros(shape, jnp.float32),
        values=jnp.zeros(shape, jnp.float32),
        index_keys=jnp.zeros((room, config.indexer_width), jnp.float32),
    )


def attention(
    weights: Attention,
    x: Float[Array, "t d"],
    start: Int[Array, ""],
    state: AttentionState,
    ratio: int,
    config: ModelConfig,
    record: Record,
) -> tuple[Float[Array, "t d"], AttentionState]:
    """The mixer's output for a chunk whose first token stands at position `start`, and the state after it.

    ratio: tokens of an indexer block; 0 attends to everything.
    """
    count, heads, groups, width = x.shape[0], config.heads, config.kv_heads, config.head_width
    positions = start + jnp.arange(count)
    query, gate = jnp.split((x @ weights.attn_q.T).reshape(count, heads, 2 * width), 2, axis=-1)
    query = rotate(rms_norm(query, config.rms_eps) * weights.attn_q_norm, positions, config)
    key = rms_norm((x @ weights.attn_k.T).reshape(count, groups, width), config.rms_eps) * weights.attn_k_norm
    state = _extend(state, weights, x, rotate(key, positions, config), start)
    visible = jnp.arange(state.keys.shape[0]) <= positions[:, None]
    if ratio:
        assert weights.indexer is not None
        visible &= select_tokens(weights.indexer, x, positions, state.index_keys, ratio, config, record)
    scale = config.attention_scale or width**-0.5
    grouped = query.reshape(count, groups, heads // groups, width)
    scores = jnp.einsum("tgqk,pgk->tgqp", grouped, state.keys) * scale
    shares = jax.nn.softmax(jnp.where(visible[:, None, None, :], scores, -jnp.inf), axis=-1)
    read = jnp.einsum("tgqp,pgk->tgqk", shares, state.values).reshape(count, heads, width)
    record("attention_read", read)
    return (read * jax.nn.sigmoid(gate)).reshape(count, -1) @ weights.attn_output.T, state


def select_tokens(
    weights: Indexer,
    x: Float[Array, "t d"],
    positions: Int[Array, "t"],
    index_keys: Float[Array, "p j"],
    ratio: int,
    config: ModelConfig,
    record: Record,
) -> Bool[Array, "t p"]:
    """Which positions each query may read: those of its best complete blocks, and its unfinished tail block.

    A query at position p has (p+1)//ratio complete blocks. Equal scores are resolved for the lower block index, which
    is the order `jax.lax.top_k` promises.
    """
    count, room = x.shape[0], index_keys.shape[0]
    blocks = room // ratio
    scores = block_scores(weights, x, positions, index_keys[: blocks * ratio], ratio, config)
    complete = jnp.arange(blocks) < ((positions + 1) // ratio)[:, None]
    scores = jnp.where(complete, scores, -jnp.inf)
    record("block_scores", scores)
    budget = min(config.top_k // ratio, blocks)
    _, best = jax.lax.top_k(scores, budget)
    chosen = jnp.zeros((count, blocks), bool).at[jnp.arange(count)[:, None], best].set(True) & complete
    token_blocks = jnp.arange(room) // ratio
    in_chosen = jnp.where(token_blocks < blocks, chosen[:, jnp.minimum(token_blocks, blocks - 1)], False)
    return in_chosen | (token_blocks == ((positions + 1) // ratio)[:, None])


def block_scores(
    weights: Indexer,
    x: Float[Array, "t d"],
    positions: Int[Array, "t"],
    index_keys: Float[Array, "p j"],
    ratio: int,
    config: ModelConfig,
) -> Float[Array, "t y"]:
    """Every query's score of every block: the rectified products of all indexer heads, added up."""
    width = config.indexer_width
    query = (x @ weights.q_proj.T).reshape(x.shape[0], config.indexer_heads, width)
    query = rotate(rms_norm(query, config.rms_eps) * weights.q_norm, positions, config)
    mean_keys = jnp.mean(index_keys.reshape(-1, ratio, width), axis=1)
    starts = jnp.arange(mean_keys.shape[0]) * ratio
    key = rotate((rms_norm(mean_keys, config.rms_eps) * weights.k_norm)[:, None, :], starts, config)[:, 0]
    return jnp.sum(jax.nn.relu(jnp.einsum("tij,yj->tiy", query, key)), axis=1) * width**-0.5


def _extend(
    state: AttentionState, weights: Attention, x: Float[Array, "t d"], key: Float[Array, "t g k"], start: Array
) -> AttentionState:
    value = (x @ weights.attn_v.T).reshape(key.shape)
    index_keys = state.index_keys
    if weights.indexer is not None:
        index_keys = jax.lax.dynamic_update_slice(index_keys, x @ weights.indexer.k_proj.T, (start, 0))
    return AttentionState(
        keys=jax.lax.dynamic_update_slice(state.keys, key, (start, 0, 0)),
        values=jax.lax.dynamic_update_slice(state.values, value, (start, 0, 0)),
        index_keys=index_keys,
    )

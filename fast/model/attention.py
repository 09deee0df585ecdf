"""QSA: score every block of keys, read the keys and values of the best few and of the unfinished tail block, no others.

What a query costs grows with its depth only through the block scores. They are chosen from in the smallest of a few
static widths that holds the depth (`lax.switch`), and the best are found through the maxima of groups: a block
among the best `n` is in one of the `n` groups with the best maxima, ties included, because a group that is left out has
`n` groups before it, each with a block that comes before all of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd

import jax
import jax.numpy as jnp

from fast.model.plan import Plan
from fast.model.streams import normalise, rotate, rotations
from fast.model.weights import Attention
from reference.shapes import Array, Bool, Float, Int

GROUP_BLOCKS = 16
SCORE_FLOATS = 1 << 18  # products of heads, queries and blocks that are formed at a time: 1 MiB


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class IndexState:
    """The last ratio-1 raw indexer keys: with the next ones they make the next block's key. Empty in a dense layer.

    Left open, it has all keys of the step behind them.
    """

    raw: Float[Array, "... j"]

    @classmethod
    def fresh(cls, ratio: int, plan: Plan) -> IndexState:
        """The state before a sequence's first token."""
        return cls(jnp.zeros((max(ratio - 1, 0), plan.config.indexer_width), jnp.float32))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyValues:
    """The layer's caches. From the current position on they hold what padding left there, which is never read.

    Heads come first, so that a block of a head's keys is one run of memory. blocks: one key per complete block, keys
    as columns, so that a query is multiplied with a run of them without turning anything.
    """

    keys: Float[Array, "g p k"]
    values: Float[Array, "g p k"]
    blocks: Float[Array, "j y"]

    @classmethod
    def fresh(cls, ratio: int, plan: Plan) -> KeyValues:
        """Empty caches with the plan's room."""
        shape = (plan.config.kv_heads, plan.room, plan.config.head_width)
        blocks = (plan.config.indexer_width, plan.key_blocks(ratio))
        return cls(jnp.zeros(shape, jnp.float32), jnp.zeros(shape, jnp.float32), jnp.zeros(blocks, jnp.float32))


def attention(
    weights: Attention,
    projected: Float[Array, "t joined"],
    start: Int[Array, ""],
    count: Int[Array, ""] | None,
    state: IndexState,
    cache: KeyValues,
    ratio: int,
    plan: Plan,
) -> tuple[Float[Array, "t hk"], IndexState, KeyValues]:
    """The mixer's output before its last projection; the tokens stand at positions `start`, `start + 1`, ...

    Shapes: projected is the mixer's input times `weights.project`; its first `count` rows are tokens, the rest padding.
    Without a count the state is left open.
    """
    config, length = plan.config, projected.shape[0]
    heads, groups, width = config.heads, config.kv_heads, config.head_width
    positions = start + jnp.arange(length)
    turns = rotations(positions, config)
    widths = [2 * heads * width, groups * width, groups * width]
    both, key, value = (projected[:, sum(widths[:i]) : sum(widths[: i + 1])] for i in range(3))
    both = both.reshape(length, heads, 2 * width)
    query = rotate(normalise(both[..., :width], config.rms_eps) * weights.q_norm, turns)
    key = rotate(normalise(key.reshape(length, groups, width), config.rms_eps) * weights.k_norm, turns)
    cache = KeyValues(
        keys=jax.lax.dynamic_update_slice(cache.keys, key.swapaxes(0, 1), (0, start, 0)),
        values=jax.lax.dynamic_update_slice(
            cache.values, value.reshape(length, groups, width).swapaxes(0, 1), (0, start, 0)
        ),
        blocks=cache.blocks,
    )
    query = query * (config.attention_scale or width**-0.5)
    if ratio:
        index = projected[:, sum(widths) :]
        state, cache = _extend_index(weights, index, start, count, state, cache, ratio, plan)
        assert weights.indexer_q_norm is not None
        asking = index[:, : config.indexer_heads * config.indexer_width].reshape(length, config.indexer_heads, -1)
        asking = rotate(normalise(asking, config.rms_eps) * weights.indexer_q_norm, turns)
        read = _in_tiles(partial(_read_blocks, cache, ratio, plan), plan.query_tile, query, asking, positions)
    else:
        read = _in_tiles(partial(_read_all, cache), plan.query_tile, query, positions)
    return (read * jax.nn.sigmoid(both[..., width:])).reshape(length, -1), state, cache


def _in_tiles(read: Callable[..., Array], tile: int, *arrays: Array) -> Array:
    """`read` over tiles of queries one after the other: a chunk of any length needs the memory of one tile."""
    length = arrays[0].shape[0]
    if length <= tile:
        return read(*arrays)
    tile = gcd(length, tile)
    tiled = tuple(x.reshape(length // tile, tile, *x.shape[1:]) for x in arrays)
    out = jax.lax.map(lambda now: read(*now), tiled)
    return out.reshape(length, *out.shape[2:])


def _extend_index(
    weights: Attention,
    index: Float[Array, "t ij_and_j"],
    start: Int[Array, ""],
    count: Int[Array, ""] | None,
    state: IndexState,
    cache: KeyValues,
    ratio: int,
    plan: Plan,
) -> tuple[IndexState, KeyValues]:
    """The keys of all blocks that these tokens touch; of one that they do not complete it is written again later.

    The last of them may lie behind the room: a full sequence is stepped with padding alone while others of its batch go
    on. The array has spare columns for it, since a slice past the end would be moved back, over keys that count.
    """
    config, length = plan.config, index.shape[0]
    assert weights.indexer_k_norm is not None
    raw = jnp.concatenate([state.raw, index[:, config.indexer_heads * config.indexer_width :]])
    touched = (length + ratio - 2) // ratio + 1
    first = start // ratio  # its first token stands at most ratio - 1 places before the chunk, where `state.raw` begins
    padded = jnp.pad(raw, ((0, 2 * ratio), (0, 0)))  # a slice past the end would be moved back, to other tokens
    runs = jax.lax.dynamic_slice_in_dim(padded, ratio - 1 - start % ratio, touched * ratio)
    means = jnp.mean(runs.reshape(touched, ratio, -1), axis=1)
    turns = rotations((first + jnp.arange(touched)) * ratio, config)
    keys = rotate((normalise(means, config.rms_eps) * weights.indexer_k_norm)[:, None, :], turns)[:, 0]
    blocks = jax.lax.dynamic_update_slice_in_dim(cache.blocks, keys.T, first, axis=1)
    kept = raw if count is None else jax.lax.dynamic_slice_in_dim(raw, count, ratio - 1)
    return IndexState(kept), KeyValues(cache.keys, cache.values, blocks)


def _read_blocks(
    cache: KeyValues,
    ratio: int,
    plan: Plan,
    query: Float[Array, "t h k"],
    asking: Float[Array, "t i j"],
    positions: Int[Array, "t"],
) -> Float[Array, "t h k"]:
    """Attention of a tile of queries over their best blocks and their tail block."""
    config = plan.config
    groups, width = config.kv_heads, config.head_width
    count, total = query.shape[0], cache.keys.shape[1] // ratio
    complete = (positions + 1) // ratio
    budget = min(config.top_k // ratio, total)
    widths = _score_widths(total, budget)
    depth = jnp.max(complete)
    level = jnp.sum(depth > jnp.asarray(widths[:-1], jnp.int32))
    branches = [partial(_best_blocks, budget, width) for width in widths]
    best = jax.lax.switch(level, branches, asking, cache.blocks, complete)
    chosen = jnp.concatenate([best, complete[:, None]], axis=1)  # [t, n]
    within = jnp.arange(budget)[None, :] < complete[:, None]
    tail = complete[:, None] * ratio + jnp.arange(ratio) <= positions[:, None]
    visible = jnp.concatenate([jnp.repeat(within, ratio, axis=1), tail], axis=1)  # [t, n*z]
    keys, values = (_gather_blocks(x, chosen, ratio) for x in (cache.keys, cache.values))  # [g, t, n*z, k]
    grouped = query.reshape(count, groups, -1, width)
    scores = jnp.einsum("tgqk,gtpk->gtqp", grouped, keys)
    return _weighted(scores, visible[None, :, None, :], values, "gtqp,gtpk->tgqk")


def _gather_blocks(cached: Float[Array, "g p k"], chosen: Int[Array, "t n"], ratio: int) -> Float[Array, "g t nz k"]:
    groups, room, width = cached.shape
    blocks = cached.reshape(groups, room // ratio, ratio * width)
    found = jnp.take(blocks, chosen, axis=1, mode="clip")  # [g, t, n, z*k]
    return found.reshape(groups, chosen.shape[0], -1, width)


def _weighted(
    scores: Float[Array, "... p"], visible: Bool[Array, "... p"], values: Float[Array, "... k"], product: str
) -> Float[Array, "t h k"]:
    shares = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1)
    read = jnp.einsum(product, shares, values)
    return read.reshape(read.shape[0], -1, read.shape[-1])


def _score_widths(total: int, budget: int) -> list[int]:
    """Numbers of blocks to choose from, each four times the one before, up to all of them."""
    widths = []
    width = max(512, -(-budget // GROUP_BLOCKS) * GROUP_BLOCKS)
    while width < total:
        widths.append(width)
        width *= 4
    return [*widths, total]


def _best_blocks(
    budget: int, width: int, asking: Float[Array, "t i j"], blocks: Float[Array, "j y"], complete: Int[Array, "t"]
) -> Int[Array, "t n"]:
    """The `budget` best of the first `width` blocks, those of lower index first among equals."""
    scores = _block_scores(width, asking, blocks, jnp.max(complete))
    scores = jnp.where(jnp.arange(width)[None, :] < complete[:, None], scores, -jnp.inf)
    if width % GROUP_BLOCKS or width // GROUP_BLOCKS <= budget:
        return jax.lax.top_k(scores, budget)[1]
    grouped = scores.reshape(scores.shape[0], -1, GROUP_BLOCKS)
    _, leading = jax.lax.top_k(jnp.max(grouped, axis=-1), budget)
    leading = jnp.sort(leading, axis=-1)  # ascending, so that the lower index still comes first among equals
    candidates = jnp.take_along_axis(grouped, leading[:, :, None], axis=1)
    _, best = jax.lax.top_k(candidates.reshape(scores.shape[0], -1), budget)
    first = jnp.take_along_axis(leading, best // GROUP_BLOCKS, axis=1)
    return first * GROUP_BLOCKS + best % GROUP_BLOCKS


def _block_scores(
    width: int, asking: Float[Array, "t i j"], blocks: Float[Array, "j y"], needed: Int[Array, ""]
) -> Float[Array, "t width"]:
    """Scores of the first `needed` blocks; those that follow are not to be read.

    Tile by tile: the products of all heads, of which only the sum is kept, stay in the cache, and what lies behind
    `needed` is never multiplied. 128 queries on 8192 blocks take 4 ms so and 11 at once, one query 0.10 ms and 0.13.
    """
    count, heads = asking.shape[:2]
    tile = min(width, max(256, min(512, SCORE_FLOATS // (count * heads))))
    flat = asking.reshape(count * heads, -1)

    def summed(keys: Float[Array, "j tile"]) -> Float[Array, "t tile"]:
        products = jax.nn.relu(flat @ keys).reshape(count, heads, tile)
        return jnp.sum(products, axis=1) * asking.shape[2] ** -0.5

    def score(place: Array, scores: Array) -> Array:
        first = jnp.minimum(place * tile, width - tile)  # a last tile that is no whole one is moved back
        found = summed(jax.lax.dynamic_slice_in_dim(blocks, first, tile, axis=1))
        return jax.lax.dynamic_update_slice_in_dim(scores, found, first, axis=1)

    if tile == width:
        return summed(blocks[:, :width])
    return jax.lax.fori_loop(0, (needed + tile - 1) // tile, score, jnp.zeros((count, width), jnp.float32))


def _read_all(cache: KeyValues, query: Float[Array, "t h k"], positions: Int[Array, "t"]) -> Float[Array, "t h k"]:
    """Dense attention of a layer without an indexer, over the smallest static width that holds the depth."""
    groups, room, width = cache.keys.shape
    grouped = query.reshape(query.shape[0], groups, -1, width)

    def over(length: int, grouped: Array, keys: Array, values: Array, positions: Array) -> Array:
        scores = jnp.einsum("tgqk,gpk->gtqp", grouped, keys[:, :length])
        visible = jnp.arange(length) <= positions[:, None]
        return _weighted(scores, visible[None, :, None, :], values[:, :length], "gtqp,gpk->tgqk")

    widths = _score_widths(room, 0)
    level = jnp.sum(jnp.max(positions) + 1 > jnp.asarray(widths[:-1], jnp.int32))
    branches = [partial(over, length) for length in widths]
    return jax.lax.switch(level, branches, grouped, cache.keys, cache.values, positions)

"""Every branch inside a compiled program, listed by hand: coverage sees that it was traced, not which way it went.

A branch is a `where`, a mask, a `switch`, the bound of a loop, a clip, or where a slice begins. Each has a flip, a
piece of its function's text and another one, and what an input must be like for the flip to show. `test_branches.py`
plants every flip and sees it in a layer's outputs; a mutation session can plant the same in whole runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Branch:
    """One branch. layer: whose outputs show the flip (a key of `LAYERS` in the test). needs: the input that does."""

    name: str
    file: str
    function: str
    old: str
    new: str
    layer: str
    needs: str


@dataclass(frozen=True)
class Hidden:
    """A branch whose other way no output that is used can show, and why."""

    file: str
    text: str
    why: str


_ATTENTION, _DELTA, _EXPERTS = "fast/model/attention.py", "fast/model/delta_net.py", "fast/model/experts.py"
_PROGRAMS = "fast/engine/programs.py"

BRANCHES = (
    Branch(
        "tail block",
        _ATTENTION,
        "_read_blocks",
        "jnp.arange(ratio) <= positions[:, None]",
        "jnp.arange(ratio) < positions[:, None]",
        "attention",
        "any token",
    ),
    Branch(
        "fewer blocks than the budget",
        _ATTENTION,
        "_read_blocks",
        "jnp.arange(budget)[None, :] < complete[:, None]",
        "jnp.arange(budget)[None, :] <= complete[:, None]",
        "attention",
        "a position before top_k tokens",
    ),
    Branch(
        "blocks beyond the first static width",
        _ATTENTION,
        "_read_blocks",
        "depth > jnp.asarray(widths[:-1], jnp.int32)",
        "depth < 0 * jnp.asarray(widths[:-1], jnp.int32)",
        "attention",
        "a position of more than 512 blocks",
    ),
    Branch(
        "what a query may see",
        _ATTENTION,
        "_weighted",
        "jnp.where(visible, scores, -jnp.inf)",
        "scores",
        "attention",
        "any token",
    ),
    Branch(
        "complete blocks alone are chosen",
        _ATTENTION,
        "_best_blocks",
        "jnp.arange(width)[None, :] < complete[:, None], scores",
        "jnp.arange(width)[None, :] <= complete[:, None], scores",
        "attention",
        "a chunk of several blocks, behind more blocks than the budget",
    ),
    Branch(
        "groups in ascending order",
        _ATTENTION,
        "_best_blocks",
        "jnp.sort(leading, axis=-1)",
        "leading",
        "best blocks",
        "blocks of equal score in different groups: rectified scores of 0",
    ),
    Branch(
        "last scored tile",
        _ATTENTION,
        "_block_scores",
        "jax.lax.fori_loop(0, (needed + tile - 1) // tile",
        "jax.lax.fori_loop(0, needed // tile",
        "attention",
        "a position of more than 512 blocks whose tile of 256 to 512 blocks is not full",
    ),
    Branch(
        "moved last tile",
        _ATTENTION,
        "_block_scores",
        "jnp.minimum(place * tile, width - tile)",
        "place * tile",
        "attention",
        "a position in the last tile of a room whose blocks are no multiple of a tile",
    ),
    Branch(
        "rectified scores",
        _ATTENTION,
        "_block_scores",
        "jax.nn.relu(flat @ keys)",
        "(flat @ keys)",
        "attention",
        "more blocks than the budget",
    ),
    Branch(
        "first block of a chunk",
        _ATTENTION,
        "_extend_index",
        "ratio - 1 - start % ratio",
        "ratio - 1",
        "attention",
        "a chunk that starts inside a block, and more blocks than the budget behind it",
    ),
    Branch(
        "indexer's past after padding",
        _ATTENTION,
        "_extend_index",
        "jax.lax.dynamic_slice_in_dim(raw, count, ratio - 1)",
        "jax.lax.dynamic_slice_in_dim(raw, length, ratio - 1)",
        "attention",
        "a padded chunk that ends inside a block, and more blocks than the budget afterwards",
    ),
    Branch(
        "depth of dense attention",
        _ATTENTION,
        "_read_all",
        "jnp.max(positions) + 1 > jnp.asarray(widths[:-1], jnp.int32)",
        "jnp.max(positions) < 0 * jnp.asarray(widths[:-1], jnp.int32)",
        "dense attention",
        "a layer without an indexer and a position of at least 512",
    ),
    Branch(
        "edge of dense attention's width",
        _ATTENTION,
        "_read_all",
        "jnp.max(positions) + 1 > jnp",
        "jnp.max(positions) > jnp",
        "dense attention",
        "a chunk whose last position is exactly 512",
    ),
    Branch(
        "causal dense attention",
        _ATTENTION,
        "_read_all",
        "jnp.arange(length) <= positions[:, None]",
        "jnp.arange(length) < positions[:, None]",
        "dense attention",
        "a layer without an indexer",
    ),
    Branch(
        "padding does not write",
        _DELTA,
        "delta_net",
        "jnp.where(real, beta, 0)",
        "beta",
        "delta net",
        "a padded chunk, and a token after it",
    ),
    Branch(
        "padding does not forget",
        _DELTA,
        "delta_net",
        "jnp.where(real, decay, 0)",
        "decay",
        "delta net",
        "a padded chunk, and a token after it",
    ),
    Branch(
        "what fades",
        _DELTA,
        "_many_tokens",
        "jnp.exp(jnp.where(at_or_before, _between(decay), -jnp.inf))",
        "jnp.exp(_between(decay))",
        "delta net",
        "a chunk",
    ),
    Branch(
        "decay between two tokens",
        _DELTA,
        "_between",
        "jnp.where(jnp.tril(jnp.ones((size, size), bool), -1)",
        "jnp.where(jnp.tril(jnp.ones((size, size), bool), 0)",
        "delta net",
        "a chunk",
    ),
    Branch(
        "last row of the inverse",
        _DELTA,
        "_invert_rows",
        "jax.lax.fori_loop(0, size,",
        "jax.lax.fori_loop(0, size - 1,",
        "delta net",
        "a chunk",
    ),
    Branch(
        "last chosen expert",
        _EXPERTS,
        "_direct",
        "jax.lax.fori_loop(0, chosen.shape[0],",
        "jax.lax.fori_loop(0, chosen.shape[0] - 1,",
        "experts",
        "a step of at most 4 tokens",
    ),
    Branch(
        "tiles that are not full",
        _EXPERTS,
        "_grouped",
        "(sizes + tile - 1) // tile",
        "sizes // tile",
        "experts",
        "a chunk",
    ),
    Branch(
        "expert of a tile",
        _EXPERTS,
        "_grouped",
        'side="right"',
        'side="left"',
        "experts",
        "a chunk",
    ),
    Branch(
        "sign of the agreement",
        "fast/model/ple.py",
        "ple_gated",
        "jnp.sign(agreement) * root",
        "root",
        "ple",
        "any token",
    ),
    Branch(
        "flat middle of the gate",
        "fast/model/ple.py",
        "ple_gated",
        "jnp.maximum(jnp.abs(agreement), 1e-6)",
        "jnp.abs(agreement)",
        "ple",
        "an agreement between 0 and 1e-6",
    ),
    Branch(
        "convolution's past after padding",
        "fast/model/streams.py",
        "convolve",
        "jax.lax.dynamic_slice_in_dim(whole, count, past.shape[0])",
        "jax.lax.dynamic_slice_in_dim(whole, length, past.shape[0])",
        "ple",
        "a padded chunk, and a token after it",
    ),
    Branch(
        "last token of a padded chunk",
        "fast/model/trunk.py",
        "finish",
        "jnp.maximum(counts - 1, 0)",
        "jnp.maximum(counts - 2, 0)",
        "finish",
        "a chunk of several tokens",
    ),
    Branch(
        "lowest id among equals",
        _PROGRAMS,
        "outcome_of",
        "jnp.min(jnp.where(logits == first[:, None], ids, ids[-1]), axis=-1)",
        "jnp.max(jnp.where(logits == first[:, None], ids, 0), axis=-1)",
        "outcome",
        "two largest logits that are equal",
    ),
    Branch(
        "second token",
        _PROGRAMS,
        "outcome_of",
        "jnp.where(ids == best[:, None], -jnp.inf, ",
        "jnp.where(ids < 0, -jnp.inf, ",
        "outcome",
        "any logits",
    ),
    Branch(
        "minus infinity",
        _PROGRAMS,
        "outcome_of",
        "jnp.where(logits == -jnp.inf, jnp.inf, logits)",
        "logits",
        "outcome",
        "a logit that is minus infinity",
    ),
    Branch(
        "infinite margin",
        _PROGRAMS,
        "outcome_of",
        "jnp.where(jnp.isfinite(margin), margin, jnp.nan)",
        "margin",
        "outcome",
        "one logit that is infinite",
    ),
    Branch(
        "padding may be what it is",
        _PROGRAMS,
        "marked",
        "jnp.isfinite(by_token) | ~real[:, :, None]",
        "jnp.isfinite(by_token)",
        "marked",
        "a padded chunk whose padding is not finite",
    ),
)

HIDDEN = (
    Hidden(_ATTENTION, 'mode="clip"', "only the tail block of the room's last position is past the end: padding alone"),
    Hidden(
        _DELTA,
        "jnp.where(at_or_before & ~jnp.eye(piece, dtype=bool)",
        "later tokens have faded to 0 already, and a row of the inverse is still 0 when its own entry is read",
    ),
    Hidden(_EXPERTS, "0, number - 1)", "only tiles that stay empty have no expert, and nothing reads them"),
    Hidden(
        "fast/model/trunk.py",
        "jnp.maximum(counts - 1, 0)",
        "the lower bound is for a sequence that is through: nobody asks for its logits",
    ),
)

"""How much memory an engine needs: the stated formula, term by term.

    weights      every weight in float32
    caches       per sequence: layers with attention x room x (2 g k + j / ratio) x 4
    recurrent    per sequence, and once more for every checkpoint: (b w^2 + (K-1) c) x 4 per delta net, and the PLE past
    tokens       what a chunk of `t` tokens holds at once: streams, the widest projection, expert tiles
    scores       what a tile of queries holds at once: block scores (i + 1) x blocks, and its gathered keys and values
    logits       t x v where every position's are asked for, else v

with room = context + chunk. The compiler's own memory while it compiles is not in it; neither is the interpreter with
its libraries, about 350 MB.
"""

from __future__ import annotations

from fast.settings import EngineSettings, Plan

FLOAT_BYTES = 4


def memory_bytes(plan: Plan, settings: EngineSettings, weights_bytes: int, sequences: int = 1) -> dict[str, int]:
    """Bytes by purpose, and their sum as `total`, for so many sequences with logits of the last token only."""
    config = plan.config
    attention = [
        ratio for ratio, linear in zip(config.compress_ratios, config.linear_layers, strict=True) if not linear
    ]
    delta_nets = sum(config.linear_layers)
    per_position = sum(
        2 * config.kv_heads * config.head_width + (config.indexer_width / ratio if ratio else 0) for ratio in attention
    )
    memory = config.delta_value_heads * config.delta_width**2
    past = (config.delta_conv_kernel - 1) * config.delta_channels
    ple_past = (config.ple.conv_kernel - 1) * config.ple.hash.order * config.streams * config.width
    recurrent = delta_nets * (memory + past) + ple_past
    parts = {
        "weights": weights_bytes,
        "caches": int(sequences * plan.room * per_position) * FLOAT_BYTES,
        "recurrent": sequences * (1 + settings.checkpoints) * recurrent * FLOAT_BYTES,
        "tokens": sequences * settings.chunk * _per_token(plan) * FLOAT_BYTES,
        "scores": min(plan.query_tile, settings.chunk) * _per_query(plan) * FLOAT_BYTES,
        "logits": sequences * config.vocab * FLOAT_BYTES,
    }
    return {**parts, "total": sum(parts.values())}


def _per_token(plan: Plan) -> int:
    """Floats that one token of a chunk holds at the fullest moment."""
    config = plan.config
    wide = config.streams * config.width
    mixer = 2 * config.heads * config.head_width + config.indexer_heads * config.indexer_width
    delta = config.delta_channels + config.delta_inner + 8 * config.delta_value_heads * plan.delta_chunk
    routed = config.experts_used * (2 * config.width + 3 * config.expert_width)
    return 4 * wide + max(mixer, delta, routed)


def _per_query(plan: Plan) -> int:
    """Floats that one query of a tile holds: scores of all blocks, and the keys and values it reads."""
    config = plan.config
    per_layer = [
        (config.indexer_heads + 2) * (plan.room // ratio)
        + 2 * (config.top_k + ratio) * config.kv_heads * config.head_width
        if ratio
        else 2 * config.heads * plan.room
        for ratio, linear in zip(config.compress_ratios, config.linear_layers, strict=True)
        if not linear
    ]
    return max(per_layer, default=0)

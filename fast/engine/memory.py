"""How much memory an engine needs: the stated formula, term by term, in float32 numbers of 4 bytes.

    weights      every weight
    caches       per sequence and attention layer: room x (2 g k + j / ratio) + 16 j, room = context + chunk
    recurrent    per sequence, and once more for every checkpoint: b w^2 + (K-1) c per delta net, and the PLE past
    tokens       of a chunk: three copies of the streams, 3 s d, for each token
    largest      beside them the larger of what experts and attention hold at their fullest:
                 experts    tiles x (copied matrices 3 f d, in groups of at most 64 MiB; tile x (2 d + 3 f) rows)
                 attention  a tile of queries x (3 x blocks of scores, 2 min(top_k + ratio, room) g k gathered keys
                            and values)
    programs     compiled code with what JAX remembers of it: 12 MB for each layer and each compiled length (measured)

With experts that are read when they are chosen, matrices are packed, nothing is copied, and layers share programs:

    experts      what is left of the memory that was given: the experts read last
    largest      attention as above, or the streams' normalised and gated copies, 2 s d for each token
    programs     12 MB for each kind of layer and each compiled length
    process      the interpreter with its libraries and the compiler's leavings, 330 MB (measured)

The logits of a whole chunk, t x v, are the caller's where they are asked for. Not in it where all
experts are in memory: the interpreter with its libraries, 90 MB, and what the compiler takes while it compiles.
"""

from __future__ import annotations

from fast.engine.settings import EngineSettings
from fast.model.experts import tiling
from fast.model.plan import Plan

FLOAT_BYTES = 4
PROGRAM_BYTES = 12_000_000
PROCESS_BYTES = 330_000_000


def memory_bytes(
    plan: Plan, settings: EngineSettings, weights_bytes: int, sequences: int = 1, experts_bytes: int = 0
) -> dict[str, int]:
    """Bytes by purpose, and their sum as `total`, for so many sequences one chunk at a time."""
    config, lazy = plan.config, plan.lazy_experts
    delta_nets = sum(config.linear_layers)
    cache = sum(
        2 * config.kv_heads * config.head_width * plan.room + config.indexer_width * plan.key_blocks(ratio)
        for ratio in plan.attention_ratios
    )
    memory = config.delta_value_heads * config.delta_width**2
    past = (config.delta_conv_kernel - 1) * config.delta_channels
    ple_past = (config.ple.conv_kernel - 1) * config.ple.hash.order * config.streams * config.width
    recurrent = delta_nets * (memory + past) + ple_past
    chunk = settings.bucket_sizes[-1]
    parts = {
        "weights": weights_bytes,
        "caches": sequences * cache * FLOAT_BYTES,
        "recurrent": sequences * (1 + settings.checkpoints) * recurrent * FLOAT_BYTES,
        "tokens": sequences * chunk * 3 * config.streams * config.width * FLOAT_BYTES,
        "largest": max(_experts(plan, sequences * chunk), min(plan.query_tile, chunk) * _per_query(plan)) * FLOAT_BYTES,
        "programs": len(set(plan.layers) if lazy else plan.layers) * len(settings.bucket_sizes) * PROGRAM_BYTES,
    }
    parts |= {"experts": experts_bytes, "process": PROCESS_BYTES} if lazy else {}
    return {**parts, "total": sum(parts.values())}


def _experts(plan: Plan, tokens: int) -> int:
    """Floats that the routed experts of one layer hold for a chunk."""
    config = plan.config
    if plan.lazy_experts:
        return tokens * 2 * config.streams * config.width
    floats = 3 * config.expert_width * config.width
    tile, tiles, group = tiling(tokens * config.experts_used, config.experts, floats, plan)
    return group * floats + tiles * tile * (2 * config.width + 3 * config.expert_width)


def _per_query(plan: Plan) -> int:
    """Floats that one query of a tile holds: scores of all blocks, and the keys and values it reads."""
    config = plan.config
    per_layer = [
        3 * (plan.room // ratio) + 2 * min(config.top_k + ratio, plan.room) * config.kv_heads * config.head_width
        if ratio
        else 2 * config.heads * plan.room
        for ratio in plan.attention_ratios
    ]
    return max(per_layer, default=0)

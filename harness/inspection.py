"""What `plegate inspect` prints: facts from the header, and every problem that would stop a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from fast.rows import locate_table
from harness.oracle import check_type
from model_file.config import ARCHITECTURE, ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.hash_constants import CHECKPOINT_SEED, HashConstants, checkpoint_multipliers, offsets_of, prime_sizes
from model_file.inventory import is_head_alone, take_inventory
from model_file.metadata import Keys
from model_file.tensors import TABLE

_LAZY_ABOVE_BYTES = 4 * 2**30  # llama.cpp's `auto` reads tables above this lazily


def describe(model: GgufFile) -> tuple[dict[str, Any], list[str]]:
    """Facts by name, in the order to print them, and problems, one line each. Touches headers only.

    Units: names ending in `_bytes` are bytes.
    """
    facts: dict[str, Any] = {
        "architecture": model.architecture or "none named",
        "name": Keys(model.metadata).text("general.name", default=""),
        "shards": [str(path) for path in model.paths],
        "size_bytes": model.size_bytes,
        "tensors": len(model.tensors),
    }
    facts |= _table_facts(model)
    problems = _table_problems(model)
    if model.architecture != ARCHITECTURE:
        rest = "and its table cannot be checked" if problems else "only the table can be checked, with `plegate rows`"
        facts["model"] = f"not {ARCHITECTURE}: {rest}"
        return facts, problems
    try:
        config = config_from(model)
    except InputError as error:
        return facts, str(error).splitlines()
    facts |= _model_facts(config)
    if alone := is_head_alone(model, config):
        facts["model"] = "the MTP head alone: `--mtp FILE` beside the model that it belongs to"
        problems = []
    if set(model.tensors) == {TABLE}:
        if not problems:
            facts["model"] = (
                "the table alone: `plegate rows` and `plegate advise` take it, the gate needs a whole model"
            )
        return facts, problems
    try:
        if not alone:
            check_type(locate_table(model))
        inventory = take_inventory(model, config)
    except InputError as error:
        return facts, str(error).splitlines()
    trunk = [info for name, info in inventory.weights.items() if name not in inventory.head]
    facts["memory_for_weights_in_f32_bytes"] = 4 * sum(int(np.prod(info.shape)) for info in trunk)
    experts = sum(info.size_bytes for info in trunk if info.name.endswith("_exps.weight"))
    facts["memory_for_packed_weights_bytes"] = sum(info.size_bytes for info in trunk) - experts
    facts["experts_read_when_chosen_bytes"] = experts
    facts["memory_for_a_full_context_bytes"] = state_bytes(config, config.context)
    if inventory.unapplied:
        facts["accepted_not_applied"] = (
            f"{len(inventory.unapplied)} tensors, as in every engine: {inventory.unapplied[0]}, ..."
        )
    if inventory.head:
        facts["draft_head"] = f"{len(inventory.head)} tensors of the MTP block {config.layers}"
    if inventory.skipped:
        facts["skipped"] = f"{len(inventory.skipped)} tensors of MTP blocks {list(config.skipped_layers)}"
    return facts, problems


def _table_problems(model: GgufFile) -> list[str]:
    """Why `plegate rows` cannot take the table; of its type it takes any."""
    if TABLE not in model.tensors:
        return [f"{model.paths[0]}: no tensor {TABLE!r}, nothing to read lazily"]
    try:
        locate_table(model)
    except InputError as error:
        return str(error).splitlines()
    return []


def _table_facts(model: GgufFile) -> dict[str, Any]:
    table = model.tensors.get(TABLE)
    if table is None:
        return {}
    lazily = (
        "llama.cpp's `auto` reads it lazily"
        if table.size_bytes > _LAZY_ABOVE_BYTES
        else ("llama.cpp's `auto` loads it whole (not above 4 GiB)")
    )
    return {
        "table_type": table.type.name,
        "table_rows": table.shape[0],
        "row_width": table.shape[-1],
        "row_bytes": table.row_bytes,
        "table_bytes": table.size_bytes,
        "table_shard": table.path.name,
        "table_offset": table.offset_bytes,
        "auto": f"{lazily}; plegate's `auto` maps it and decides for each batch by what is resident",
    }


def _model_facts(config: ModelConfig) -> dict[str, Any]:
    attention = [layer for layer, linear in enumerate(config.linear_layers) if not linear]
    ple = config.ple
    return {
        "layers": f"{config.layers}: delta net, attention in {attention}, PLE in {ple.layer}",
        "width": f"{config.width}, {config.streams} residual streams",
        "vocabulary": config.vocab,
        "context": config.context,
        "experts": f"{config.experts}, {config.experts_used} used, and one shared",
        "rows_per_token": ple.heads,
        "row_ids_below": ple.rows_needed,
        "hash_multipliers": list(ple.hash.multipliers),
        "hash_sizes": f"{min(ple.hash.sizes)} to {max(ple.hash.sizes)}",
        "hash_rule": hash_rule(ple.hash, config.vocab),
        "ple_eos": ple.hash.eos,
    }


def hash_rule(constants: HashConstants, vocab: int) -> str:
    """Whether multipliers, sizes and offsets follow the checkpoint rule for its published seed, each in words."""
    expected = checkpoint_multipliers(CHECKPOINT_SEED, 0, constants.order, vocab)
    multipliers = "follow" if constants.multipliers == expected else "do not follow"
    primes = constants.sizes == prime_sizes(constants.sizes[0], len(constants.sizes))
    offsets = constants.offsets == offsets_of(constants.sizes)
    return (
        f"multipliers {multipliers} the rule for seed {CHECKPOINT_SEED}; "
        f"sizes are {'' if primes else 'not '}consecutive primes; offsets {'' if offsets else 'do not '}add up"
    )


def state_bytes(config: ModelConfig, positions: int) -> int:
    """Bytes of float32 state that a sequence of `positions` tokens carries in the reference, the most of any engine.

    An attention layer keeps keys, values and index keys of every position, a delta net its memories and convolution.
    The fast path keeps one index key a block, and memory beside its state: `fast.engine.memory` has all of it.
    """
    attention = sum(
        positions * (2 * config.kv_heads * config.head_width + (config.indexer_width if ratio else 0))
        for linear, ratio in zip(config.linear_layers, config.compress_ratios, strict=True)
        if not linear
    )
    memory = config.delta_value_heads * config.delta_width**2 + (config.delta_conv_kernel - 1) * config.delta_channels
    ple = (config.ple.conv_kernel - 1) * config.ple.hash.order * config.streams * config.width
    return 4 * (attention + sum(config.linear_layers) * memory + ple)

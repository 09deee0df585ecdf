"""The one table of tensor names: what a qwen4exp file must hold, in which shape, and where it goes.

Shapes are written in NumPy order (a GGUF matrix of ne = [in, out] is "out in") with the letters of `reference.shapes`.
A weight may carry a `.scale`, which multiplies its matmul's result; `.input_scale` and the biases of attention q, k, v
are stored by some converters and applied by no engine: they are accepted and left alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, TensorInfo

TABLE = "per_layer_token_embd.weight"

MODEL = {
    "token_embd.weight": "v d",
    "output.weight": "v d",
}
OPTIONAL = {"output.weight"}  # absent: token_embd serves

HYPER_CONNECTION = {  # under output_hc_, hc_attn_, hc_ffn_; the output has no inject
    "norm.weight": "sd",
    "down.weight": "r sd",
    "up.weight": "sd r",
    "inject.weight": "s sd",
}
DELTA_NET = {
    "attn_qkv.weight": "c d",
    "attn_gate.weight": "bw d",
    "ssm_conv1d.weight": "c K",
    "ssm_dt.bias": "b",
    "ssm_a": "b",
    "ssm_beta.weight": "b d",
    "ssm_alpha.weight": "b d",
    "ssm_norm.weight": "w",
    "ssm_out.weight": "d bw",
}
ATTENTION = {
    "attn_q.weight": "hk2 d",
    "attn_k.weight": "gk d",
    "attn_v.weight": "gk d",
    "attn_output.weight": "d hk",
    "attn_q_norm.weight": "k",
    "attn_k_norm.weight": "k",
}
INDEXER = {
    "indexer.q_proj.weight": "ij d",
    "indexer.k_proj.weight": "j d",
    "indexer.q_norm.weight": "j",
    "indexer.k_norm.weight": "j",
}
EXPERTS = {
    "ffn_gate_inp.weight": "x d",
    "ffn_gate_exps.weight": "x f d",
    "ffn_up_exps.weight": "x f d",
    "ffn_down_exps.weight": "x d f",
    "ffn_gate_inp_shexp.weight": "d",
    "ffn_gate_shexp.weight": "m d",
    "ffn_up_shexp.weight": "m d",
    "ffn_down_shexp.weight": "d m",
}
FUSED_GATE_UP = {"ffn_gate_up_exps.weight": "x f2 d"}  # in place of the two; gate rows first
PLE = {
    "ple_key.weight": "sd ne",
    "ple_value.weight": "d ne",
    "ple_norm_key.weight": "sd",
    "ple_norm_query.weight": "sd",
    "ple_norm_conv.weight": "sd",
    "ple_conv1d.weight": "sd P",
}
ALTERNATIVES = {"sd": "s d", "d": "1 d"}  # the same values, stored by some writers with one axis more

SCALABLE = frozenset(
    name.removesuffix(".weight")
    for group in (DELTA_NET, ATTENTION, EXPERTS, FUSED_GATE_UP)
    for name, shape in group.items()
    if " " in shape and "conv1d" not in name and name != "ffn_gate_inp.weight"
) | {"output"}
BIASED = frozenset({"attn_q", "attn_k", "attn_v"})  # biases accepted, not applied


@dataclass(frozen=True)
class Inventory:
    """What a file holds for a configuration: `scales` and the names left `unapplied` or `skipped`, sorted apart."""

    weights: Mapping[str, TensorInfo]
    scales: Mapping[str, TensorInfo]
    unapplied: tuple[str, ...]
    skipped: tuple[str, ...]


class UnappliedNotice(UserWarning):
    """A model that is loaded has tensors that no engine applies."""


_announced: set[str] = set()


def dimensions(config: ModelConfig) -> dict[str, int]:
    """The size of every term that the shapes of this file use."""
    ple = config.ple
    return {
        "v": config.vocab,
        "d": config.width,
        "s": config.streams,
        "sd": config.streams * config.width,
        "r": config.low_rank,
        "hk2": 2 * config.heads * config.head_width,
        "hk": config.heads * config.head_width,
        "gk": config.kv_heads * config.head_width,
        "k": config.head_width,
        "ij": config.indexer_heads * config.indexer_width,
        "j": config.indexer_width,
        "c": config.delta_channels,
        "b": config.delta_value_heads,
        "bw": config.delta_inner,
        "w": config.delta_width,
        "K": config.delta_conv_kernel,
        "x": config.experts,
        "f": config.expert_width,
        "f2": 2 * config.expert_width,
        "m": config.shared_width,
        "ne": ple.heads * ple.row_width,
        "P": ple.conv_kernel,
        "1": 1,
    }


def expected(config: ModelConfig, present: Mapping[str, TensorInfo]) -> Iterator[tuple[str, str]]:
    """Every tensor name of the trunk with its shape in letters; `present` decides: experts fused or separate."""
    yield from MODEL.items()
    yield from _prefixed(
        "output_hc_", {name: shape for name, shape in HYPER_CONNECTION.items() if "inject" not in name}
    )
    for layer, linear in enumerate(config.linear_layers):
        block = f"blk.{layer}."
        for part in ("hc_attn_", "hc_ffn_"):
            yield from _prefixed(block + part, HYPER_CONNECTION)
        yield from _prefixed(block, DELTA_NET if linear else ATTENTION)
        if not linear and config.compress_ratios[layer]:
            yield from _prefixed(block, INDEXER)
        if layer == config.ple.layer:
            yield from _prefixed(block, PLE)
        experts = dict(EXPERTS)
        if block + "ffn_gate_up_exps.weight" in present:
            del experts["ffn_gate_exps.weight"], experts["ffn_up_exps.weight"]
            experts |= FUSED_GATE_UP
        yield from _prefixed(block, experts)


def take_inventory(model: GgufFile, config: ModelConfig) -> Inventory:
    """Match a file's tensors with the table, each exactly once.

    Raises: InputError with one line for every tensor that is missing, unused, of the wrong shape or too short a table.
    """
    path, sizes = model.paths[0], dimensions(config)
    if set(model.tensors) == {TABLE}:
        raise InputError(
            f"{path}: found the table {TABLE!r} and no other tensor, expected a whole model: "
            "`plegate rows` and `plegate advise` check and measure a table alone"
        )
    problems: list[str] = []
    weights: dict[str, TensorInfo] = {}
    left = dict(model.tensors)
    for name, letters in expected(config, model.tensors):
        found = left.pop(name, None)
        if found is None:
            if name not in OPTIONAL:
                problems.append(f"{path}: tensor {name!r} is missing, expected shape {_sizes(letters, sizes)}")
            continue
        shapes = [_sizes(form, sizes) for form in (letters, ALTERNATIVES.get(letters, letters))]
        if found.shape not in shapes:
            problems.append(
                f"{found.path}: tensor {name!r}: found shape {found.shape}, expected {shapes[0]} ({letters})"
            )
        weights[name] = found
    problems += _check_table(left.pop(TABLE, None), config, str(path))
    scales, unapplied, skipped = _companions(left, config, sizes, problems)
    problems += [
        f"{info.path}: tensor {name!r} {info.shape} has no place in this model, expected none: "
        "a file of another variant? `plegate inspect` lists what it says of itself"
        for name, info in left.items()
    ]
    if problems:
        raise InputError("\n".join(problems))
    return Inventory(weights, scales, unapplied, skipped)


def inventory_to_load(model: GgufFile, config: ModelConfig) -> Inventory:
    """As `take_inventory`, for who goes on to run the model: says, once a file, which tensors are not applied."""
    inventory, path = take_inventory(model, config), str(model.paths[0])
    if inventory.unapplied and path not in _announced:
        _announced.add(path)
        warnings.warn(
            f"{path}: {len(inventory.unapplied)} tensors (.input_scale, or .bias of attention) are accepted and not "
            f"applied, as in llama.cpp: {', '.join(inventory.unapplied[:2])}{', ...' * (len(inventory.unapplied) > 2)}",
            UnappliedNotice,
            stacklevel=3,
        )
    return inventory


def _check_table(table: TensorInfo | None, config: ModelConfig, path: str) -> list[str]:
    ple = config.ple
    if table is None:
        return [f"{path}: tensor {TABLE!r} is missing, expected [{ple.rows_needed} rows or more, {ple.row_width}]"]
    if len(table.shape) != 2 or table.shape[1] != ple.row_width:
        return [f"{table.path}: tensor {TABLE!r}: found shape {table.shape}, expected rows of {ple.row_width}"]
    if table.shape[0] < ple.rows_needed:
        head = max(range(ple.heads), key=lambda index: ple.hash.offsets[index] + ple.hash.sizes[index])
        return [
            f"{table.path}: tensor {TABLE!r}: found {table.shape[0]} rows, expected at least {ple.rows_needed}: "
            f"head {head} reads rows {ple.hash.offsets[head]} to {ple.rows_needed - 1}"
        ]
    return []


def _companions(
    left: dict[str, TensorInfo], config: ModelConfig, sizes: Mapping[str, int], problems: list[str]
) -> tuple[dict[str, TensorInfo], tuple[str, ...], tuple[str, ...]]:
    """Take the scales, the biases that nobody applies and the MTP blocks out of `left`."""
    scales: dict[str, TensorInfo] = {}
    unapplied, skipped = [], []
    for name in list(left):
        stem, _, kind = name.rpartition(".")
        role = stem.split(".", 2)[2] if stem.startswith("blk.") and stem.count(".") >= 2 else stem
        if name.startswith(tuple(f"blk.{layer}." for layer in config.skipped_layers)):
            skipped.append(name)
            del left[name]
        elif kind == "scale" and role in SCALABLE:
            info = left.pop(name)
            size = sizes["x"] if role.endswith("_exps") else 1
            if info.shape != (size,):
                problems.append(f"{info.path}: tensor {name!r}: found shape {info.shape}, expected ({size},)")
            scales[name] = info
        elif (kind == "input_scale" and role in SCALABLE) or (kind == "bias" and role in BIASED):
            unapplied.append(name)
            del left[name]
    return scales, tuple(unapplied), tuple(skipped)


def _prefixed(prefix: str, group: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((prefix + name, shape) for name, shape in group.items())


def _sizes(letters: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sizes[term] for term in letters.split())

"""A file's tensors against the one table: each found once, in its shape, and what is left over named."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.shard import TensorInfo
from model_file.tensors import (
    MODEL,
    OUTPUT_CONNECTION,
    TABLE,
    Group,
    Tensor,
    as_stored,
    head_groups,
    sizes,
    trunk_groups,
)


@dataclass(frozen=True)
class Inventory:
    """What a file holds for a configuration: `scales` and the names left `unapplied` or `skipped`, sorted apart.

    head: those of `weights` and `scales` that are the draft head's; empty where the file has none. alone: the file
    has the head without a trunk or a table, and perhaps copies of the embedding and of what logits are read with.
    """

    weights: Mapping[str, TensorInfo]
    scales: Mapping[str, TensorInfo]
    unapplied: tuple[str, ...]
    skipped: tuple[str, ...]
    head: frozenset[str]
    alone: bool


class UnappliedNotice(UserWarning):
    """A model that is loaded has tensors that no engine applies."""


_announced: set[str] = set()


def take_inventory(model: GgufFile, config: ModelConfig) -> Inventory:
    """Match a file's tensors with the table, each exactly once.

    Raises: InputError with one line for every tensor that is missing, unused, of the wrong shape or too short a table.
    """
    path = model.paths[0]
    if set(model.tensors) == {TABLE}:
        raise InputError(
            f"{path}: found the table {TABLE!r} and no other tensor, expected a whole model: "
            "`plegate rows` and `plegate advise` check and measure a table alone"
        )
    problems: list[str] = []
    weights: dict[str, TensorInfo] = {}
    scales: dict[str, TensorInfo] = {}
    unapplied: list[str] = []
    left = dict(model.tensors)
    head_block, alone = f"blk.{config.layers}.", is_head_alone(model, config)
    head = head_groups(config).values() if any(name.startswith(head_block) for name in left) else ()
    if alone:
        ends: tuple[tuple[str, Group], ...] = (("", MODEL), ("output_hc_", OUTPUT_CONNECTION))
        trunk = [(prefix, group) for prefix, group in ends if prefix + group[0].name in left]
    else:
        problems += _check_table(left.pop(TABLE, None), config, str(path))
        trunk = [*trunk_groups(config)]
    for prefix, group in (*trunk, *head):
        for tensor in as_stored(prefix, group, model.tensors):
            name = prefix + tensor.name
            if name in left:
                weights[name] = left.pop(name)
                problems += _shape_problems(weights[name], [sizes(shape, config) for shape in tensor.stored])
                unapplied += [other for other in _not_applied(name, tensor) if left.pop(other, None)]
            elif not tensor.optional:
                problems.append(f"{path}: tensor {name!r} is missing, expected shape {sizes(tensor.stored[0], config)}")
            if tensor.scaled and name in weights and (scale := left.pop(scale_of(name), None)):
                scales[scale.name] = scale
                problems += _shape_problems(scale, [(config.experts if name.endswith("_exps.weight") else 1,)])
    skipped = [name for name in left if name.startswith(tuple(f"blk.{layer}." for layer in config.skipped_layers))]
    problems += [
        f"{info.path}: tensor {name!r} {info.shape} has no place in this model, expected none: "
        "a file of another variant? `plegate inspect` lists what it says of itself"
        for name, info in left.items()
        if name not in skipped
    ]
    if problems:
        raise InputError("\n".join(problems))
    of_head = frozenset(name for name in (*weights, *scales) if name.startswith(head_block))
    return Inventory(weights, scales, tuple(unapplied), tuple(skipped), of_head, alone)


def is_head_alone(model: GgufFile, config: ModelConfig) -> bool:
    """Whether a file holds the draft head and nothing of a trunk: one that goes beside a model (`--mtp FILE`)."""
    blocks = {name.split(".")[1] for name in model.tensors if name.startswith("blk.")}
    return blocks == {str(layer) for layer in config.skipped_layers} != set() and TABLE not in model.tensors


def scale_of(name: str) -> str:
    """What the factor of a weight's product is called."""
    return name.removesuffix(".weight") + ".scale"


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


def _shape_problems(found: TensorInfo, shapes: Sequence[tuple[int, ...]]) -> list[str]:
    if found.shape in shapes:
        return []
    return [f"{found.path}: tensor {found.name!r}: found shape {found.shape}, expected {shapes[0]}"]


def _not_applied(name: str, tensor: Tensor) -> list[str]:
    stem = name.removesuffix(".weight")
    return [f"{stem}.input_scale"] * tensor.scaled + [f"{stem}.bias"] * tensor.biased

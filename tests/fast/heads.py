"""Draft heads made for models that have none, each as a file of its own; and what decoding with them is tried with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from harness.synth.bits import BitStream
from harness.synth.weights import model_weights
from model_file.config import config_from
from model_file.gguf_file import open_gguf
from model_file.tensors import head_groups
from tests import gguf_edit


def head_for(model: Path, folder: Path) -> Path:
    """A random head beside a model, with the block size of its last attention layer."""
    with open_gguf(model) as file:
        config = config_from(file)
    ratio = config.compress_ratios[-1]
    config = replace(config, skipped_layers=(config.layers,), head_ratio=ratio)

    def change(keys: gguf_edit.Keys, tensors: gguf_edit.Tensors) -> None:
        u32, i32, array = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.INT32, gguf.GGUFValueType.ARRAY
        keys["qwen4exp.block_count"] = (config.layers + 1, u32, None)
        keys["qwen4exp.nextn_predict_layers"] = (1, u32, None)
        keys["qwen4exp.attention.compress_ratios"] = ([*config.compress_ratios, ratio], array, i32)
        for name in [name for name in tensors if name not in ("token_embd.weight", "output.weight")]:
            del tensors[name]
        f32 = gguf.GGMLQuantizationType.F32
        for weight in model_weights(head_groups(config).values(), config, frozenset(), f32):
            pieces = weight.fill(BitStream("head", 0, weight.name), weight.kind, weight.shape)
            tensors[weight.name] = (np.concatenate(list(pieces)).view("<f4").reshape(weight.shape), f32)

    return gguf_edit.edited(model, folder / f"{model.stem}-head.gguf", change)


def pairwise(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows of one value of each axis, such that every two values of two axes stand in one row at least."""
    names = list(axes)
    left = {
        ((a, x), (b, y)) for a, b in combinations(names, 2) for x in range(len(axes[a])) for y in range(len(axes[b]))
    }
    rows = []
    while left:
        row = dict(min(left))
        for name in (name for name in names if name not in row):
            row[name] = max(range(len(axes[name])), key=lambda value: len(left & _pairs({**row, name: value}, names)))
        left -= _pairs(row, names)
        rows.append({name: axes[name][row[name]] for name in names})
    return rows


def _pairs(row: Mapping[str, int], names: Sequence[str]) -> set[Any]:
    return set(combinations([(name, row[name]) for name in names if name in row], 2))

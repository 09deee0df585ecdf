"""The one table of tensors: the reference's pytrees are made of it, and a file is checked against it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import get_args, get_type_hints

import gguf
import numpy as np
import pytest

from model_file import tensors
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import open_gguf
from model_file.inventory import take_inventory
from model_file.weights import WeightSource
from reference import parameters
from tests import gguf_edit

F32 = gguf.GGMLQuantizationType.F32
GROUPS = {
    parameters.HyperConnection: tensors.HYPER_CONNECTION,
    parameters.DeltaNet: tensors.DELTA_NET,
    parameters.Attention: tensors.ATTENTION,
    parameters.Indexer: tensors.INDEXER,
    parameters.Experts: tensors.EXPERTS,
    parameters.Ple: tensors.PLE,
}


@pytest.mark.parametrize("tree", GROUPS)
def test_pytrees_are_the_table(tree: type) -> None:
    """Field by field, in order, with the shape that the annotation states."""
    hints = {name: get_args(hint) or (hint,) for name, hint in get_type_hints(tree).items()}
    stated = [(name, hint[0].dim_str) for name, hint in hints.items() if hasattr(hint[0], "dim_str")]
    assert stated == [(tensor.field, tensor.shape) for tensor in GROUPS[tree]]


def test_every_tensor_of_a_file_is_in_the_table_once(tiny_quant: Path) -> None:
    with open_gguf(tiny_quant) as model:
        config = config_from(model)
        names = [prefix + each.name for prefix, group in tensors.trunk_groups(config) for each in group]
        assert len(names) == len(set(names))
        assert {*model.tensors} - {tensors.TABLE} == set(names)


def test_sizes_are_products_of_letters(tiny: Path) -> None:
    with open_gguf(tiny) as model:
        config = config_from(model)
    assert tensors.sizes("hk2 d", config) == (2 * config.heads * config.head_width, config.width)
    assert tensors.sizes("1 f2", config) == (1, 2 * config.expert_width)


def stray_scale(own: gguf_edit.Tensors) -> None:
    own["blk.0.attn_q.scale"] = (np.ones(1, np.float32), F32)  # layer 0 is a delta net


def stray_bias(own: gguf_edit.Tensors) -> None:
    own["blk.0.ssm_out.bias"] = (np.ones(1, np.float32), F32)


def short_scale(own: gguf_edit.Tensors) -> None:
    own["blk.0.ffn_up_exps.scale"] = (np.ones(1, np.float32), F32)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (stray_scale, r"'blk\.0\.attn_q\.scale' \(1,\) has no place"),
        (stray_bias, r"'blk\.0\.ssm_out\.bias' \(1,\) has no place"),
        (short_scale, r"'blk\.0\.ffn_up_exps\.scale': found shape \(1,\), expected \(\d+,\)"),
    ],
)
def test_companions_without_a_place_are_named(
    tiny: Path, tmp_path: Path, change: Callable[[gguf_edit.Tensors], None], expected: str
) -> None:
    path = gguf_edit.edited(tiny, tmp_path / "changed.gguf", lambda _, own: change(own))
    with open_gguf(path) as model, pytest.raises(InputError, match=expected):
        take_inventory(model, config_from(model))


def test_fused_experts_and_scales_give_the_same_weights(tiny: Path, tmp_path: Path) -> None:
    """One file has gate and up apart, the other both in one tensor, halved, with a scale of 2 for each expert."""

    def fuse(_: gguf_edit.Keys, own: gguf_edit.Tensors) -> None:
        gate, up = (own.pop(f"blk.0.ffn_{part}_exps.weight")[0] for part in ("gate", "up"))
        own["blk.0.ffn_gate_up_exps.weight"] = (np.concatenate([gate, up], axis=1) / 2, F32)
        own["blk.0.ffn_gate_up_exps.scale"] = (np.full(len(gate), 2, np.float32), F32)

    found = []
    for path in (tiny, gguf_edit.edited(tiny, tmp_path / "fused.gguf", fuse)):
        with open_gguf(path) as model:
            found.append(WeightSource(model, config_from(model)).group("blk.0.", tensors.EXPERTS))
    assert found[0].keys() == found[1].keys() == {tensor.field for tensor in tensors.EXPERTS}
    assert all(np.array_equal(found[0][field], found[1][field]) for field in found[0])


def test_a_tensor_that_is_not_asked_for_is_named(tiny: Path) -> None:
    with open_gguf(tiny) as model:
        source = WeightSource(model, config_from(model))
        for prefix, group in list(tensors.trunk_groups(source.config))[:-1]:
            source.group(prefix, group)
        with pytest.raises(AssertionError, match=r"blk\.\d+\.ffn_down_exps\.weight"):
            source.check_all_read()

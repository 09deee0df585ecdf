"""Gaps are computed from recorded scores: kept against dropped, by hand on small numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from model_file.config import ModelConfig, config_from
from model_file.gguf_file import open_gguf
from reference.closeness import gaps


def small(path: Path) -> ModelConfig:
    with open_gguf(path) as model:
        config = config_from(model)
    return replace(config, top_k=4, compress_ratios=(2,) * config.layers, experts=4, experts_used=2)


def floats(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)


def test_gaps_are_relative_to_the_last_kept(tiny: Path) -> None:
    named = {
        "blk.3.block_scores": floats([1, 8, 2, 4], [3, 3, 3, 0], [5, 4, -np.inf, -np.inf], [0, 0, 0, 0]),
        "blk.0.expert_chances": floats([0.1, 0.2, 0.3, 0.4]),
        "blk.1.ple_agreement": floats([-1, 2]),
        "blk.1.mixer": floats([7, 7]),
    }
    found = gaps(named, small(tiny))
    assert found.keys() == {"blk.3.block_gap", "blk.0.expert_gap", "blk.1.ple_agreement"}
    assert found["blk.3.block_gap"].tolist() == [0.5, 0, np.inf, 0]
    np.testing.assert_allclose(found["blk.0.expert_gap"], [1 / 3], rtol=1e-6)
    assert found["blk.1.ple_agreement"].tolist() == [[-1, 2]]


def test_no_call_where_all_are_kept(tiny: Path) -> None:
    config = replace(small(tiny), experts_used=4)
    named = {"blk.3.block_scores": floats([1, 2]), "blk.0.expert_chances": floats([0.1, 0.2, 0.3, 0.4])}
    assert gaps(named, config) == {}

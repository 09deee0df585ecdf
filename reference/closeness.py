"""How close the calls of a chunk were: where another engine, correct to its own rounding, may rightly choose otherwise.

Computed from what the model's functions recorded; the model itself knows nothing of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig

CALLS = ("block_gap", "expert_gap", "ple_agreement")


def gaps(named: Mapping[str, npt.NDArray[Any]], config: ModelConfig) -> dict[str, npt.NDArray[np.float32]]:
    """The closeness of every call, by layer and kind: `blk.3.block_gap` and the like. Small is close.

    block_gap, expert_gap: (last kept - first dropped) / last kept, [t]; infinite where nothing was dropped. An indexer
    whose blocks are all kept, and a router that uses all experts, make no call.
    ple_agreement: the argument of the PLE gate's signed root, steep at zero, [t, s].
    """
    found = {}
    for name, values in named.items():
        layer, _, kind = name.rpartition(".")
        if kind == "ple_agreement":
            found[name] = values
        elif kind == "expert_chances" and config.experts_used < config.experts:
            found[f"{layer}.expert_gap"] = _gap(values, config.experts_used)
        elif kind == "block_scores":
            budget = config.top_k // config.compress_ratios[int(layer.removeprefix("blk."))]
            if budget < values.shape[1]:
                found[f"{layer}.block_gap"] = _gap(values, budget)
    return found


def _gap(scores: npt.NDArray[np.float32], kept: int) -> npt.NDArray[np.float32]:
    """Shapes: [t, anything] -> [t]. Scores of minus infinity were not there to choose."""
    ranked = -np.partition(-scores, (kept - 1, kept), axis=1)
    last, first_dropped = ranked[:, kept - 1], ranked[:, kept]
    with np.errstate(invalid="ignore"):
        gap = (last - first_dropped) / np.maximum(last, np.float32(1e-30))
    return np.where(np.isfinite(first_dropped), gap, np.float32(np.inf))

"""What a saved sequence is made of, by name, and where two of them differ."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fast.engine.sequence import Saved
from fast.model.plan import Plan


def arrays(saved: Saved, plan: Plan) -> dict[str, npt.NDArray[np.generic]]:
    """Every array of it; the head's layer is named as the block that it is in a file."""
    names = ["position", "PLE convolution"]
    for layer, (_, linear) in enumerate(plan.layers):
        parts = ("convolution", "memory") if linear else ("keys of the unfinished block",)
        names += [f"blk.{layer} {part}" for part in parts]
    names += ["residual of the draft head"] * (plan.draft > 0)
    found = dict(zip(names, saved.recurrent, strict=True))
    attention = [layer for layer, (_, linear) in enumerate(plan.layers) if not linear]
    for layer, cache in zip(attention, saved.caches, strict=True):
        parts = zip(("keys", "values", "block keys"), cache, strict=True)
        found |= {f"blk.{layer} {part}": array for part, array in parts}
    return found


def different(found: Saved, expected: Saved, plan: Plan, bound: float = 0.0) -> list[str]:
    """The names of what differs by more than the bound, as a relative error of the whole array; all of it at 0.

    Positions and tokens have no bound.
    """
    names = [] if found.tokens == expected.tokens else ["n-gram history"]
    if found.last is not None and expected.last is not None and found.last.tokens != expected.last.tokens:
        names.append("next token")
    other = arrays(expected, plan)
    for name, array in arrays(found, plan).items():
        exact = name == "position" or not bound
        if array.shape != other[name].shape or not (
            np.array_equal(array, other[name]) if exact else relative_error(array, other[name]) <= bound
        ):
            names.append(name)
    return names


def relative_error(found: npt.NDArray[np.generic], expected: npt.NDArray[np.generic]) -> float:
    """L2 of the difference by L2 of what is expected; 0 for arrays without values."""
    size = float(np.linalg.norm(expected))
    return float(np.linalg.norm(found - expected)) / size if size else float(np.abs(found).sum())

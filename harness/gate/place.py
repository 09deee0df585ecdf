"""From a difference to its place: the first position, layer and tensor whose values leave the bound, found by going
through the named intermediates of the engine under test and of the reference side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.engines.protocol import Engine
from harness.engines.recorded import errors_by_position, in_order, recorded
from harness.gate.checks import Finding

MAX_TOKENS = 1024  # of a prompt that are looked through; the reference computes them all again


@dataclass(frozen=True)
class Place:
    """Where values leave the bound for the first time. error: largest difference by the root mean square."""

    position: int
    tensor: str
    error: float
    bound: float

    def message(self) -> str:
        """One sentence."""
        return (
            f"first tensor outside the bound, engine against reference: {self.tensor} at position {self.position} "
            f"(error {self.error:.2g}, bound {self.bound:g}); everything computed before it is inside"
        )


def with_place(finding: Finding, found: Engine, right: Engine, ids: Sequence[int], bound: float) -> Finding:
    """The finding with the place where values first leave the bound, or with how far they were seen to be inside it."""
    place = first_place(found, right, ids, bound)
    if place is not None:
        detail = {**finding.detail, "first_tensor": place.tensor, "first_position": place.position}
        return replace(finding, message=f"{finding.message}; {place.message()}", detail=detail)
    seen = f"the {len(ids):,} tokens of prompt and answer"
    if len(ids) > MAX_TOKENS:
        seen = f"the first {MAX_TOKENS:,} of {seen}, which are all that was looked through,"
    return replace(finding, message=f"{finding.message}; all named intermediates of {seen} are inside the bound")


def without_place(finding: Finding, why: object) -> Finding:
    """The finding, and why nobody looked for the place where values first leave the bound."""
    why = f"the first tensor outside the bound was not looked for: {why}"
    return replace(finding, message=f"{finding.message}; {why}")


def first_place(found: Engine, right: Engine, ids: Sequence[int], bound: float) -> Place | None:
    """Feed both the same tokens and compare every named intermediate; None when all of them are inside the bound."""
    ids = ids[:MAX_TOKENS]
    for (start, mine), (_, others) in zip(recorded(found, ids), recorded(right, ids), strict=True):
        places = []
        for order, name in enumerate(in_order(mine, others)):
            errors = errors_by_position(mine[name], others[name])
            outside = np.flatnonzero(~(errors <= bound))
            if outside.size:
                places.append((int(outside[0]), order, name, float(errors[outside[0]])))
        if places:
            position, _, name, error = min(places)
            return Place(start + position, name, error, bound)
    return None

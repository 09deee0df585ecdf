"""From a difference to its place: the first position, layer and tensor whose values leave the bound, found by bisection
through the named intermediates of the engine under test and of the reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.engines.runner import Named, RecordedChunk, Runner
from harness.gate.checks import Finding

MAX_TOKENS = 1024  # of a prompt that are looked through; the reference computes them all again
_STEP_ORDER = ("ple", "mixer", "experts", "streams")


@dataclass(frozen=True)
class Place:
    """Where values leave the bound for the first time. error: largest difference by the root mean square."""

    position: int
    tensor: str
    error: float
    bound: float

    def story(self) -> str:
        """One sentence."""
        return (
            f"first tensor outside the bound, engine against reference: {self.tensor} at position {self.position} "
            f"(error {self.error:.2g}, bound {self.bound:g}); everything computed before it is inside"
        )


def with_place(finding: Finding, found: Runner, right: Runner, ids: Sequence[int], bound: float) -> Finding:
    """The finding with the place where values first leave the bound, or with how far they were seen to be inside it."""
    place = first_place(found, right, ids, bound)
    if place is not None:
        detail = {**finding.detail, "first_tensor": place.tensor, "first_position": place.position}
        return replace(finding, story=f"{finding.story}; {place.story()}", detail=detail)
    seen = f"the {len(ids):,} tokens of prompt and answer"
    if len(ids) > MAX_TOKENS:
        seen = f"the first {MAX_TOKENS:,} of {seen}, which are all that was looked through,"
    return replace(finding, story=f"{finding.story}; all named intermediates of {seen} are inside the bound")


def without_place(finding: Finding, why: object) -> Finding:
    """The finding, and why nobody looked for the place where values first leave the bound."""
    return replace(finding, story=f"{finding.story}; the first tensor outside the bound was not looked for: {why}")


def first_place(found: Runner, right: Runner, ids: Sequence[int], bound: float) -> Place | None:
    """Feed both the same tokens and compare every named intermediate; None when all of them are inside the bound."""
    for start, mine, others in aligned(found.record(ids[:MAX_TOKENS]), right.record(ids[:MAX_TOKENS])):
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


def in_order(mine: Named, others: Named) -> list[str]:
    """Names that both recorded, in the order in which the model computes them."""

    def key(name: str) -> tuple[int, int]:
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", name)
        return (int(match[1]), _STEP_ORDER.index(match[2])) if match else (1 << 30, 0)

    shared = [name for name in mine if name in others and (name == "logits" or name.rpartition(".")[2] in _STEP_ORDER)]
    return sorted(shared, key=key)


def errors_by_position(found: npt.NDArray[Any], right: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Largest difference of a value by the root mean square of the right vector. Shapes: both [t, ...] -> [t]."""
    flat, expected = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (found, right))
    rms = np.sqrt(np.mean(expected**2, axis=1))
    return np.asarray(np.abs(flat - expected).max(axis=1) / np.maximum(rms, 1e-30))


def aligned(first: Iterator[RecordedChunk], second: Iterator[RecordedChunk]) -> Iterator[tuple[int, Named, Named]]:
    """Start and named values, logits too, of chunks of both with the same tokens in them.

    Shapes: each value [t, ...]. The second engine may cut what is left over into smaller pieces than the first.
    """
    for chunk in first:
        mine = {**chunk.named, "logits": chunk.logits}
        parts: list[Named] = []
        count = 0
        while count < len(chunk.logits):
            other = next(second)
            parts.append({**other.named, "logits": other.logits})
            count += len(other.logits)
        assert count == len(chunk.logits), f"{count} tokens of one engine meet {len(chunk.logits)} of the other"
        yield chunk.start, mine, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def alone(chunks: Iterator[RecordedChunk]) -> Iterator[tuple[int, Named, Named]]:
    """As `aligned`, of one engine with itself."""
    for chunk in chunks:
        named = {**chunk.named, "logits": chunk.logits}
        yield chunk.start, named, named

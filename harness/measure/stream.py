"""The tokens of a cell: context before it, what is measured, and other tokens to warm up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zlib import crc32

from harness.cases.prompts import check_ids, varied_ids
from harness.measure.cells import Cell, Workload
from harness.measure.plan import LEAD_IN
from model_file.errors import InputError

_CONTEXT_SEED, _WARM_UP_SEED = 1, 2


@dataclass(frozen=True)
class Tokens:
    """Where a cell's tokens come from: varied ids by default, so that rows are as different as text makes them.

    vocab: 0 for a table without a hash, whose rows are drawn instead. given: a prompt that people bring; every cell
    then measures its beginning. Else every arm of a block gets the same tokens and every block others: a cache below
    the kernel (a disk's, a hypervisor's) knows the rows from the first arm of the block at the earliest, which is why
    blocks turn round. seed: another one makes all of them others.
    """

    vocab: int
    avoid: tuple[int, ...]
    rows_per_token: int
    given: tuple[int, ...] | None = None
    seed: int = 0

    def order(self, cell: Cell, chunk: int) -> dict[str, Any]:
        """What a worker needs to know of a cell, as plain values."""
        work, seed = cell.workload, self._seed(cell)
        count = LEAD_IN if work.kind == "decode" else work.tokens
        warm = LEAD_IN if work.kind == "decode" else min(count, chunk + count % chunk)
        context = self._varied(cell.depth, _CONTEXT_SEED) if cell.depth else []
        order: dict[str, Any] = {"kind": work.kind, "count": work.tokens, "state": cell.state, "depth": cell.depth}
        order |= {"seed": seed, "rows": count * self.rows_per_token}
        if not self.vocab:
            few = {"seed": _WARM_UP_SEED, "rows": 64}
            return order | {"fed": {"seed": seed, "rows": order["rows"]}, "warm_up": few, "context": [], "before": []}
        fed = self._varied(count, seed) if self.given is None else list(self.given[:count])
        order |= {"fed": fed, "warm_up": self._varied(warm, _WARM_UP_SEED), "context": context}
        before = [] if not work.needs_model else context[-LEAD_IN:] + (fed if work.kind == "decode" else [])
        return order | {"before": before}

    def _seed(self, cell: Cell) -> int:
        return crc32(f"{self.seed}.{cell.group.id}.r{cell.repeat}.b{cell.block}".encode())

    def _varied(self, count: int, seed: int) -> list[int]:
        return list(_varied(count, self.vocab, seed, self.avoid))


@lru_cache(maxsize=64)
def _varied(count: int, vocab: int, seed: int, avoid: tuple[int, ...]) -> tuple[int, ...]:
    """A deep context takes a while to draw, and stands before every block of its depth."""
    return tuple(varied_ids(count, vocab, seed, avoid=avoid))


def check_given(given: Sequence[int], workloads: Sequence[Workload], vocab: int, name: str) -> None:
    """Raises: InputError when a prompt is too short for the workloads, or not of this vocabulary."""
    check_ids(given, vocab, name)
    needed = max(LEAD_IN if work.kind == "decode" else work.tokens for work in workloads)
    if len(given) < needed:
        raise InputError(
            f"{name}: has {len(given)} tokens, expected at least the {needed} of the longest workload: nothing is "
            "repeated to fill it up, because repeated tokens read the same rows again; give a longer prompt or a "
            "smaller --workload"
        )

"""The tokens of a cell: context before it, what is measured, and other tokens to warm up with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
import numpy.typing as npt

from harness.cases.prompts import check_ids, varied_ids
from harness.measure.cells import Cell, Workload
from harness.measure.plan import LEAD_IN
from model_file.errors import InputError
from model_file.hash_constants import HashConstants
from reference import ngram

_CONTEXT_SEED, _WARM_UP_SEED = 1, 2


@dataclass(frozen=True)
class Tokens:
    """Where a cell's tokens come from: varied ids by default, so that rows are as different as text makes them.

    given: a prompt that people bring; every cell then measures its beginning. Else every arm of a block gets the same
    tokens and every block others: a cache below the kernel (a disk's, a hypervisor's) knows the rows from the first arm
    of the block at the earliest, which is why blocks turn round.
    """

    vocab: int
    avoid: tuple[int, ...]
    given: tuple[int, ...] | None = None

    def context(self, depth: int) -> list[int]:
        """What stands before every workload at that depth."""
        return varied_ids(depth, self.vocab, _CONTEXT_SEED, avoid=self.avoid) if depth else []

    def measured(self, cell: Cell) -> list[int]:
        """The tokens of a prefill or gather, or the ones a decode continues."""
        count = LEAD_IN if cell.workload.kind == "decode" else cell.workload.tokens
        if self.given is not None:
            return list(self.given[:count])
        seed = crc32(f"{cell.group.id}.r{cell.repeat}".encode())
        return varied_ids(count, self.vocab, seed, avoid=self.avoid)

    def before(self, cell: Cell) -> list[int]:
        """The last tokens that are fed before the ones whose rows are counted: their hashes reach back."""
        if cell.workload.kind == "gather":
            return []
        lead_in = self.measured(cell) if cell.workload.kind == "decode" else []
        return self.context(cell.depth)[-LEAD_IN:] + lead_in

    def warm_up(self, workload: Workload, chunk: int) -> list[int]:
        """Other tokens, few, that make everything run once: compile, start threads, fill pools.

        A chunk and what is left over at the end compile all that the whole workload needs.
        """
        if workload.kind == "decode":
            return varied_ids(LEAD_IN, self.vocab, _WARM_UP_SEED, avoid=self.avoid)
        count = min(workload.tokens, chunk + workload.tokens % chunk)
        return varied_ids(count, self.vocab, _WARM_UP_SEED, avoid=self.avoid)


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


def row_ids(constants: HashConstants, tokens: Sequence[int], before: Sequence[int]) -> npt.NDArray[np.int64]:
    """Table rows of the tokens, in order, duplicates included. Shapes: int64 [t * n]."""
    keep = constants.order - 1
    history = np.concatenate([ngram.fresh_history(constants), np.asarray(before[-keep:] if keep else [], np.uint64)])
    return ngram.row_ids(constants, tokens, history[history.size - keep :]).astype(np.int64).reshape(-1)

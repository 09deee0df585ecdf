"""Our own engine with a known fault in it: fed and continued as any other sequence, and wrong as the fault says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fast.engine.engine import FastEngine
from fast.model.attention import IndexState
from fast.model.delta_net import DeltaState
from fast.model.state import SequenceState
from fast.rows import Table
from harness.diagnose.hashes import RowRule
from harness.diagnose.known import DELTA_PAST, HISTORY, INDEX_PAST, MEMORY, PLE_PAST, Known
from harness.engines.protocol import Float32
from harness.faults.planting import planted_text
from harness.oracle import HashOracle, Packed


class ChosenRows:
    """A reader for one sequence: whatever ids it is asked for, it gives the rows that were laid ready, in order."""

    def __init__(self) -> None:
        self.ready = np.empty((0, 0), np.uint8)
        self._at = 0

    def lay_ready(self, packed: Packed) -> None:
        """The packed rows [m, row_bytes] of what is fed next."""
        self.ready, self._at = packed, 0

    def gather(self, ids: Any, out: Packed | None = None) -> Packed:
        """The next rows, as many as ids."""
        found = self.ready[self._at : self._at + len(ids)]
        self._at += len(ids)
        if out is None:
            return found.copy()
        out[:] = found
        return out


def starts_of(known: Known, total: int, prompt: int) -> list[int]:
    """For each position the first token that its n-grams may see."""
    lost = known.at(total, prompt) if known.at is not None and known.lost == HISTORY else set[int]()
    found, start = [], 0
    for place in range(total):
        start = place if place in lost else start
        found.append(start)
    return found


def packed_rows(
    known: Known, table: Table, oracle: HashOracle, tokens: Sequence[int], prompt: int, first: int = 0
) -> Packed:
    """The packed rows [t * n, row_bytes] that the tokens from position `first` on read under the fault."""
    starts = starts_of(known, len(tokens), prompt)
    return _read(known.rows, table, oracle, tuple(tokens), tuple(starts), first)


@lru_cache(maxsize=64)
def _read(
    rule: RowRule, table: Table, oracle: HashOracle, tokens: tuple[int, ...], starts: tuple[int, ...], first: int
) -> Packed:
    ids = rule.rows(oracle, tokens, starts, first).reshape(-1)
    return rule.read(table, np.minimum(ids, np.uint64(table.rows - 1)))  # a row past the end is held at the last one


class Planted:
    """A sequence under a fault. prompt: its first so many tokens are the prompt; all that follow are generated.

    The engine's reader is set by every step. A fault with a `change` is in force within `changed` alone.
    """

    def __init__(self, engine: FastEngine, table: Table, oracle: HashOracle, known: Known, prompt: int) -> None:
        self._engine, self._table, self._oracle = engine, table, oracle
        self._known, self._prompt, self._reader = known, prompt, ChosenRows()
        self._inner = engine.new_sequence()

    def feed(self, ids: Sequence[int], wanted: int) -> Float32:
        """Feed the next tokens; logits [wanted, v] at the last of them."""
        before = self._inner.tokens
        tokens, begin = [*before, *ids], len(before)
        self._reader.lay_ready(packed_rows(self._known, self._table, self._oracle, tokens, self._prompt, begin))
        self._engine.reader = self._reader
        lost: set[int] = set()
        if self._known.at is not None and self._known.lost != HISTORY:
            lost = {place for place in self._known.at(len(tokens), self._prompt) if begin <= place < len(tokens)}
        first_wanted, logits = len(tokens) - wanted, list[Float32]()
        for start, end in pairwise(sorted({begin, *lost, max(begin, first_wanted), len(tokens)})):
            if start in lost:
                self._inner.give_state(_without(self._known.lost, self._inner.take_state()))
            if start >= first_wanted:
                logits.append(self._inner.feed(tokens[start:end]))
            else:
                self._inner.feed(tokens[start:end], last_only=True)
        return np.concatenate(logits)

    def generate(self, count: int, logits: Float32) -> Iterator[tuple[int, Float32]]:
        """Continue greedily after a step with these last logits [v]: each token, and the logits it was chosen from."""
        for step in range(count):
            token = int(np.argmax(logits))
            yield token, logits
            if step + 1 < count:
                logits = self.feed([token], 1)[-1]


def _without(part: str, state: SequenceState) -> SequenceState:
    """The state with a part of it as at a sequence's start."""
    recurrent, mixers = state.recurrent, list(state.recurrent.mixers)
    for place, mixer in enumerate(mixers):
        if isinstance(mixer, DeltaState) and part in (MEMORY, DELTA_PAST):
            field = "memory" if part == MEMORY else "past"
            mixers[place] = replace(mixer, **{field: jnp.zeros_like(getattr(mixer, field))})
        if isinstance(mixer, IndexState) and part == INDEX_PAST:
            mixers[place] = IndexState(jnp.zeros_like(mixer.raw))
    if part == PLE_PAST:
        recurrent = replace(recurrent, ple=replace(recurrent.ple, past=jnp.zeros_like(recurrent.ple.past)))
    return replace(state, recurrent=replace(recurrent, mixers=tuple(mixers)))


@contextmanager
def changed(known: Known) -> Iterator[None]:
    """While the fault's text stands in the place of ours. Programs are compiled anew before and after."""
    if known.change is None:
        yield
        return
    module, function, old, new = known.change
    clear: Any = jax.clear_caches  # jax leaves it unannotated
    try:
        with planted_text(import_module(module), function, old, new):
            clear()
            yield
    finally:
        clear()

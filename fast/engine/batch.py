"""Feeding tokens to several sequences together, chunk by chunk, the rows of the next chunk read while one computes."""

from __future__ import annotations

from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter

import numpy as np

from fast.engine.chunks import Chunk, ChunkMaker
from fast.engine.nonfinite import not_finite
from fast.engine.programs import Outcome
from fast.engine.sequence import FloatLogits, Sequence
from fast.engine.step import DeviceStep, wait_for
from fast.engine.timings import Step, Timings, programs_compiled
from reference.shapes import Array


class BatchFeeder:
    """Feeds checked tokens. It has a thread that reads rows; `close` ends it."""

    def __init__(self, step: DeviceStep, chunks: ChunkMaker, timings: Timings) -> None:
        self.step, self.chunks, self.timings = step, chunks, timings
        self._gatherer = ThreadPoolExecutor(1, thread_name_prefix="rows")

    def feed(self, sequences: Items[Sequence], fed: list[list[int]], last_only: bool) -> list[FloatLogits]:
        """Logits [t, v] at every token of each sequence, or [v] at its last."""
        plan = self.chunks.cut([sequence.tokens for sequence in sequences], fed)
        upcoming: Future[Chunk] | None = self._gatherer.submit(self.chunks.make, next(plan))
        pieces: list[list[FloatLogits]] = [[] for _ in sequences]
        while upcoming is not None:
            asked = perf_counter()
            chunk = upcoming.result()
            started = perf_counter()
            outcome, logits, compile_s = self._dispatch(sequences, chunk, with_logits=not last_only)
            following = next(plan, None)
            upcoming = None if following is None else self._gatherer.submit(self.chunks.make, following)
            wait_for((outcome, logits))
            compute_s = perf_counter() - started - compile_s
            decode = chunk.tokens.shape[1] == 1
            self.timings.add(Step(chunk.total, decode, chunk.gather_s, started - asked, compute_s, compile_s))
            keep(sequences, chunk, outcome, logits, pieces)
            for place in np.flatnonzero(np.isnan(outcome.margins) & (chunk.counts > 0)).tolist():
                if upcoming is not None:
                    upcoming.exception()  # the reader is needed, and has one user at a time
                raise not_finite(self.step, self.chunks, sequences[place].tokens)
        return [
            sequence.logits if last_only else np.concatenate(rows)
            for sequence, rows in zip(sequences, pieces, strict=True)
        ]

    def _dispatch(
        self, sequences: Items[Sequence], chunk: Chunk, with_logits: bool
    ) -> tuple[Outcome, Array | None, float]:
        """Start a step and give every sequence its next state.

        Returns the outcome, logits [sequences * t, v] of all tokens if asked for, and the seconds of compiling.
        """
        before, started = programs_compiled(), perf_counter()
        states = tuple(sequence.take_state() for sequence in sequences)
        outcome, streams, states = self.step.advance(states, chunk)
        for sequence, state in zip(sequences, states, strict=True):
            sequence.give_state(state)
        logits = self.step.logits(streams) if with_logits else None
        return outcome, logits, self.step.count_compilations(before, started)

    def close(self) -> None:
        """Stop the reading thread."""
        self._gatherer.shutdown(wait=True, cancel_futures=True)


def keep(
    sequences: Items[Sequence],
    chunk: Chunk,
    outcome: Outcome,
    logits: Array | None,
    pieces: list[list[FloatLogits]],
) -> None:
    """Note what a finished step means for every sequence, and add its logits to the sequence's pieces."""
    number, length = chunk.tokens.shape
    by_sequence = None if logits is None else np.asarray(logits).reshape(number, length, -1)
    for index, sequence in enumerate(sequences):
        count = int(chunk.counts[index])
        if not count:
            continue
        if by_sequence is not None:
            pieces[index].append(by_sequence[index, :count])
        sequence.advanced(chunk.tokens[index, :count].tolist(), outcome, index, decoding=length == 1)

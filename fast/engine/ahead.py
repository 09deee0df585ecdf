"""Compiling in background threads what an engine is going to need, while its caller does something else.

A program is compiled by running it on padding alone, in states that are thrown away: what a step finds afterwards is
the program itself, and a step that comes earlier waits for it. XLA compiles without Python's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock

import numpy as np

from fast.engine.chunks import ChunkMaker
from fast.engine.step import DeviceStep, wait_for
from fast.engine.timings import programs_compiled
from fast.model.state import SequenceState

THREADS = 2  # a compilation uses one core most of the time, and tracing holds Python's lock


class Ahead:
    """Compilations of an engine that were started ahead."""

    def __init__(self, step: DeviceStep, chunks: ChunkMaker) -> None:
        self.step, self.chunks = step, chunks
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="compile")
        self._tasks: list[Future[None]] = []
        self._counting = Lock()

    def start(self, batches: Items[int], lengths: Items[int], with_logits: bool, recorded: int | None) -> None:
        """Start compiling steps of so many sequences and of these lengths, in this order, and decode.

        recorded: the shortest step that is recorded; None: none is.
        """
        for number in batches:
            for length in lengths:
                self._submit(partial(self._step, number, length, with_logits))
        if 1 in batches and self.step.plan.draft:
            self._submit(self._drafts)
        elif 1 in batches and self.chunks.settings.overlap and self.step.plan.early_layers:
            self._submit(self._decode)
        for length in lengths:
            if recorded is not None and length >= recorded:
                self._submit(partial(self._recorded, length))

    def wait(self) -> None:
        """Until all of it is compiled. Raises: what a compilation raised."""
        for task in self._tasks:
            task.result()
        self._tasks = []

    def close(self) -> None:
        """Leave out what has not begun, and wait for what has."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _submit(self, task: Callable[[], None]) -> None:
        self._tasks.append(self._threads.submit(self._counted, task))
        self.step.compiling = True
        self._tasks[-1].add_done_callback(self._done)

    def _counted(self, task: Callable[[], None]) -> None:
        before = programs_compiled()
        task()
        with self._counting:
            self.step.compilations += programs_compiled() - before

    def _done(self, _: Future[None]) -> None:
        self.step.compiling = any(not task.done() for task in list(self._tasks))

    def _step(self, sequences: int, length: int, with_logits: bool) -> None:
        states = tuple(SequenceState.fresh(self.step.plan) for _ in range(sequences))
        outcome, streams, _ = self.step.advance(states, self.chunks.padding(sequences, length))
        wait_for((outcome, self.step.logits(streams) if with_logits else None))

    def _decode(self) -> None:
        state, chunk = SequenceState.fresh(self.step.plan), self.chunks.padding(1, 1)
        early = self.step.begin(np.zeros(1, np.int32), state.recurrent)
        outcome, state = self.step.finish(early, chunk.packed, state)
        wait_for(self.step.begin(outcome.tokens, state.recurrent))

    def _drafts(self) -> None:
        state, length = SequenceState.fresh(self.step.plan), 1 + self.step.plan.draft
        guesses, state = self.step.guess(np.zeros(1, np.int32), state)
        wait_for((guesses, self.step.check(self.chunks.padding(1, length), 0, state)))

    def _recorded(self, length: int) -> None:
        states = (SequenceState.fresh(self.step.plan),)
        outcome, streams, _, _ = self.step.advance_recorded(states, self.chunks.padding(1, length))
        wait_for((outcome, self.step.logits(streams)))

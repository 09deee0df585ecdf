"""Greedy decoding of one sequence, with the device kept busy while the host hashes, reads rows and starts programs.

A step is two programs: the layers before the PLE layer, which need no rows, and the rest. The first one is started for
the next token before the host knows that token: it takes it from the device, straight from the step that chooses it.
By the time the host has the id and its rows, the device is at it; only rows that take longer than those layers are
waited for. Where a layer before the PLE layer is no delta net, or `overlap` is off, a step is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isnan
from time import perf_counter
from typing import Any

import numpy as np

from fast.engine.chunks import ChunkMaker
from fast.engine.nonfinite import not_finite
from fast.engine.programs import Outcome
from fast.engine.sequence import Sequence
from fast.engine.step import DeviceStep, Early
from fast.engine.timings import Step, Timings, programs_compiled


class Decoder:
    """Continues one sequence greedily.

    Between the moment when a token is known and the start of the next program the device may wait, so only hashing,
    reading rows and starting programs stand there; all bookkeeping is done while the device computes.
    """

    def __init__(self, step: DeviceStep, chunks: ChunkMaker, timings: Timings, sequence: Sequence) -> None:
        self.step, self.chunks, self.timings, self.sequence = step, chunks, timings, sequence
        self._early: Early | None = None
        self._split = chunks.settings.overlap and step.plan.early_layers > 0
        self._unfinished: Callable[[float], Step] | None = None  # the last step, its time not yet noted

    def run(self, count: int) -> Iterator[tuple[int, float]]:
        """`count` tokens, each with its margin; a token that is handed out has been fed."""
        token, margin = self.sequence.next_token()
        for number in range(count):
            outcome = self._feed(token, more=number + 1 < count)
            self.sequence.margins.append(margin)
            following = int(np.asarray(outcome.tokens)[0])  # waits for the device
            self._note_time(perf_counter())
            ahead = float(np.asarray(outcome.margins)[0])
            if isnan(ahead):
                raise not_finite(self.step, self.chunks, self.sequence.tokens)
            yield token, margin
            token, margin = following, ahead

    def _feed(self, token: int, more: bool) -> Outcome:
        """Feed `token`, the one that the last step chose. more: another will follow, begin with it already."""
        step, sequence = self.step, self.sequence
        before, started = programs_compiled(), perf_counter()
        if self._split and self._early is None:
            self._early = step.begin(np.array([token], np.int32), sequence.state.recurrent)
        ids = self.chunks.hash.one(token, sequence.tokens)
        asked = perf_counter()
        packed = self.chunks.reader.gather(ids)
        gathered = perf_counter()
        exposed_s = gathered - asked
        if self._early is None:
            outcome, state = step.advance_token(token, packed, sequence.take_state())
        else:
            # The early layers were queued right behind the step that chose the token, so they began when it was known.
            streams: Any = self._early[0]
            hidden = not streams.is_ready()
            exposed_s = 0.0 if hidden else min(exposed_s, max(0.0, gathered - started - step.early_s))
            outcome, state = step.finish(self._early, packed, sequence.take_state())
        sequence.give_state(state)
        self._early = step.begin(outcome.tokens, state.recurrent) if more and self._split else None
        compile_s = step.count_compilations(before, started)
        sequence.advanced([token], outcome, 0, decoding=True)
        self._unfinished = lambda end: Step(
            1, True, gathered - asked, exposed_s, end - started - compile_s - exposed_s, compile_s
        )
        return outcome

    def _note_time(self, end: float) -> None:
        assert self._unfinished is not None
        self.timings.add(self._unfinished(end))

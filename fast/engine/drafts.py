"""Greedy decoding with the draft head: a step checks its guesses, and keeps what the trunk would have chosen itself.

The ids are those of plain decoding, whatever the head says. A step feeds the token that is known and the guesses after
it together; their rows are read in one batch. How many of them count is decided on the device, and the state after that
many is taken there: nothing is fed twice, and a guess that was wrong leaves nothing. The head guesses on from the token
that a step chooses before the host knows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

from fast.engine.chunks import ChunkMaker, Cut
from fast.engine.nonfinite import not_finite
from fast.engine.programs import Checked
from fast.engine.sequence import Sequence
from fast.engine.step import DeviceStep
from fast.engine.timings import Step, Timings, programs_compiled
from reference.shapes import Array

Guesses = Callable[[list[int], list[int]], list[int]]
"""From all tokens up to the one that is known, and the head's guesses, to as many other guesses."""


class DraftDecoder:
    """Continues one sequence greedily; counts of guesses go to the timings, as llama-server has them."""

    def __init__(
        self, step: DeviceStep, chunks: ChunkMaker, timings: Timings, sequence: Sequence, planted: Guesses | None
    ) -> None:
        self.step, self.chunks, self.timings, self.sequence = step, chunks, timings, sequence
        self._planted = planted
        self._guessed: Array | None = None  # what the head guesses after the token that is known

    def run(self, count: int) -> Iterator[tuple[int, float]]:
        """`count` tokens, each with its margin; a token that is handed out has been fed.

        Guesses that were accepted are fed with it: who stops before they are handed out gets the sequence as it is
        after the last that was.
        """
        token, margin = self.sequence.next_token()
        left = count  # tokens to hand out
        while left:
            tokens, margins, following = self._step(token, margin, min(self.step.plan.draft, max(0, left - 2)), left)
            left -= len(tokens)
            token, margin = following
            for place, pair in enumerate(zip(tokens, margins, strict=True), start=1):
                self.sequence.margins.append(pair[1])
                try:
                    yield pair
                except GeneratorExit:
                    self.sequence.truncate(self.sequence.position - len(tokens) + place)
                    raise

    def _step(
        self, token: int, margin: float, most: int, left: int
    ) -> tuple[list[int], list[float], tuple[int, float]]:
        """Feed a token and at most `most` guesses: those that count, their margins, and what follows them."""
        before, started = programs_compiled(), perf_counter()
        sequence, length = self.sequence, 1 + self.step.plan.draft
        tokens = [token, *self._guesses(token, most)]
        chunk = self.chunks.make(Cut([tokens], [self.chunks.hash.many(tokens, sequence.tokens)]), length)
        checked, state = self.step.check(chunk, most, sequence.take_state())
        sequence.give_state(state)
        if left > length + 2:  # another step with guesses follows, however many of these are accepted
            self._guess(checked.outcome.tokens)
        compile_s = self.step.count_compilations(before, started)
        counted = self._count(checked, most)
        compute_s = perf_counter() - started - compile_s - chunk.gather_s
        sequence.advanced(tokens[:counted], checked.outcome, 0, decoding=True)
        self.timings.add(Step(counted, True, chunk.gather_s, chunk.gather_s, compute_s, compile_s))
        chosen, margins = np.asarray(checked.tokens).tolist(), np.asarray(checked.margins).tolist()
        if np.isnan(margins[:counted]).any():
            # A NaN reaches the earlier tokens of its step through masked products: it may come from a guess.
            raise not_finite(self.step, self.chunks, [*sequence.tokens, *tokens[counted:]])
        return tokens[:counted], [margin, *margins[: counted - 1]], (chosen[counted - 1], margins[counted - 1])

    def _count(self, checked: Checked, most: int) -> int:
        """How many tokens of a step count; waits for the device."""
        accepted = int(np.asarray(checked.accepted))
        self.timings.drafted += most
        self.timings.accepted += accepted
        return 1 + accepted

    def _guesses(self, token: int, most: int) -> list[int]:
        if not most:
            return []
        if self._guessed is None:
            self._guess(np.array([token], np.int32))
        guesses: list[int] = np.asarray(self._guessed)[:most].tolist()
        self._guessed = None
        return guesses if self._planted is None else self._planted([*self.sequence.tokens, token], guesses)

    def _guess(self, token: Array | np.ndarray) -> None:
        self._guessed, state = self.step.guess(token, self.sequence.take_state())
        self.sequence.give_state(state)

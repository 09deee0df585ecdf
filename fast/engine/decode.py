"""Greedy decoding of one sequence, with the device kept busy while the host hashes, reads rows and starts programs.

A step is two programs: the layers before the PLE layer, which need no rows, and the rest. The first one is started for
the next token before the host knows that token: it takes it from the device, straight from the step that chooses it.
By the time the host has the id and its rows, the device is at it; only rows that take longer than those layers are
waited for. Where a layer before the PLE layer is no delta net, or `overlap` is off, a step is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fast.engine.programs import Outcome, advance, decode_before_ple, decode_from_ple
from fast.engine.timings import Step, programs_compiled
from fast.model.state import DeltaState, SequenceState, fresh_state

if TYPE_CHECKING:
    from fast.engine.engine import FastEngine
    from fast.engine.sequence import Sequence

Early = tuple[Any, tuple[DeltaState, ...]]  # streams, states of the early layers


class Decoder:
    """Continues one sequence greedily.

    Between the moment when a token is known and the start of the next program the device may wait, so only hashing,
    reading rows and starting programs stand there; all bookkeeping is done while the device computes.
    """

    def __init__(self, engine: FastEngine, sequence: Sequence) -> None:
        self.engine, self.sequence = engine, sequence
        self._one = jnp.ones(1, jnp.int32)
        self._early: Early | None = None
        self._split = engine.settings.overlap and early_layers(engine) > 0
        self._unfinished: Callable[[float], Step] | None = None  # the last step, its time not yet noted

    def run(self, count: int) -> Iterator[tuple[int, float]]:
        """`count` tokens, each with its margin; a token that is handed out has been fed."""
        token, margin = self.sequence.next_token()
        for number in range(count):
            outcome = self._step(token, more=number + 1 < count)
            self.sequence.margins.append(margin)
            following = int(np.asarray(outcome.tokens)[0])  # waits for the device
            self._note_time(perf_counter())
            yield token, margin
            token, margin = following, float(np.asarray(outcome.margins)[0])

    def _step(self, token: int, more: bool) -> Outcome:
        """Feed `token`, the one that the last step chose. more: another will follow, begin with it already."""
        engine, sequence = self.engine, self.sequence
        before, started = programs_compiled(), perf_counter()
        if self._split and self._early is None:
            self._early = self._begin(np.array([token], np.int32), sequence.state)
        ids = engine.chunks.hash.one(token, sequence.tokens)
        asked = perf_counter()
        packed = engine.reader.gather(ids)
        gathered = perf_counter()
        exposed_s = gathered - asked
        if self._early is None:
            tokens = np.array([[token]], np.int32)
            states = (sequence.take_state(),)
            outcome, _, states = advance(engine.weights, tokens, packed, states, self._one, engine.plan)
            state = states[0]
        else:
            # The early layers were queued right behind the step that chose the token, so they began when it was known.
            hidden = not self._early[0].is_ready()
            exposed_s = 0.0 if hidden else min(exposed_s, max(0.0, gathered - started - engine.early_s))
            outcome, state = self._finish(self._early, packed)
        sequence.give_state(state)
        self._early = self._begin(outcome.tokens, state) if more and self._split else None
        compile_s = engine.count_compilations(before, started)
        sequence.advanced([token], outcome, 0, decoding=True)
        self._unfinished = lambda end: Step(
            1, True, gathered - asked, exposed_s, end - started - compile_s - exposed_s, compile_s
        )
        return outcome

    def _note_time(self, end: float) -> None:
        assert self._unfinished is not None
        self.engine.timings.add(self._unfinished(end))

    def _begin(self, token: Any, state: SequenceState) -> Early:
        mixers: Any = state.recurrent.mixers[: early_layers(self.engine)]
        return decode_before_ple(self.engine.early_weights, token, mixers, self._one, self.engine.plan)

    def _finish(self, early: Early, packed: Any) -> tuple[Outcome, SequenceState]:
        streams, mixers = early
        state = self.sequence.take_state().without_mixers(len(mixers))
        return decode_from_ple(self.engine.weights, streams, packed, state, mixers, self._one, self.engine.plan)


def early_layers(engine: FastEngine) -> int:
    """How many layers stand before the PLE layer, 0 when not all of them are delta nets."""
    layer = engine.config.ple.layer
    return layer if all(engine.config.linear_layers[:layer]) else 0


def measure_early_part(engine: FastEngine) -> float:
    """Seconds that the layers before the PLE layer take a token: what a gather can hide behind."""
    count, times = early_layers(engine), []
    if not count:
        return 0.0
    mixers: Any = fresh_state(engine.plan, caches=False).recurrent.mixers[:count]
    token, one = np.zeros(1, np.int32), jnp.ones(1, jnp.int32)
    for _ in range(5):
        started = perf_counter()
        wait_for(decode_before_ple(engine.early_weights, token, mixers, one, engine.plan))
        times.append(perf_counter() - started)
    return min(times)


def wait_for(results: Any) -> None:
    """Until the device has computed all of it."""
    block: Any = jax.block_until_ready  # jax leaves it unannotated
    block(results)

"""Steps of the device: states and a chunk go into a compiled program, an outcome and the next states come out."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fast.engine.chunks import Chunk, PackedRows
from fast.engine.programs import (
    Checked,
    Outcome,
    advance,
    advance_recorded,
    all_logits,
    check,
    decode_before_ple,
    decode_from_ple,
    draft,
    draft_weights,
    early_weights,
)
from fast.engine.timings import programs_compiled
from fast.model.delta_net import DeltaState
from fast.model.packing import pack
from fast.model.plan import Plan
from fast.model.state import Recurrent, SequenceState
from fast.model.trunk import States
from fast.model.weights import Weights
from reference.shapes import Array

Early = tuple[Array, tuple[DeltaState, ...]]
"""A decode step that has begun: its streams before the PLE layer, and the states of the layers that were run."""


class DeviceStep:
    """A model's weights on the device, and the steps that are taken with them.

    It knows no sequences. A step takes over the buffers of the states that it is given; who gives them keeps what comes
    back.
    """

    def __init__(self, weights: Weights, plan: Plan, name: str) -> None:
        self.plan, self.name = plan, name  # the name is the model's, for messages
        self.weights_bytes = weights.size_bytes
        self.compilations = 0
        self.compiling = False  # whether programs are being compiled ahead, which a step may wait for
        self.early_s = 0.0  # seconds that the layers before the PLE layer take a token, once they were measured
        self._weights, self._early_weights = pack(weights), early_weights(weights, plan)
        self._draft_weights = draft_weights(weights) if plan.draft else None
        self._one = jnp.ones(1, jnp.int32)

    def advance(self, states: States, chunk: Chunk) -> tuple[Outcome, Array, States]:
        """One step of every sequence; the streams are for `logits`."""
        return advance(self._weights, chunk.tokens, chunk.packed, states, chunk.counts, self.plan)

    def advance_recorded(self, states: States, chunk: Chunk) -> tuple[Outcome, Array, States, dict[str, Array]]:
        """As `advance`, with every named intermediate."""
        return advance_recorded(self._weights, chunk.tokens, chunk.packed, states, chunk.counts, self.plan)

    def logits(self, streams: Array) -> Array:
        """Logits [sequences * t, v] of all tokens of a step."""
        return all_logits(self._weights, streams, self.plan)

    def advance_token(self, token: int, packed: PackedRows, state: SequenceState) -> tuple[Outcome, SequenceState]:
        """One token of one sequence, in one program."""
        tokens = np.array([[token]], np.int32)
        outcome, _, (state,) = advance(self._weights, tokens, packed, (state,), self._one, self.plan)
        return outcome, state

    def embedding_of(self, token: int) -> npt.NDArray[np.float32]:
        """What a token's streams begin with [d]."""
        weights: Weights = self._weights.unpack()
        return np.asarray(weights.embedding[jnp.asarray(token)])

    def begin(self, token: Any, recurrent: Recurrent) -> Early:
        """The part of a decode step that needs no rows, of a token [1] that may still be computed.

        It takes nothing over: a step that was begun and is not wanted is dropped.
        """
        mixers: Any = recurrent.mixers[: self.plan.early_layers]
        return decode_before_ple(self._early_weights, token, mixers, self._one, self.plan)

    def finish(self, early: Early, packed: PackedRows, state: SequenceState) -> tuple[Outcome, SequenceState]:
        """The rest of a decode step that has begun."""
        streams, mixers = early
        rest = state.without_mixers(len(mixers))
        return decode_from_ple(self._weights, streams, packed, rest, mixers, self._one, self.plan)

    def guess(self, token: Any, state: SequenceState) -> tuple[Array, SequenceState]:
        """The draft head's guesses [plan.draft] at what follows a token [1], which may still be computed.

        The sequence stands where it stood: its head's caches are written behind its position, and nothing else.
        """
        assert self._draft_weights is not None
        alone, cache = state.of_head(), state.caches[-1]
        without: Any = replace(alone, caches=(None,) * len(alone.caches))
        guesses, cache = draft(self._draft_weights, token, without, cache, self.plan)
        return guesses, replace(state, caches=(*state.caches[:-1], cache))

    def check(self, chunk: Chunk, most: int, state: SequenceState) -> tuple[Checked, SequenceState]:
        """A token and `most` guesses at those after it, of one sequence, in one step."""
        return check(self._weights, chunk.tokens, chunk.packed, np.int32(most), state, self.plan)

    def measure_early_part(self) -> None:
        """Note how long the part takes that needs no rows: what a gather can hide behind."""
        if not self.plan.early_layers:
            return
        token, recurrent, times = np.zeros(1, np.int32), Recurrent.fresh(self.plan), []
        for _ in range(5):
            started = perf_counter()
            wait_for(self.begin(token, recurrent))
            times.append(perf_counter() - started)
        self.early_s = min(times)

    @property
    def experts_bytes(self) -> int:
        """Memory of experts that are read when they are chosen: none here."""
        return 0

    def read_experts(self, mode: str) -> None:
        """Read experts in this access mode: here all are in memory."""

    def close(self) -> None:
        """Release what is no array of the device: nothing here."""

    def count_compilations(self, before: int, started: float) -> float:
        """Count the programs that this thread compiled since there were `before`.

        Returns the seconds since `started` if there were any, or if another thread's compilation may have been waited
        for. To be called where a step is started, before its results are waited for.
        """
        compiled = programs_compiled() - before
        self.compilations += compiled
        return perf_counter() - started if compiled or self.compiling else 0.0


def wait_for(results: Any) -> None:
    """Until the device has computed all of it."""
    block: Any = jax.block_until_ready  # jax leaves it unannotated
    block(results)

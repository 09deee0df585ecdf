"""One context of tokens on an engine: going on in any split, back to any position, saved, restored and forked.

A `Sequence` is data: its tokens, its state on the device, the outcome of its last step, and checkpoints to go back to.
What computes it is the engine's; this file states in `SequenceEngine` what it asks of one.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Tokens
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from fast.engine.programs import Outcome, copied
from fast.engine.settings import EngineSettings
from fast.model.attention import KeyValues
from fast.model.plan import Plan
from fast.model.state import Recurrent, SequenceState
from model_file.errors import InputError

FloatLogits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Saved:
    """Everything of a sequence at one position, in host memory, cut to what is filled.

    Restoring it gives the same bits back, into any sequence of an engine on the same model.
    """

    model: object
    tokens: tuple[int, ...]
    recurrent: tuple[npt.NDArray[np.generic], ...]
    caches: tuple[tuple[FloatLogits, FloatLogits, FloatLogits], ...]  # keys, values, block keys of an attention layer
    last: Outcome | None

    @property
    def size_bytes(self) -> int:
        """Bytes of the saved arrays."""
        return sum(array.nbytes for array in self.recurrent + sum(self.caches, ()))


@dataclass(frozen=True)
class _Checkpoint:
    position: int
    recurrent: Recurrent


@runtime_checkable
class SequenceEngine(Protocol):
    """What a sequence asks of the engine that made it."""

    settings: EngineSettings
    plan: Plan

    @property
    def identity(self) -> object:
        """Equal for engines on the same model file."""
        ...

    def check_process(self) -> None:
        """Raises: InputError in a fork of the engine's process."""
        ...

    def feed_batch(self, work: Tokens[tuple[Sequence, Tokens[int]]], last_only: bool = False) -> list[FloatLogits]:
        """Feed several sequences together."""
        ...

    def generate(self, sequence: Sequence, count: int) -> Iterator[tuple[int, float]]:
        """Continue one sequence greedily."""
        ...


class Sequence:
    """One context. It shares nothing with other sequences but the weights; made by `FastEngine.new_sequence`."""

    def __init__(self, engine: SequenceEngine) -> None:
        self.engine = engine
        self.tokens: list[int] = []
        self.margins: list[float] = []  # of every token that `greedy` chose here, in order
        self._state: SequenceState | None = SequenceState.fresh(engine.plan)
        self._last: tuple[Outcome, int] | None = None  # the last step, and this sequence's place in its batch
        self._checkpoints: list[_Checkpoint] = []

    @property
    def position(self) -> int:
        """Tokens fed so far; the next one stands here."""
        return len(self.tokens)

    @property
    def logits(self) -> FloatLogits:
        """Logits [v] after the last token. Raises: ValueError before the first."""
        if self._last is None:
            raise ValueError("no token has been fed yet, so that there are no logits")
        self.engine.check_process()
        outcome, index = self._last
        return np.asarray(outcome.logits)[index]

    def feed(self, tokens: Tokens[int], last_only: bool = False) -> FloatLogits:
        """Feed the next tokens, in chunks, and return logits [t, v] at each of them, or [v] at the last.

        Raises: InputError for a token outside the vocabulary, no tokens, or more than there is room for.
        """
        return self.engine.feed_batch([(self, tokens)], last_only=last_only)[0]

    def greedy(self, count: int) -> list[int]:
        """The next `count` tokens of the temperature-0 continuation, each of them fed; the lowest id wins a tie.

        All are fed, the last one too, so that `greedy(a)` and then `greedy(b)` is `greedy(a + b)`, and `position` is
        the number of all tokens seen. EOS does not stop it. The margins are appended to `margins`.
        """
        return [token for token, _ in self.generate(count)]

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """As `greedy`, one token and its margin at a time; a token that is handed out has been fed."""
        yield from self.engine.generate(self, count)

    def next_token(self) -> tuple[int, float]:
        """The greedy next token and its margin, not fed. Raises: ValueError before the first token."""
        if self._last is None:
            raise ValueError("no token has been fed yet, so that nothing can be continued")
        self.engine.check_process()
        outcome, index = self._last
        return int(np.asarray(outcome.tokens)[index]), float(np.asarray(outcome.margins)[index])

    def save(self) -> Saved:
        """Everything of this sequence, copied to host memory."""
        # From copies: a NumPy view of the state itself would keep the next step from taking its buffers over.
        state, filled = copied(self.state), self.position
        caches = tuple(
            (
                np.asarray(cache.keys)[:, :filled].copy(),
                np.asarray(cache.values)[:, :filled].copy(),
                np.asarray(cache.blocks)[:, : _blocks(ratio, filled)].copy(),
            )
            for ratio, cache in zip(self.engine.plan.attention_ratios, state.caches, strict=True)
        )
        recurrent = tuple(np.array(leaf) for leaf in jax.tree_util.tree_leaves(state.recurrent))
        return Saved(self.engine.identity, tuple(self.tokens), recurrent, caches, self._last_alone())

    def _last_alone(self) -> Outcome | None:
        """The last step's outcome for this sequence, in host memory."""
        if self._last is None:
            return None
        outcome, index = self._last
        return jax.tree_util.tree_map(lambda x: np.array(x)[index : index + 1], outcome)

    def restore(self, saved: Saved) -> None:
        """Become what `saved` was, whatever this sequence is now.

        Raises: InputError when it is of another model or longer than the context.
        """
        self.engine.check_process()
        if saved.model != self.engine.identity:
            raise InputError(f"the saved sequence is of {saved.model}, expected one of {self.engine.identity}")
        if len(saved.tokens) > self.engine.settings.context:
            raise InputError(
                f"the saved sequence has {len(saved.tokens)} tokens, expected at most the context of "
                f"{self.engine.settings.context}: make the engine with a larger context"
            )
        plan, caches = self.engine.plan, []
        for ratio, (keys, values, blocks) in zip(plan.attention_ratios, saved.caches, strict=True):
            filled = (_padded(keys, 1, plan.room), _padded(values, 1, plan.room))
            caches.append(KeyValues(*filled, _padded(blocks, 1, plan.key_blocks(ratio))))
        structure = jax.tree_util.tree_structure(Recurrent.fresh(plan))
        recurrent = jax.tree_util.tree_unflatten(structure, [jnp.array(leaf) for leaf in saved.recurrent])
        self._state = SequenceState(recurrent, tuple(caches))
        self.tokens = list(saved.tokens)
        self.margins, self._checkpoints = [], []
        self._last = (saved.last, 0) if saved.last is not None else None

    def fork(self) -> Sequence:
        """A second sequence that starts as a copy of this one; they go on independently."""
        twin = Sequence.__new__(Sequence)
        twin.engine = self.engine
        twin.tokens, twin.margins = list(self.tokens), list(self.margins)
        twin._state = copied(self.state)
        twin._last = self._last
        twin._checkpoints = list(self._checkpoints)  # never handed to a program, so that both may keep them
        return twin

    def truncate(self, position: int) -> None:
        """Go back to `position`: what was fed after it is forgotten.

        The delta nets have no past, so the last checkpoint before `position` is taken up and the tokens after it are
        fed again: at most `checkpoint_every` or a chunk of them close to the end, more further back.
        Raises: InputError for a position that this sequence has not reached.
        """
        self.engine.check_process()
        if not 0 <= position <= self.position:
            raise InputError(f"cannot go to position {position}, expected 0 to {self.position}, where the sequence is")
        if position == self.position:
            return
        tokens = self.tokens[:position]
        self._checkpoints = [point for point in self._checkpoints if point.position < position]
        self._last = None
        if self._checkpoints:
            start = self._checkpoints[-1]
            self._state = SequenceState(copied(start.recurrent), self.state.caches)
            self.tokens = tokens[: start.position]
        else:
            self._state = SequenceState(Recurrent.fresh(self.engine.plan), self.state.caches)
            self.tokens = []
        if position > len(self.tokens):
            self.feed(tokens[len(self.tokens) :], last_only=True)

    @property
    def state(self) -> SequenceState:
        """The state on the device. Raises: RuntimeError when a step failed half-way and took it along."""
        self.engine.check_process()
        if self._state is None:
            raise RuntimeError(
                "a step of this sequence failed and its state is lost: restore a saved one, or start anew"
            )
        return self._state

    def take_state(self) -> SequenceState:
        """For the engine: hand the state to a program, which takes its buffers over."""
        state, self._state = self.state, None
        return state

    def give_state(self, state: SequenceState) -> None:
        """For the engine: the state that the program gave back."""
        self._state = state

    def advanced(self, tokens: list[int], outcome: Outcome, index: int, decoding: bool) -> None:
        """For the engine: a step with these tokens is done; this sequence was number `index` of its batch."""
        self.tokens += tokens
        self._last = (outcome, index)
        self._keep_checkpoint(decoding)

    def _keep_checkpoint(self, decoding: bool) -> None:
        """Copy the recurrent state now and then, so that `truncate` has somewhere to start from."""
        settings, points = self.engine.settings, self._checkpoints
        since = self.position - (points[-1].position if points else 0)
        if decoding and since < settings.checkpoint_every:
            return
        points.append(_Checkpoint(self.position, copied(self.state.recurrent)))
        if len(points) > settings.checkpoints:
            del points[_least_useful([point.position for point in points])]


def _least_useful(positions: list[int]) -> int:
    """Which checkpoint to give up: the one whose neighbours are closest to each other for how far back it lies.

    What stays is dense near the end and ever wider apart towards the start.
    """
    end = positions[-1]
    gaps = [
        (positions[i + 1] - (positions[i - 1] if i else 0)) / (end - positions[i] + 1)
        for i in range(len(positions) - 1)
    ]
    return int(np.argmin(gaps))


def _blocks(ratio: int, tokens: int) -> int:
    return tokens // ratio if ratio else 0


def _padded(x: FloatLogits, axis: int, length: int) -> jax.Array:
    shape = list(x.shape)
    shape[axis] = length
    whole = np.zeros(shape, np.float32)
    whole[(slice(None),) * axis + (slice(0, x.shape[axis]),)] = x
    return jnp.array(whole)

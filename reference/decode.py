"""Feeding the reference: prompts in any split, greedy decoding, table rows from whoever reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig
from reference import ngram
from reference.model import State, forward, fresh_state, read_out, trunk
from reference.parameters import Parameters
from reference.shapes import Array, Float

FloatRows = npt.NDArray[np.float32]
ReadRows = Callable[[npt.NDArray[np.uint64]], FloatRows]
"""Reads table rows: ids uint64 [m] -> float32 [m, e], in order, duplicates included."""


@partial(jax.jit, static_argnames=("config",))
def _forward(
    parameters: Parameters, config: ModelConfig, tokens: Array, rows: Array, state: State
) -> tuple[Array, State]:
    """`forward` compiled once for each chunk length: the same functions, minutes instead of hours."""
    return forward(parameters, config, tokens, rows, state)


@partial(jax.jit, static_argnames=("config",))
def _forward_recorded(
    parameters: Parameters, config: ModelConfig, tokens: Array, rows: Array, state: State
) -> tuple[Array, State, dict[str, Array]]:
    named: dict[str, Array] = {}
    logits, state = forward(parameters, config, tokens, rows, state, named.__setitem__)
    return logits, state, named


_trunk = partial(jax.jit, static_argnames=("config",))(trunk)
_read_out = partial(jax.jit, static_argnames=("config",))(read_out)


class Session:
    """One sequence being fed to the reference. Two sessions share nothing but the weights."""

    def __init__(self, parameters: Parameters, config: ModelConfig, read_rows: ReadRows, room: int) -> None:
        self.parameters, self.config, self.read_rows, self.room = parameters, config, read_rows, room
        self.state = fresh_state(config, room)
        self.history = ngram.fresh_history(config.ple.hash)
        self.position = 0

    def feed(self, tokens: Sequence[int]) -> FloatRows:
        """Logits [t, v] at every position of the next chunk. Raises ValueError when the room is used up."""
        logits, self.state = _forward(self.parameters, self.config, *self._inputs(tokens), self.state)
        return np.asarray(logits)

    def feed_recorded(self, tokens: Sequence[int]) -> tuple[FloatRows, dict[str, npt.NDArray[np.generic]]]:
        """As `feed`, with every named intermediate of the chunk."""
        logits, self.state, named = _forward_recorded(self.parameters, self.config, *self._inputs(tokens), self.state)
        return np.asarray(logits), {name: np.asarray(value) for name, value in named.items()}

    def feed_streams(self, tokens: Sequence[int]) -> Float[Array, "t s d"]:
        """As `feed`, but the residual streams: what the draft head takes, and what `logits_of` reads."""
        streams, self.state = _trunk(self.parameters, self.config, *self._inputs(tokens), self.state)
        return streams

    def logits_of(self, streams: Float[Array, "t s d"]) -> FloatRows:
        """Logits [t, v] of the trunk's streams."""
        return np.asarray(_read_out(self.parameters, self.parameters.output_hc, streams, self.config))

    def feed_in_chunks(self, tokens: Sequence[int], chunk: int) -> FloatRows:
        """Logits [t, v] of a long run of tokens, fed `chunk` at a time; what is left over, one at a time.

        One at a time, because every new chunk length is compiled anew.
        """
        whole = len(tokens) - len(tokens) % chunk
        bounds = [*range(0, whole, chunk), *range(whole, len(tokens) + 1)]
        return np.concatenate([self.feed(tokens[a:b]) for a, b in pairwise(bounds)])

    def _inputs(self, tokens: Sequence[int]) -> tuple[Array, Array]:
        if self.position + len(tokens) > self.room:
            raise ValueError(f"{self.position} tokens fed, {len(tokens)} more do not fit the room of {self.room}")
        ids = ngram.row_ids(self.config.ple.hash, tokens, self.history)
        rows = self.read_rows(ids.reshape(-1)).reshape(len(tokens), -1)
        self.history = ngram.next_history(self.config.ple.hash, tokens, self.history)
        self.position += len(tokens)
        return jnp.asarray(np.asarray(tokens, np.int32)), jnp.asarray(rows)


def greedy(session: Session, logits: FloatRows, count: int) -> Iterator[tuple[int, float]]:
    """`count` tokens of the temperature-0 continuation, each with its margin: top-1 minus top-2 logit.

    Shapes: logits [v], of the last token fed. The lowest id wins a tie. EOS does not stop it: a fixed count compares.
    """
    for step in range(count):
        token = int(np.argmax(logits))
        second, first = np.partition(logits, -2)[-2:]
        yield token, float(first - second)
        if step + 1 < count:
            logits = session.feed([token])[-1]

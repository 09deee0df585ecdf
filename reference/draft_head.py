"""The MTP head: one layer that guesses tokens before the trunk computes them, and decoding that checks its guesses.

At position p+1 the head takes the token there and the trunk's residual at p, all streams of it, as it is after the last
layer and before the mix that logits are read from. Its streams give a guess at token p+2. A further guess takes the
head's own streams in the place of the trunk's, and the guessed token. It has keys and values of its own at every
position: whatever the trunk is fed, the head is fed too, paired with the residual of the position before.

The ids are those of plain greedy decoding, whatever the head says: every guess is compared with the trunk's own choice.
Here the trunk is fed guess by guess and stops at the first wrong one, so that nothing has to be taken back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from model_file.config import ModelConfig
from reference.attention import AttentionState, fresh_attention_state
from reference.decode import Session
from reference.layers import rms_norm
from reference.model import read_out, run_layer
from reference.parameters import DraftHead, Parameters
from reference.shapes import Array, Float, Int, Record, ignore


def draft_step(
    parameters: Parameters,
    head: DraftHead,
    config: ModelConfig,
    tokens: Int[Array, "t"],
    residuals: Float[Array, "t s d"],
    start: Int[Array, ""],
    state: AttentionState,
    record: Record = ignore,
) -> tuple[Float[Array, "t v"], Float[Array, "t s d"], AttentionState]:
    """Logits of the token after each of these, the head's streams, and its keys and values.

    Shapes: tokens stand at positions start, start+1, ...; each residual is of the position before its token, zeros
    before the first.
    Source: the MTP (NextN) block as llama.cpp runs it.
    """
    with jax.default_matmul_precision("highest"):
        token = rms_norm(parameters.token_embd[tokens], config.rms_eps) * head.enorm
        before = rms_norm(residuals, config.rms_eps) * head.hnorm
        joined = jnp.concatenate([jnp.broadcast_to(token[:, None, :], before.shape), before], axis=-1)
        streams = joined @ head.eh_proj.T
        streams, after = run_layer(head.layer, streams, start, state, config.head_ratio, config, record)
    assert isinstance(after, AttentionState)
    return read_out(parameters, head.hc_head, streams, config), streams, after


_compiled_step = partial(jax.jit, static_argnames=("config",))(draft_step)


class Drafter:
    """The head beside a session. It holds every position that the session was fed, by `follow`."""

    def __init__(self, parameters: Parameters, head: DraftHead, config: ModelConfig, room: int) -> None:
        self.config, self.position = config, 0
        self.drafted = self.accepted = 0
        self._state = fresh_attention_state(config, room)
        self._residual = jnp.zeros((1, config.streams, config.width), jnp.float32)
        self._step = partial(_compiled_step, parameters, head, config)

    def follow(self, tokens: Sequence[int], streams: Float[Array, "t s d"]) -> None:
        """Take in tokens that the trunk was fed, with the residuals that it gave. The last one waits for its token."""
        residuals = jnp.concatenate([self._residual, streams[:-1]])
        ids = jnp.asarray(np.asarray(tokens, np.int32))
        _, _, self._state = self._step(ids, residuals, jnp.int32(self.position), self._state)
        self._residual = streams[-1:]
        self.position += len(tokens)

    def draft(self, token: int, count: int) -> list[tuple[int, float]]:
        """Guesses at the `count` tokens after `token`, each with its probability; nothing of it is kept."""
        guesses: list[tuple[int, float]] = []
        residual, state = self._residual, self._state
        for place in range(count):
            ids = jnp.asarray(np.asarray([token], np.int32))
            logits, residual, state = self._step(ids, residual, jnp.int32(self.position + place), state)
            token = int(np.argmax(logits[0]))
            guesses.append((token, float(jax.nn.softmax(logits[0])[token])))
        return guesses


def greedy_with_drafts(
    session: Session, drafter: Drafter, logits: npt.NDArray[np.float32], count: int, most: int
) -> Iterator[int]:
    """`count` tokens of the temperature-0 continuation, at most `most` guesses before each check of them.

    Shapes: logits [v], of the last token fed. With r tokens still to be chosen after one that is known, min(most, r-1)
    are guessed, all of them even when an earlier one is wrong: `drafter.drafted` and `.accepted` count as llama-server.
    """
    token = int(np.argmax(logits))
    yield token
    left = count - 1
    while left > 0:
        guesses = [guess for guess, _ in drafter.draft(token, min(most, left - 1))]
        drafter.drafted += len(guesses)
        for guess in [*guesses, None]:
            streams = session.feed_streams([token])
            drafter.follow([token], streams)
            token = int(np.argmax(session.logits_of(streams)[-1]))
            yield token
            left -= 1
            if token != guess:
                break
            drafter.accepted += 1

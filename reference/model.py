"""The whole model: from token ids and their table rows to logits, with every bit of state in the open.

Feeding a sequence in any split gives the same logits: all that one chunk leaves to the next is in `State`.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from model_file.config import ModelConfig
from reference.attention import AttentionState, attention, fresh_attention_state
from reference.delta_net import DeltaNetState, delta_net, fresh_delta_net_state
from reference.experts import experts
from reference.layers import read_streams
from reference.parameters import DeltaNet, Parameters
from reference.ple import fresh_ple_state, ple
from reference.shapes import Array, Float, Int, Record, ignore


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """What a sequence carries from chunk to chunk. The n-gram history is kept by whoever hashes (`reference.ngram`)."""

    position: Int[Array, ""]
    ple_past: Float[Array, "q sd"]
    mixers: tuple[DeltaNetState | AttentionState, ...]


def fresh_state(config: ModelConfig, room: int) -> State:
    """The state before a sequence's first token, with room for `room` positions."""
    return State(
        position=jnp.zeros((), jnp.int32),
        ple_past=fresh_ple_state(config),
        mixers=tuple(
            fresh_delta_net_state(config) if linear else fresh_attention_state(config, room)
            for linear in config.linear_layers
        ),
    )


def forward(
    parameters: Parameters,
    config: ModelConfig,
    tokens: Int[Array, "t"],
    rows: Float[Array, "t ne"],
    state: State,
    record: Record = ignore,
) -> tuple[Float[Array, "t v"], State]:
    """Logits at every position of a chunk, and the state after it.

    Shapes: tokens [t], their PLE rows [t, n*e] in head order -> logits float32 [t, v].
    record: called with every named intermediate, for bisecting a difference.
    The caller sees to it that position + t fits the room of the state.
    """
    with jax.default_matmul_precision("highest"):
        embedded = parameters.token_embd[tokens]
        streams = jnp.repeat(embedded[:, None, :], config.streams, axis=1)
        ple_past, mixers = state.ple_past, []
        for number, (layer, mixer_state) in enumerate(zip(parameters.layers, state.mixers, strict=True)):
            note = _under(record, f"blk.{number}.")
            if layer.ple is not None:
                added, ple_past = ple(layer.ple, rows, streams, ple_past, config, note)
                note("ple", added)
                streams = streams + added

            x, inject = read_streams(layer.hc_attn, streams, config)
            if isinstance(layer.mixer, DeltaNet):
                assert isinstance(mixer_state, DeltaNetState)
                mixed, mixer_state = delta_net(layer.mixer, x, mixer_state, config, note)
            else:
                assert isinstance(mixer_state, AttentionState)
                ratio = config.compress_ratios[number]
                mixed, mixer_state = attention(layer.mixer, x, state.position, mixer_state, ratio, config, note)
            note("mixer", mixed)
            streams = streams + inject[:, :, None] * mixed[:, None, :]
            mixers.append(mixer_state)

            x, inject = read_streams(layer.hc_ffn, streams, config)
            fed = experts(layer.experts, x, config, note)
            note("experts", fed)
            streams = streams + inject[:, :, None] * fed[:, None, :]
            note("streams", streams)
        x, _ = read_streams(parameters.output_hc, streams, config)
        logits = x @ parameters.output.T
    return logits, State(state.position + tokens.shape[0], ple_past, tuple(mixers))


def _under(record: Record, prefix: str) -> Record:
    return lambda name, value: record(prefix + name, value)

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
from reference.parameters import DeltaNet, HyperConnection, Layer, Parameters
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
    streams, state = trunk(parameters, config, tokens, rows, state, record)
    return read_out(parameters, parameters.output_hc, streams, config), state


def read_out(
    parameters: Parameters, connection: HyperConnection, streams: Float[Array, "t s d"], config: ModelConfig
) -> Float[Array, "t v"]:
    """Logits of residual streams, mixed by the connection of whoever they are of: the trunk or the draft head."""
    with jax.default_matmul_precision("highest"):
        x, _ = read_streams(connection, streams, config)
        return x @ parameters.output.T


def trunk(
    parameters: Parameters,
    config: ModelConfig,
    tokens: Int[Array, "t"],
    rows: Float[Array, "t ne"],
    state: State,
    record: Record = ignore,
) -> tuple[Float[Array, "t s d"], State]:
    """The residual streams after the last layer, which logits are read from, and the state after the chunk."""
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

            ratio = config.compress_ratios[number]
            streams, mixer_state = run_layer(layer, streams, state.position, mixer_state, ratio, config, note)
            mixers.append(mixer_state)
    return streams, State(state.position + tokens.shape[0], ple_past, tuple(mixers))


def run_layer(
    layer: Layer,
    streams: Float[Array, "t s d"],
    start: Int[Array, ""],
    mixer_state: DeltaNetState | AttentionState,
    ratio: int,
    config: ModelConfig,
    record: Record,
) -> tuple[Float[Array, "t s d"], DeltaNetState | AttentionState]:
    """A layer's mixer and its experts, each reading the streams and writing back to them."""
    x, inject = read_streams(layer.hc_attn, streams, config)
    if isinstance(layer.mixer, DeltaNet):
        assert isinstance(mixer_state, DeltaNetState)
        mixed, mixer_state = delta_net(layer.mixer, x, mixer_state, config, record)
    else:
        assert isinstance(mixer_state, AttentionState)
        mixed, mixer_state = attention(layer.mixer, x, start, mixer_state, ratio, config, record)
    record("mixer", mixed)
    streams = streams + inject[:, :, None] * mixed[:, None, :]

    x, inject = read_streams(layer.hc_ffn, streams, config)
    fed = experts(layer.experts, x, config, record)
    record("experts", fed)
    streams = streams + inject[:, :, None] * fed[:, None, :]
    record("streams", streams)
    return streams, mixer_state


def _under(record: Record, prefix: str) -> Record:
    return lambda name, value: record(prefix + name, value)

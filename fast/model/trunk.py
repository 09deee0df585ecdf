"""The whole model as one function to be compiled: tokens and packed rows in, logits and the next state out.

Several sequences go through together. What works on single tokens sees all tokens of all sequences as one axis; what
mixes over time sees one sequence at a time. The layers before the PLE layer are a function of their own, so that decode
can start them before the rows are there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from fast.model.attention import IndexState, attention
from fast.model.delta_net import DeltaState, delta_net
from fast.model.experts import experts
from fast.model.packed import Packed, PackedRows
from fast.model.plan import Plan
from fast.model.ple import PleState, ple_gated, ple_smoothed
from fast.model.state import LayerState, SequenceState
from fast.model.streams import normalise, read_streams, write_streams
from fast.model.weights import DeltaNet, DraftHead, HyperConnection, Layer, Ple, Weights
from reference.shapes import Array, Float, Int, Record, UInt8, ignore

States = tuple[SequenceState, ...]
Counts = Int[Array, "sequences"] | None
"""How many tokens of each sequence count; None: that is not known yet, and states are left open."""
Dequantize = Callable[[Array, int], Array]


def embed(
    embedding: Float[Array, "v d"] | PackedRows, tokens: Int[Array, "..."], plan: Plan
) -> Float[Array, "all s d"]:
    """The residual streams of all tokens of all sequences: equal copies of the embedding."""
    embedded = embedding[tokens.reshape(-1)]
    return jnp.broadcast_to(embedded[:, None, :], (embedded.shape[0], plan.config.streams, embedded.shape[1]))


def run_layers(
    layers: tuple[Layer, ...] | Mapping[int, Layer],
    numbers: range,
    streams: Float[Array, "all s d"],
    states: States,
    counts: Counts,
    plan: Plan,
    record: Record = ignore,
) -> tuple[Float[Array, "all s d"], States]:
    """Run some layers in order; the states come back with what those layers changed."""
    config = plan.config
    for number in numbers:
        layer = layers[number]
        x, inject = read_streams(layer.hc_mixer, streams, config)
        mixed, states = _mix(layer, number, x, states, counts, plan)
        record(f"blk.{number}.mixer", mixed)
        streams = write_streams(streams, inject, mixed)
        x, inject = read_streams(layer.hc_experts, streams, config)
        fed = experts(layer.experts, x, plan)
        record(f"blk.{number}.experts", fed)
        streams = write_streams(streams, inject, fed)
        record(f"blk.{number}.streams", streams)
    return streams, states


def add_ple(
    weights: Weights,
    streams: Float[Array, "all s d"],
    rows: Float[Array, "all ne"],
    states: States,
    counts: Counts,
    plan: Plan,
    record: Record = ignore,
) -> tuple[Float[Array, "all s d"], States]:
    """The PLE layer's addition to the streams of every sequence."""
    number = plan.config.ple.layer
    ple = weights.layers[number].ple
    assert ple is not None
    added, after = ple_addition(ple, streams, rows, tuple(state.recurrent.ple for state in states), counts, plan)
    record(f"blk.{number}.ple", added)
    return streams + added, tuple(
        replace(state, recurrent=replace(state.recurrent, ple=new)) for state, new in zip(states, after, strict=True)
    )


def ple_addition(
    ple: Ple,
    streams: Float[Array, "all s d"],
    rows: Float[Array, "all ne"],
    states: tuple[PleState, ...],
    counts: Counts,
    plan: Plan,
) -> tuple[Float[Array, "all s d"], tuple[PleState, ...]]:
    """What the rows add to the streams of all tokens, and what the sequences' convolutions keep."""
    gated = ple_gated(ple, rows, streams, plan)
    pieces, after = [], []
    for index, (state, piece) in enumerate(zip(states, jnp.split(gated, len(states)), strict=True)):
        added, state = ple_smoothed(ple, piece, state, _of(counts, index), plan)
        pieces.append(added)
        after.append(state)
    return _joined(pieces), tuple(after)


def finish(
    weights: Weights, streams: Float[Array, "all s d"], states: States, counts: Int[Array, "sequences"], plan: Plan
) -> tuple[Float[Array, "sequences v"], States]:
    """Logits of each sequence's last token; positions move on."""
    by_sequence = streams.reshape(len(states), -1, *streams.shape[1:])
    last = jnp.maximum(counts - 1, 0)
    by_sequence = jnp.take_along_axis(by_sequence, last[:, None, None, None], axis=1)
    moved = tuple(
        replace(state, recurrent=replace(state.recurrent, position=state.recurrent.position + counts[index]))
        for index, state in enumerate(states)
    )
    return head(weights.head, weights.hc_out, by_sequence[:, 0], plan), moved


def head(
    matrix: Float[Array, "d v"] | Packed, connection: HyperConnection, streams: Float[Array, "all s d"], plan: Plan
) -> Float[Array, "all v"]:
    """Logits of every token, mixed by the connection of whoever the streams are of: the trunk or the draft head."""
    x, _ = read_streams(connection, streams, plan.config)
    return x @ matrix


def forward(
    weights: Weights,
    tokens: Int[Array, "sequences t"],
    packed: UInt8[Array, "rows row_bytes"],
    states: States,
    counts: Int[Array, "sequences"],
    plan: Plan,
    dequantize: Dequantize,
    record: Record = ignore,
) -> tuple[Float[Array, "sequences v"], Float[Array, "all s d"], States]:
    """All of it: last logits, the streams of all tokens (for `head`, where all logits are asked for), next states.

    Of each sequence's tokens the first `counts` are real, the rest is padding and leaves no trace.
    """
    streams, states = run_trunk(weights, tokens, packed, states, counts, plan, dequantize, record)
    logits, states = finish(weights, streams, states, counts, plan)
    return logits, streams, states


def run_trunk(
    weights: Weights,
    tokens: Int[Array, "sequences t"],
    packed: UInt8[Array, "rows row_bytes"],
    states: States,
    counts: Counts,
    plan: Plan,
    dequantize: Dequantize,
    record: Record = ignore,
) -> tuple[Float[Array, "all s d"], States]:
    """All layers, and the draft head, where there is one, following them; positions stand where they stood.

    Without counts the states are left open, for `settled`.
    """
    layer = plan.config.ple.layer
    streams = embed(weights.embedding, tokens, plan)
    streams, states = run_layers(weights.layers, range(layer), streams, states, counts, plan, record)
    rows = dequantize(packed, plan.table_type).reshape(streams.shape[0], -1)
    streams, states = add_ple(weights, streams, rows, states, counts, plan, record)
    streams, states = run_layers(
        weights.layers, range(layer, plan.config.layers), streams, states, counts, plan, record
    )
    if weights.draft is not None:
        states = follow(weights.embedding, weights.draft, tokens, streams, states, counts, plan)
    return streams, states


def follow(
    embedding: Float[Array, "v d"] | PackedRows,
    draft: DraftHead,
    tokens: Int[Array, "sequences t"],
    streams: Float[Array, "all s d"],
    states: States,
    counts: Counts,
    plan: Plan,
) -> States:
    """The draft head takes in what the trunk was fed; the last residual waits for the next token.

    Only its keys and values are kept, so that the compiler leaves out all that comes after them.
    """
    wholes = []
    for state, piece in zip(states, jnp.split(streams, len(states)), strict=True):
        assert state.recurrent.residual is not None
        wholes.append(jnp.concatenate([state.recurrent.residual, piece]))
    before = _joined([whole[:-1] for whole in wholes])
    _, states = run_draft_head(embedding, draft, tokens, before, states, counts, plan)
    after = []
    for index, (state, whole) in enumerate(zip(states, wholes, strict=True)):
        kept = whole if counts is None else jax.lax.dynamic_slice_in_dim(whole, counts[index], 1)
        after.append(replace(state, recurrent=replace(state.recurrent, residual=kept)))
    return tuple(after)


def run_draft_head(
    embedding: Float[Array, "v d"] | PackedRows,
    draft: DraftHead,
    tokens: Int[Array, "sequences t"],
    residuals: Float[Array, "all s d"],
    states: States,
    counts: Counts,
    plan: Plan,
) -> tuple[Float[Array, "all s d"], States]:
    """The head's streams at these tokens, each with the residual of the position before."""
    config = plan.config
    token = normalise(embedding[tokens.reshape(-1)], config.rms_eps) * draft.enorm
    before = normalise(residuals, config.rms_eps) * draft.hnorm
    joined = (token @ draft.from_token)[:, None, :] + before @ draft.from_residual
    numbers = range(config.layers, config.layers + 1)
    return run_layers({config.layers: draft.layer}, numbers, joined, states, counts, plan)


def _mix(
    layer: Layer, number: int, x: Float[Array, "all d"], states: States, counts: Counts, plan: Plan
) -> tuple[Float[Array, "all d"], States]:
    """The token mixer of one layer."""
    own = tuple(state.of_layer(number, plan) for state in states)
    starts = tuple(state.recurrent.position for state in states)
    out, after = mix(layer, x, own, starts, counts, plan.layers[number][0], plan)
    return out, tuple(state.with_layer(number, plan, new) for state, new in zip(states, after, strict=True))


def mix(
    layer: Layer,
    x: Float[Array, "all d"],
    states: tuple[LayerState, ...],
    starts: tuple[Int[Array, ""], ...],
    counts: Counts,
    ratio: int,
    plan: Plan,
) -> tuple[Float[Array, "all d"], tuple[LayerState, ...]]:
    """A layer's token mixer, sequence by sequence between its two projections.

    starts: positions of the sequences' first tokens here. ratio: tokens of a block of its attention, 0 where dense.
    """
    projected = jnp.split(x @ layer.mixer.project, len(states))
    outs, after = [], []
    for index, state in enumerate(states):
        mixer, cache = state.mixer, state.cache
        if isinstance(layer.mixer, DeltaNet):
            assert isinstance(mixer, DeltaState)
            out, mixer = delta_net(layer.mixer, projected[index], mixer, _of(counts, index), plan)
        else:
            assert isinstance(mixer, IndexState) and cache is not None
            start, count = starts[index], _of(counts, index)
            out, mixer, cache = attention(layer.mixer, projected[index], start, count, mixer, cache, ratio, plan)
        outs.append(out)
        after.append(LayerState(mixer, cache))
    return _joined(outs) @ layer.mixer.out, tuple(after)


def _of(counts: Counts, index: int) -> Int[Array, ""] | None:
    return None if counts is None else counts[index]


def _joined(pieces: list[Array]) -> Array:
    return pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)

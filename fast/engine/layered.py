"""Steps of a model whose routed experts are read when they are chosen: layer by layer, the host between two programs.

Every layer is the same few programs, so a model of any depth compiles as fast as one of two layers.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from fast.engine.chunks import Chunk, PackedRows
from fast.engine.expert_store import ExpertShape, ExpertStore, Slots
from fast.engine.programs import OPTIONS, Outcome, dequantize, marked, outcome_of
from fast.engine.step import DeviceStep, wait_for
from fast.engine.timings import seconds_compiled
from fast.model.experts import Routed, route
from fast.model.packed import PackedMatrix
from fast.model.packing import Packed, pack
from fast.model.plan import Plan
from fast.model.ple import PleState
from fast.model.state import LayerState, SequenceState
from fast.model.streams import read_streams, write_streams
from fast.model.trunk import States, embed, head, mix, ple_addition
from fast.model.weights import Weights
from reference.shapes import Array, Float, Int, Record, ignore

GROUP_TILES = 32  # tiles of tokens, and so at most as many experts, that go through together
LONGEST_TILE = 64


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BeforeExperts:
    """A layer up to its routed experts: what they take, and what is done with their sum."""

    mixed: Float[Array, "all d"]
    streams: Float[Array, "all s d"]
    x: Float[Array, "all d"]
    inject: Float[Array, "all s"]
    routed: Routed


@dataclass(frozen=True)
class Group:
    """Tiles of tokens that are multiplied by one expert each, the tiles of one expert neighbours.

    Shapes: experts int64 [n] are different, and place int32 [tiles] says which of them is a tile's; token_of int32 and
    shares float32 [tiles, tile]; of the tiles the first `count` are there.
    """

    experts: npt.NDArray[np.int64]
    place: npt.NDArray[np.int64]
    token_of: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float32]
    count: int


class LayeredStep(DeviceStep):
    """A step in pieces. While a group of experts computes, the next one is read.

    Nothing overlaps the first group of a layer: which experts it needs is known when the layer's mixer is through.
    """

    def __init__(self, weights: Weights, plan: Plan, name: str, store: ExpertStore) -> None:
        super().__init__(weights, plan, name)
        self.store = store
        self._embedding = pack(weights.embedding)
        self._layers = [pack(replace(layer, ple=None)) for layer in weights.layers]
        self._ple = pack(weights.layers[plan.config.ple.layer].ple)
        self._ends = pack((weights.head, weights.hc_out))
        self._of_thread = threading.local()
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="experts")

    def advance(self, states: States, chunk: Chunk) -> tuple[Outcome, Array, States]:
        """One step of every sequence; the streams are for `logits`."""
        return self._advance(states, chunk.tokens, chunk.packed, chunk.counts, ignore)

    def advance_recorded(self, states: States, chunk: Chunk) -> tuple[Outcome, Array, States, dict[str, Array]]:
        """As `advance`, with every named intermediate."""
        named: dict[str, Array] = {}
        return *self._advance(states, chunk.tokens, chunk.packed, chunk.counts, named.__setitem__), named

    def advance_token(self, token: int, packed: PackedRows, state: SequenceState) -> tuple[Outcome, SequenceState]:
        """One token of one sequence."""
        tokens, one = np.array([[token]], np.int32), np.ones(1, np.int32)
        outcome, _, (state,) = self._advance((state,), tokens, packed, one, ignore)
        return outcome, state

    def logits(self, streams: Array) -> Array:
        """Logits [sequences * t, v] of all tokens of a step."""
        return _logits(self._ends, streams, self.plan)

    @property
    def experts_bytes(self) -> int:
        """Memory of the experts that were read last."""
        return self.store.cache_bytes

    def read_experts(self, mode: str) -> None:
        """Read experts in this access mode; between two steps."""
        if mode != self.store.mode:
            self.store.use(mode)

    def count_compilations(self, before: int, started: float) -> float:
        """As of other steps; this one's results were waited for, so its seconds are the compiler's own."""
        super().count_compilations(before, started)
        return seconds_compiled() - float(self._of_thread.compiled_before)

    def close(self) -> None:
        """End the reading thread and the store."""
        self._reading.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    def _advance(
        self, states: States, tokens: Any, packed: PackedRows, counts: npt.NDArray[np.int32], record: Record
    ) -> tuple[Outcome, Array, States]:
        self._of_thread.compiled_before = seconds_compiled()
        plan, device_counts = self.plan, jnp.asarray(counts)
        starts = tuple(state.recurrent.position for state in states)
        real = (np.arange(tokens.shape[1]) < counts[:, None]).reshape(-1)
        streams = _embed(self._embedding, tokens, plan)
        for number, (ratio, _) in enumerate(plan.layers):
            if number == plan.config.ple.layer:
                past = tuple(state.recurrent.ple for state in states)
                added, streams, past = _add_ple(self._ple, streams, packed, past, device_counts, plan)
                record(f"blk.{number}.ple", added)
                states = tuple(
                    replace(state, recurrent=replace(state.recurrent, ple=new))
                    for state, new in zip(states, past, strict=True)
                )
            own = tuple(state.of_layer(number, plan) for state in states)
            before, own = _until_experts(self._layers[number], streams, own, starts, device_counts, ratio, plan)
            states = tuple(state.with_layer(number, plan, new) for state, new in zip(states, own, strict=True))
            fed, streams = _with_experts(before, self._routed(number, before, real))
            record(f"blk.{number}.mixer", before.mixed)
            record(f"blk.{number}.experts", fed)
            record(f"blk.{number}.streams", streams)
        outcome, positions = _finish(self._ends, streams, starts, device_counts, plan)
        moved = tuple(
            replace(state, recurrent=replace(state.recurrent, position=position))
            for state, position in zip(states, positions, strict=True)
        )
        return outcome, streams, moved

    def _routed(self, layer: int, before: BeforeExperts, real: npt.NDArray[np.bool_]) -> Array:
        """What the chosen experts give all tokens [all, d]; padding asks for none and gets zeros."""
        total = jnp.zeros_like(before.x)
        chosen, shares = np.asarray(before.routed.chosen), np.asarray(before.routed.shares)
        groups = list(grouped(chosen, shares, real, self.plan.config.experts, self.store.group))
        if not groups:  # padding alone, which compiles
            none = nothing(chosen.shape[0], chosen.shape[1], self.plan.config.experts)
            return self._add(layer, total, before.x, none, np.zeros(1, np.int32))
        reading = self._take(layer, groups[0], np.empty(0, np.int32))
        for number, group in enumerate(groups):
            asked = perf_counter()
            slots = reading.result()
            self.store.counters.wait_s += perf_counter() - asked
            wait_for(total)  # the group before: its slots may be read to again
            if number + 1 < len(groups):
                reading = self._take(layer, groups[number + 1], slots)
            total = self._add(layer, total, before.x, group, slots)
        wait_for(total)  # the slots are free when the next layer reads
        return total

    def _add(self, layer: int, total: Array, x: Array, group: Group, slots: Slots) -> Array:
        scales = self.store.scales(layer, group.experts)[group.place]
        return _add_experts(
            total, x, self.store.device(layer), slots[group.place], scales, group.token_of, group.shares,
            np.int32(group.count), self.store.shape(layer), self.plan,
        )  # fmt: skip

    def _take(self, layer: int, group: Group, busy: Slots) -> Future[Slots]:
        return self._reading.submit(self.store.take, layer, group.experts, busy)


def grouped(
    chosen: npt.NDArray[np.int32], shares: npt.NDArray[np.float32], real: npt.NDArray[np.bool_], number: int, most: int
) -> Iterator[Group]:
    """The (token, expert) pairs of real tokens, sorted by expert, in tiles of one expert each, and these in groups.

    Shapes: chosen and shares [t, u], real [t]. number: of all experts. most: tiles, and so experts, of a group, whose
    arrays are longer.
    """
    empty = nothing(chosen.shape[0], chosen.shape[1], number)
    width, tile = empty.shares.shape
    tokens = np.repeat(np.flatnonzero(real), chosen.shape[1])
    flat, flat_shares = chosen[real].reshape(-1).astype(np.int64), shares[real].reshape(-1)
    order = np.argsort(flat, kind="stable")
    experts, first, runs = np.unique(flat[order], return_index=True, return_counts=True)
    tiles_of = -(-runs // tile)
    expert_of = np.repeat(np.arange(experts.size), tiles_of)
    first_tile = np.repeat(np.cumsum(tiles_of) - tiles_of, tiles_of)
    begin = np.repeat(first, tiles_of) + tile * (np.arange(expert_of.size) - first_tile)
    end = np.minimum(begin + tile, np.repeat(first + runs, tiles_of))
    for start in range(0, expert_of.size, min(most, width)):
        some = slice(start, start + min(most, width))
        places, place = np.unique(expert_of[some], return_inverse=True)
        within = begin[some][:, None] + np.arange(tile)
        there = within < end[some][:, None]
        pair = order[np.where(there, within, 0)]
        token_of, share, padded = empty.token_of.copy(), empty.shares.copy(), empty.place.copy()
        token_of[: len(pair)] = np.where(there, tokens[pair], 0)
        share[: len(pair)] = np.where(there, flat_shares[pair], 0)
        padded[: place.size] = place
        yield Group(experts[places], padded, token_of, share, place.size)


def nothing(count: int, used: int, number: int) -> Group:
    """A group without a tile, of `count` tokens that choose `used` of `number` experts each.

    A tile is twice as long as an expert's run is on average, 1 to LONGEST_TILE. All groups of so many tokens have its
    shape, whatever they hold: one program, which rounds in one way.
    """
    tile = 1 if count == 1 else min(LONGEST_TILE, max(8, 1 << (count * used // number).bit_length()))
    width = used if count == 1 else GROUP_TILES
    shape = (width, tile)
    return Group(
        np.zeros(1, np.int64), np.zeros(width, np.int64), np.zeros(shape, np.int32), np.zeros(shape, np.float32), 0
    )


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def _embed(packed_weights: Packed, tokens: Array, plan: Plan) -> Float[Array, "all s d"]:
    return embed(packed_weights.unpack(), tokens, plan)


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def _add_ple(
    packed_weights: Packed, streams: Array, packed: Array, states: tuple[PleState, ...], counts: Array, plan: Plan
) -> tuple[Array, Array, tuple[PleState, ...]]:
    with jax.default_matmul_precision(plan.precision):
        rows = dequantize(packed, plan.table_type).reshape(streams.shape[0], -1)
        added, states = ple_addition(packed_weights.unpack(), streams, rows, states, counts, plan)
        return added, streams + added, states


@partial(jax.jit, static_argnames=("ratio", "plan"), donate_argnames=("states",), compiler_options=OPTIONS)
def _until_experts(
    packed_weights: Packed,
    streams: Array,
    states: tuple[LayerState, ...],
    starts: tuple[Int[Array, ""], ...],
    counts: Array,
    ratio: int,
    plan: Plan,
) -> tuple[BeforeExperts, tuple[LayerState, ...]]:
    layer = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        x, inject = read_streams(layer.hc_mixer, streams, plan.config)
        mixed, states = mix(layer, x, states, starts, counts, ratio, plan)
        streams = write_streams(streams, inject, mixed)
        x, inject = read_streams(layer.hc_experts, streams, plan.config)
        assert inject is not None
        return BeforeExperts(mixed, streams, x, inject, route(layer.experts, x, plan)), states


@partial(jax.jit, static_argnames=("shape", "plan"), donate_argnames=("total",), compiler_options=OPTIONS)
def _add_experts(
    total: Float[Array, "all d"],
    x: Float[Array, "all d"],
    memory: tuple[tuple[Array, ...], ...],
    slots: Int[Array, "tiles"],
    scales: Float[Array, "tiles 3"],
    token_of: Int[Array, "tiles tile"],
    shares: Float[Array, "tiles tile"],
    count: Int[Array, ""],
    shape: ExpertShape,
    plan: Plan,
) -> Float[Array, "all d"]:
    """Add what a group's tiles give, one after the other: every expert is unpacked once and never stored unpacked."""
    outs = (plan.config.expert_width, plan.config.expert_width, plan.config.width)

    def matrix(part: int, tile: Array) -> PackedMatrix:
        parts = tuple(lax.dynamic_index_in_dim(each, slots[tile], keepdims=False) for each in memory[part])
        return PackedMatrix(parts, None, outs[part], shape.types[part])

    def add(tile: Array, total: Array) -> Array:
        rows = x[token_of[tile]]
        gate, up = (rows @ matrix(part, tile) * scales[tile, part] for part in (0, 1))
        out = (jax.nn.silu(gate) * up) @ matrix(2, tile) * scales[tile, 2]
        share = shares[tile][:, None]
        return total.at[token_of[tile]].add(jnp.where(share > 0, share * out, 0))

    with jax.default_matmul_precision(plan.precision):
        return lax.fori_loop(0, count, add, total)


@partial(jax.jit, compiler_options=OPTIONS)
def _with_experts(before: BeforeExperts, routed: Array) -> tuple[Array, Array]:
    fed = routed + before.routed.shared
    return fed, write_streams(before.streams, before.inject, fed)


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def _finish(
    packed_weights: Packed, streams: Array, starts: tuple[Array, ...], counts: Array, plan: Plan
) -> tuple[Outcome, tuple[Array, ...]]:
    matrix, connection = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        by_sequence = streams.reshape(counts.shape[0], -1, *streams.shape[1:])
        last = jnp.maximum(counts - 1, 0)
        streams_of_last = jnp.take_along_axis(by_sequence, last[:, None, None, None], axis=1)[:, 0]
        outcome = outcome_of(head(matrix, connection, streams_of_last, plan))
        positions = tuple(start + counts[index] for index, start in enumerate(starts))
        return outcome if by_sequence.shape[1] == 1 else marked(outcome, streams, counts), positions


@partial(jax.jit, static_argnames=("plan",), compiler_options=OPTIONS)
def _logits(packed_weights: Packed, streams: Array, plan: Plan) -> Array:
    matrix, connection = packed_weights.unpack()
    with jax.default_matmul_precision(plan.precision):
        return head(matrix, connection, streams, plan)

"""Routed experts read from the file when they are chosen, kept in a bounded ring of memory.

An expert is a row: the gate, up and down matrices of all experts of all layers are three tables, which any access mode
reads. What is read is laid out for the product in its slot; the ring gives out its slots one after the other, so that
the oldest go first.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from time import perf_counter
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType

from fast.model.packed_product import Bytes, lay_side_by_side, part_shapes
from fast.rows import RowReader, RowSettings, Segment, Table, open_rows
from fast.rows.table import Ids
from model_file.config import ModelConfig
from model_file.gguf_file import GgufFile
from model_file.inventory import scale_of
from model_file.shard import TensorInfo
from model_file.tensors import FUSED
from model_file.weights import dequantized

MATRICES = ("gate", "up", "down")
_AT_ONCE = 16  # experts that are read at a time
_SETTINGS = RowSettings(slice_reads=1, metering="none")  # an expert is a megabyte: every worker reads one
Slots = npt.NDArray[np.int32]


class TooLittleMemory(Exception):
    """Two experts find no room; `missing` bytes would be enough."""

    def __init__(self, missing: int) -> None:
        super().__init__(f"{missing} bytes are missing")
        self.missing = missing


@dataclass(frozen=True)
class ExpertShape:
    """How one expert of a layer lies in its file; layers that agree share a ring.

    types, outs, row_bytes: of gate, up and down the type, the rows and the bytes. fused: gate and up are one tensor, an
    expert's gate before its up.
    """

    types: tuple[int, int, int]
    outs: tuple[int, int, int]
    row_bytes: tuple[int, int, int]
    fused: bool

    @property
    def parts(self) -> list[list[tuple[int, ...]]]:
        """Shapes of what is kept of gate, up and down."""
        return [
            part_shapes(out, size // out, GGMLQuantizationType(kind))
            for kind, out, size in zip(self.types, self.outs, self.row_bytes, strict=True)
        ]

    @property
    def size_bytes(self) -> int:
        """Bytes that are kept of one expert."""
        return sum(prod(shape) for shapes in self.parts for shape in shapes)


@dataclass
class ExpertCounters:
    """What an engine's experts took so far. Units: bytes, seconds. wait_s: of that, nothing was computed meanwhile."""

    asked: int = 0
    read: int = 0
    bytes_read: int = 0
    read_s: float = 0.0
    wait_s: float = 0.0


@dataclass
class _Ring:
    """Slots of equal size for the experts of the layers of one shape, and the tables they come from."""

    shape: ExpertShape
    layers: tuple[int, ...]
    tables: tuple[Table, Table, Table]
    slots: int = 0
    readers: list[RowReader] = field(default_factory=list)
    memory: list[list[Bytes]] = field(default_factory=list)
    device: tuple[tuple[Any, ...], ...] = ()
    slot_of: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    held: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    hand: int = 0


class ExpertStore:
    """The routed experts of an open model, read in an access mode into `cache_bytes` of memory.

    `take` may be called from one thread at a time. Close it when the engine is done.
    Raises: TooLittleMemory; InputError for a mode that is unknown or cannot run.
    """

    def __init__(self, model: GgufFile, config: ModelConfig, mode: str, cache_bytes: int) -> None:
        self.experts, self.counters = config.experts, ExpertCounters()
        self._rings = _rings(model, config)
        self._ring_of = {layer: ring for ring in self._rings for layer in ring.layers}
        self._scales = {layer: _scales(model, layer, config.experts) for layer in range(config.layers)}
        self._threads = ThreadPoolExecutor(len(MATRICES), thread_name_prefix="experts")
        self.cache_bytes = 0
        try:
            for ring, slots in zip(self._rings, _shares(self._rings, cache_bytes, self.experts), strict=True):
                _make_room(ring, slots, self.experts)
                self.cache_bytes += slots * ring.shape.size_bytes
            self.use(mode)
        except BaseException:
            self.close()
            raise

    @property
    def group(self) -> int:
        """How many different experts may be asked for at once, so that as many others stay where they are."""
        return min(ring.slots for ring in self._rings) // 2

    def use(self, mode: str) -> None:
        """Read in another access mode from now on, and forget what was read in the one before.

        Raises: InputError as `open_rows`; what was in use stays so.
        """
        readers: list[list[RowReader]] = []
        with ExitStack() as stack:
            for ring in self._rings:
                readers.append([stack.enter_context(open_rows(table, mode, _SETTINGS)) for table in ring.tables])
            stack.pop_all()
        for ring, opened in zip(self._rings, readers, strict=True):
            for reader in ring.readers:
                reader.close()
            ring.readers = opened
            ring.slot_of[:], ring.held[:] = -1, -1
        self.mode = mode

    def shape(self, layer: int) -> ExpertShape:
        """How a layer's experts are packed."""
        return self._ring_of[layer].shape

    def device(self, layer: int) -> tuple[tuple[Any, ...], ...]:
        """The ring's memory as the device sees it: of gate, up and down the parts of their product, [slots, ...]."""
        return self._ring_of[layer].device

    def scales(self, layer: int, experts: Ids) -> npt.NDArray[np.float32]:
        """What the products of gate, up and down are multiplied by [n, 3]."""
        scales = self._scales[layer]
        return np.ones((experts.size, 3), np.float32) if scales is None else scales[experts]

    def take(self, layer: int, experts: Ids, busy: Slots) -> Slots:
        """The slots of different experts of a layer, those read that are not there; `busy` slots are left alone.

        Raises: InputError as a reader's `gather`; the ring forgets what was being replaced.
        """
        started, ring = perf_counter(), self._ring_of[layer]
        ids = experts + ring.layers.index(layer) * self.experts
        slots = ring.slot_of[ids]
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            taken = _next_slots(ring, missing.size, np.concatenate([slots[slots >= 0], busy]))
            old = ring.held[taken]
            ring.slot_of[old[old >= 0]] = -1
            ring.held[taken] = -1
            self._read(ring, ids[missing], taken)
            slots[missing] = taken
            ring.slot_of[ids[missing]], ring.held[taken] = taken, ids[missing]
        self.counters.asked += experts.size
        self.counters.read += missing.size
        self.counters.bytes_read += missing.size * sum(ring.shape.row_bytes)
        self.counters.read_s += perf_counter() - started
        return slots.astype(np.int32)

    def close(self) -> None:
        """Close the readers and end the threads; the memory goes with the last array that shows it."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        for ring in self._rings:
            for reader in ring.readers:
                reader.close()

    def _read(self, ring: _Ring, ids: Ids, taken: npt.NDArray[np.int64]) -> None:
        """Read experts to slots, gate, up and down side by side."""
        tasks = []
        for matrix in range(len(MATRICES)):
            rows = ids * 2 + matrix if ring.shape.fused and matrix < 2 else ids
            tasks.append(self._threads.submit(_read_matrices, ring, matrix, rows, taken))
        errors = [error for task in tasks if (error := task.exception()) is not None]
        if errors:
            raise errors[0]


def _read_matrices(ring: _Ring, matrix: int, rows: Ids, taken: npt.NDArray[np.int64]) -> None:
    """One matrix of some experts, a few at a time, so that the bytes are still in the processor's cache."""
    shape, reader, parts = ring.shape, ring.readers[matrix], ring.memory[matrix]
    kind, out = GGMLQuantizationType(shape.types[matrix]), shape.outs[matrix]
    for start in range(0, rows.size, _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        read = reader.gather(rows[some]).reshape(-1, out, shape.row_bytes[matrix] // out)
        for number, slot in enumerate(taken[some].tolist()):
            lay_side_by_side(read[number : number + 1], kind, [part[slot : slot + 1] for part in parts])


def _make_room(ring: _Ring, slots: int, experts: int) -> None:
    ring.slots = slots
    ring.slot_of = np.full(len(ring.layers) * experts, -1, np.int64)
    ring.held = np.full(slots, -1, np.int64)
    ring.memory = [[_zeros((slots, *shape)) for shape in shapes] for shapes in ring.shape.parts]
    ring.device = tuple(tuple(_shown(part) for part in parts) for parts in ring.memory)


def _zeros(shape: tuple[int, ...]) -> Bytes:
    """Memory of this process alone, taken page by page when it is written to."""
    pages = mmap.mmap(-1, prod(shape), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8).reshape(shape)


def _next_slots(ring: _Ring, count: int, kept: Any) -> npt.NDArray[np.int64]:
    """The next slots of the ring that are not kept."""
    order = (ring.hand + np.arange(ring.slots)) % ring.slots
    free = order[~np.isin(order, kept)][:count]
    assert free.size == count, f"{count} slots asked for, {free.size} of {ring.slots} free"
    ring.hand = int(free[-1] + 1) % ring.slots
    return free


def _shown(memory: Bytes) -> Any:
    """The same memory as an array of the CPU device, of which the compiler makes no copy.

    Whoever writes to it sees to it that no program that reads those slots is still running.
    """
    return jax.dlpack.from_dlpack(memory, copy=False)


def _rings(model: GgufFile, config: ModelConfig) -> list[_Ring]:
    layers: dict[ExpertShape, list[int]] = {}
    for layer in range(config.layers):
        layers.setdefault(_shape_of(model, layer, config), []).append(layer)
    return [
        _Ring(shape, tuple(numbers), tuple(_table(model, shape, numbers, part, config) for part in range(3)))  # type: ignore[arg-type]
        for shape, numbers in layers.items()
    ]


def _tensors(model: GgufFile, layer: int) -> tuple[TensorInfo, TensorInfo, TensorInfo]:
    block = f"blk.{layer}."
    down = model.tensors[f"{block}ffn_down_exps.weight"]
    if fused := model.tensors.get(block + FUSED.name):
        return fused, fused, down
    return model.tensors[f"{block}ffn_gate_exps.weight"], model.tensors[f"{block}ffn_up_exps.weight"], down


def _shape_of(model: GgufFile, layer: int, config: ModelConfig) -> ExpertShape:
    tensors = _tensors(model, layer)
    fused = tensors[0] is tensors[1]
    gate, up, down = (tensor.size_bytes // tensor.shape[0] for tensor in tensors)
    row_bytes = (gate // 2, up // 2, down) if fused else (gate, up, down)
    types = tuple(int(tensor.type) for tensor in tensors)
    outs = (config.expert_width, config.expert_width, config.width)
    return ExpertShape(types, outs, row_bytes, fused)  # type: ignore[arg-type]


def _table(model: GgufFile, shape: ExpertShape, layers: Sequence[int], part: int, config: ModelConfig) -> Table:
    per_layer = config.experts * (2 if shape.fused and part < 2 else 1)
    tensors = [_tensors(model, layer)[part] for layer in layers]
    segments = tuple(
        Segment(tensor.path, tensor.offset_bytes, place * per_layer, per_layer) for place, tensor in enumerate(tensors)
    )
    width = config.expert_width * config.width
    name = f"experts' {MATRICES[part]} matrix"
    return Table(tensors[0].type, per_layer * len(layers), width, shape.row_bytes[part], segments, name)


def _scales(model: GgufFile, layer: int, experts: int) -> npt.NDArray[np.float32] | None:
    names = [scale_of(tensor.name) for tensor in _tensors(model, layer)]
    if not any(name in model.tensors for name in names):
        return None
    one = np.ones(experts, np.float32)
    return np.stack([dequantized(model, name) if name in model.tensors else one for name in names], axis=1)


def _shares(rings: list[_Ring], cache_bytes: int, experts: int) -> list[int]:
    """Slots of every ring: equal parts of what it could use, all of it where everything fits; at least two."""
    wanted = [max(2, len(ring.layers) * experts) for ring in rings]
    sizes = [ring.shape.size_bytes for ring in rings]
    needed, whole = 2 * sum(sizes), sum(number * size for number, size in zip(wanted, sizes, strict=True))
    if cache_bytes < needed:
        raise TooLittleMemory(needed - cache_bytes)
    share = min(1.0, (cache_bytes - needed) / max(1, whole - needed))
    return [2 + int((most - 2) * share) for most in wanted]

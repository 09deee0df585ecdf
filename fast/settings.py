"""Runtime choices of the fast path, apart from the architecture."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import lcm
from pathlib import Path

from reference.config import ModelConfig
from reference.errors import InputError

PRECISIONS = ("highest", "high", "default")
MAX_CONTEXT = 1 << 18
SPARE_BLOCKS = 16  # a full sequence's padding touches one block behind the room; 16 keep rows of the array aligned


@dataclass(frozen=True)
class EngineSettings:
    """How an engine runs a model.

    Units: counts of tokens. context: positions a sequence has room for; the caches are allocated for it at once.
    chunk: tokens computed at a time in prefill (llama.cpp's ubatch). buckets: the lengths that chunks are padded to,
    one compilation each; None: powers of four from 16 up to the chunk, and 1.
    precision: of matrix products, a name that `jax.default_matmul_precision` takes; anything but "highest" may change
    tokens, and the gate has no way to ask for it. checkpoints: states kept for going back; checkpoint_every: generated
    tokens between two of them. cache_dir: where compiled programs are kept between processes; None: nowhere.
    overlap: in decode, compute the layers before the PLE layer while its rows are read.

    Raises: InputError naming every setting that cannot be.
    """

    context: int = 4096
    chunk: int = 512
    buckets: tuple[int, ...] | None = None
    precision: str = "highest"
    checkpoints: int = 8
    checkpoint_every: int = 16
    cache_dir: Path | None = None
    overlap: bool = True

    def __post_init__(self) -> None:
        problems = [
            f"{name} is {getattr(self, name)}, expected at least 1"
            for name in ("context", "chunk", "checkpoints", "checkpoint_every")
            if getattr(self, name) < 1
        ]
        if self.precision not in PRECISIONS:
            problems.append(f"precision is {self.precision!r}, expected one of {', '.join(PRECISIONS)}")
        if self.buckets is not None and (not self.buckets or min(self.buckets) < 1):
            problems.append(f"buckets are {self.buckets}, expected lengths of at least 1")
        problems += [
            f"{name} is {getattr(self, name)}, expected at most {MAX_CONTEXT} tokens: ask for fewer"
            for name in ("context", "chunk")
            if getattr(self, name) > MAX_CONTEXT
        ]
        if problems:
            raise InputError("engine settings: " + "; ".join(problems))

    @property
    def bucket_sizes(self) -> tuple[int, ...]:
        """The lengths that are compiled, ascending: powers of two up to 16, then multiples of 16, whose parts are even.

        The first is 1, decode; the last holds a chunk.
        """
        sizes = (16, 64, 256, 1024, 4096) if self.buckets is None else self.buckets
        return tuple(sorted({_padded(size) for size in sizes if size < self.chunk} | {1, _padded(self.chunk)}))

    def bucket(self, tokens: int) -> int:
        """The smallest compiled length that holds `tokens`, at most a chunk of them."""
        return next(size for size in self.bucket_sizes if size >= tokens)


@dataclass(frozen=True, eq=False)
class Plan:
    """All that a compiled program depends on beside the shapes of its arrays; a static argument of `jit`.

    Compared by identity, and `plan_for` gives the same object for the same choices: hashing a whole configuration at
    every call takes 70 us of a decode step.

    Units: counts of tokens. room: positions of the caches, the context and one chunk more, so that a padded chunk can
    be written without clamping. delta_chunk: tokens of one matrix form of the delta net. query_tile: queries that
    attend together, which bounds the memory of scores and gathered keys. expert_tile: tokens of one
    expert computed together.
    """

    config: ModelConfig
    table_type: int
    room: int
    precision: str
    delta_chunk: int = 64
    query_tile: int = 128
    expert_tile: int = 64

    def key_blocks(self, ratio: int) -> int:
        """Columns of an index cache: the blocks of the room and spare ones, of which padding needs one."""
        return self.room // ratio + SPARE_BLOCKS if ratio else 0


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size <= 16 else -(-size // 16) * 16


def plan_for(config: ModelConfig, table_type: int, settings: EngineSettings) -> Plan:
    """The plan of an engine. The room is whole blocks of every attention layer."""
    layers = zip(config.compress_ratios, config.linear_layers, strict=True)
    unit = lcm(*(max(ratio, 1) for ratio, linear in layers if not linear))
    room = -(-(settings.context + settings.bucket_sizes[-1]) // unit) * unit
    return _the_plan(config, table_type, room, settings.precision)


@lru_cache(maxsize=256)
def _the_plan(config: ModelConfig, table_type: int, room: int, precision: str) -> Plan:
    """One object for equal choices, so that engines with the same shapes share their compiled programs."""
    return Plan(config=config, table_type=table_type, room=room, precision=precision)

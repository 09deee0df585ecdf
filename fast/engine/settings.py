"""Runtime choices of the fast path, apart from the architecture."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from pathlib import Path

from fast.model.plan import Plan, shared_plan
from model_file.config import ModelConfig
from model_file.errors import InputError
from model_file.settings_types import wrong_types

PRECISIONS = ("highest", "high", "default")
MAX_CONTEXT = 1 << 18
MAX_DRAFT = 64


@dataclass(frozen=True)
class EngineSettings:
    """How an engine runs a model.

    Units: counts of tokens. context: positions a sequence has room for; the caches are allocated for it at once.
    chunk: tokens computed at a time in prefill (llama.cpp's ubatch). buckets: the lengths that chunks are padded to,
    one compilation each; None: powers of four from 16 up to the chunk, and 1.
    precision: of matrix products, a name that `jax.default_matmul_precision` takes; anything but "highest" may change
    tokens, and the gate has no way to ask for it. checkpoints: states kept for going back; checkpoint_every: generated
    tokens between two of them. cache_dir: where compiled programs are kept between processes; None: where JAX keeps
    them, which is nowhere by default.
    overlap: in decode, compute the layers before the PLE layer while its rows are read; False: a step is one program.
    draft: tokens that the MTP head guesses before each step of `generate`, which checks them; 0: the head is not
    loaded. It changes no token. mtp: the file that holds the head, None: the model's own.
    memory_bytes: what the process may take of its own; matrices then stay packed, and routed experts are read when they
    are chosen, into what is left. None: all weights are float32 in memory. expert_mode: the access mode that reads
    experts; None: the one that reads rows, and `auto` where that holds the table in memory of its own.

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
    draft: int = 0
    mtp: str | None = None
    memory_bytes: int | None = None
    expert_mode: str | None = None

    def __post_init__(self) -> None:
        if problems := wrong_types(self):
            raise InputError("engine settings: " + "; ".join(problems))
        problems = [
            f"{name} is {getattr(self, name)}, expected at least 1"
            for name in ("context", "chunk", "checkpoints", "checkpoint_every")
            if getattr(self, name) < 1
        ]
        if not 0 <= self.draft <= MAX_DRAFT:
            problems.append(f"draft is {self.draft}, expected 0 to {MAX_DRAFT} guesses")
        if self.mtp is not None and not self.draft:
            problems.append(f"mtp is {self.mtp}, of which draft = 0 makes no use, expected 1 guess or more")
        if self.memory_bytes is not None and self.memory_bytes < 1:
            problems.append(f"memory_bytes is {self.memory_bytes}, expected at least 1")
        if self.memory_bytes is None and self.expert_mode is not None:
            problems.append(f"expert_mode is {self.expert_mode} without memory_bytes, expected a size")
        if self.memory_bytes is not None and self.draft:
            problems.append(f"draft is {self.draft} beside memory_bytes {self.memory_bytes}, expected one of them")
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


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length() if size <= 16 else -(-size // 16) * 16


def plan_for(config: ModelConfig, table_type: int, settings: EngineSettings) -> Plan:
    """The plan of an engine. The room is whole blocks of every attention layer."""
    layers = zip(config.compress_ratios, config.linear_layers, strict=True)
    ratios = [ratio for ratio, linear in layers if not linear] + [config.head_ratio] * (settings.draft > 0)
    unit = lcm(*(max(ratio, 1) for ratio in ratios))
    room = -(-(settings.context + max(settings.bucket_sizes[-1], 1 + settings.draft)) // unit) * unit
    return shared_plan(config, table_type, room, settings.precision, settings.draft, settings.memory_bytes is not None)

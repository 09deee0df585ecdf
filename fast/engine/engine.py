"""The engine: sequences of tokens on one model, fed in batches or continued greedily. What callers use is here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from types import TracebackType

import jax
import numpy as np
import numpy.typing as npt

from fast.engine.ahead import Ahead
from fast.engine.batch import BatchFeeder, keep
from fast.engine.chunks import ChunkMaker, Reader
from fast.engine.decode import Decoder
from fast.engine.drafts import DraftDecoder, Guesses
from fast.engine.environment import prepare_jax, use_program_cache
from fast.engine.expert_store import ExpertStore, TooLittleMemory
from fast.engine.layered import LayeredStep
from fast.engine.memory import memory_bytes
from fast.engine.nonfinite import not_finite
from fast.engine.sequence import FloatLogits, Sequence
from fast.engine.settings import EngineSettings, plan_for
from fast.engine.step import DeviceStep
from fast.engine.timings import Timings
from fast.model.weights import Weights, load_draft_head, load_weights
from fast.rows import MODES
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from model_file.pairing import with_draft_head
from model_file.tensors import TABLE

RECORDED_LENGTH = 64  # shorter chunks are padded to it where intermediates are recorded: one program for all of them


class FastEngine:
    """A model on the device, and the reader of its table. Sequences are made with `new_sequence`.

    planted: what it makes of the draft head's guesses is checked in their place: for tests, and for measuring what
    drafts gain at some rate of right ones.

    One thread at a time may use an engine, and only the process that made it: a fork does not take JAX's threads along.
    Raises: InputError naming everything that is wrong with the file.
    """

    def __init__(self, gguf_file: GgufFile, reader: Reader, settings: EngineSettings | None = None) -> None:
        prepare_jax()
        self._process = os.getpid()
        self.settings = settings or EngineSettings()
        self.config = config_from(gguf_file)
        if self.settings.cache_dir is not None:
            use_program_cache(str(self.settings.cache_dir))
        table = gguf_file.tensors[TABLE]
        lazy = self.settings.memory_bytes is not None
        weights, of_head = load_weights(gguf_file, self.config, packed=lazy), gguf_file
        if self.settings.draft:
            with ExitStack() as stack:
                if self.settings.mtp is not None:
                    of_head = stack.enter_context(open_gguf(Path(self.settings.mtp)))
                self.config = with_draft_head(self.config, gguf_file, of_head)
                weights = replace(weights, draft=load_draft_head(of_head, self.config))
        self.plan = plan_for(self.config, int(table.type), self.settings)
        name = gguf_file.paths[0].name
        self.step = self._layered(weights, gguf_file, reader) if lazy else DeviceStep(weights, self.plan, name)
        self.planted: Guesses | None = None
        paths = (*gguf_file.paths, *(of_head.paths if self.settings.draft else ()))
        self.identity = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths)
        self.timings = Timings()
        self.chunks = ChunkMaker(self.config, self.settings, reader, table.size_bytes // table.shape[0])
        self._feeder = BatchFeeder(self.step, self.chunks, self.timings)
        self._ahead = Ahead(self.step, self.chunks)

    def _layered(self, weights: Weights, gguf_file: GgufFile, reader: Reader) -> LayeredStep:
        assert self.settings.memory_bytes is not None
        if (backend := jax.default_backend()) != "cpu":
            raise InputError(
                f"memory_bytes is {self.settings.memory_bytes}, and JAX computes on {backend}, expected cpu: experts "
                "that are read when they are chosen are computed there; set JAX_PLATFORMS=cpu, or leave it out"
            )
        parts, name = memory_bytes(self.plan, self.settings, weights.size_bytes), gguf_file.paths[0].name
        given, taken = self.settings.memory_bytes, parts.pop("total")
        try:
            store = ExpertStore(gguf_file, self.config, self._expert_mode(reader), given - taken)
        except TooLittleMemory as error:
            needs = ", ".join(f"{part} {size >> 20:,}" for part, size in parts.items() if size >> 20)
            least = -(-(given + error.missing) >> 20)
            raise InputError(
                f"{gguf_file.paths[0]}: a memory of {given >> 20:,} MiB, expected {least:,} MiB or more ({needs}, "
                "and two experts): give more, or a shorter context or chunk"
            ) from None
        return LayeredStep(weights, self.plan, name, store)

    def _expert_mode(self, reader: Reader) -> str:
        """How experts are read beside rows that this reader reads."""
        mode = getattr(reader, "mode", "auto")
        alike = mode in MODES and not MODES[mode].own_memory
        return self.settings.expert_mode or (mode if alike else "auto")

    @property
    def compilations(self) -> int:
        """Programs that this engine had to compile, or take from the persistent cache, for a step or ahead of one."""
        return self.step.compilations

    @property
    def reader(self) -> Reader:
        """The reader of the table; it may be exchanged between two steps, which compiles and loads nothing anew."""
        return self.chunks.reader

    @reader.setter
    def reader(self, reader: Reader) -> None:
        self.chunks.reader = reader
        self.step.read_experts(self._expert_mode(reader))

    def new_sequence(self) -> Sequence:
        """An empty sequence with room for `settings.context` tokens."""
        self.check_process()
        return Sequence(self)

    def new_sequence_after(self, token: int) -> Sequence:
        """A sequence that one token was fed to."""
        sequence = self.new_sequence()
        sequence.feed([token], last_only=True)
        return sequence

    def compile_ahead(
        self,
        batches: Items[int] = (1,),
        lengths: Items[int] | None = None,
        with_logits: bool = False,
        recorded: bool = False,
    ) -> Callable[[], None]:
        """Start compiling in the background what steps of `batches` sequences need; a step that comes first waits.

        lengths: of the pieces that will be fed, None: all that the settings have; decode is compiled in any case.
        with_logits: for `feed` that is asked for all logits; recorded: for `feed_recorded`.
        Returns a function that waits until all is compiled; nobody has to call it.
        """
        self.check_process()
        shortest = self.settings.bucket(min(RECORDED_LENGTH, self.settings.chunk))
        sizes = {self.settings.bucket(size) for size in (*lengths, 1)} if lengths is not None else None
        chosen = sorted(sizes or self.settings.bucket_sizes, reverse=True)
        self._ahead.start(batches, chosen, with_logits, shortest if recorded else None)
        return self._ahead.wait

    def warm_up(self, with_logits: bool = True) -> float:
        """Compile all that single sequences need, and return the seconds it took.

        Afterwards no step of one sequence compiles anything; a batch of a new size does, once per bucket.
        """
        started = perf_counter()
        self.compile_ahead(with_logits=with_logits)()
        eos = self.config.ple.hash.eos
        for size in self.settings.bucket_sizes:
            tokens = [eos] * min(size, self.settings.context)
            for last_only in (True, False) if with_logits else (True,):
                scratch = self.new_sequence()
                scratch.feed(tokens, last_only=last_only)
        scratch.save(), scratch.fork()
        if scratch.position > 1:
            scratch.truncate(scratch.position - 1)
        self.step.measure_early_part()
        self.new_sequence_after(eos).greedy(min(2, self.settings.context - 1))
        return perf_counter() - started

    def feed_batch(self, work: Items[tuple[Sequence, Items[int]]], last_only: bool = False) -> list[FloatLogits]:
        """Feed several sequences together, each its own tokens of any number; logits as `Sequence.feed` gives them.

        Every sequence gets what it would get alone. Raises: InputError before anything is fed.
        """
        sequences = [sequence for sequence, _ in work]
        fed = [self._checked(sequence, tokens) for sequence, tokens in work]
        if len({id(sequence) for sequence in sequences}) != len(sequences):
            raise InputError("a sequence is twice in one batch, expected different ones")
        return self._feeder.feed(sequences, fed, last_only)

    def generate(self, sequence: Sequence, count: int) -> Iterator[tuple[int, float]]:
        """Greedy decoding of one sequence; see `Sequence.generate`."""
        self.check_process()
        self._check_room(sequence, count)
        if self.settings.draft:
            yield from DraftDecoder(self.step, self.chunks, self.timings, sequence, self.planted).run(count)
        else:
            yield from Decoder(self.step, self.chunks, self.timings, sequence).run(count)

    def greedy_batch(self, sequences: Items[Sequence], count: int) -> list[list[int]]:
        """The next `count` greedy tokens of several sequences together; margins go to each one's `margins`."""
        chosen: list[list[int]] = [[] for _ in sequences]
        for _ in range(count):
            nexts = [sequence.next_token() for sequence in sequences]
            self.feed_batch([(s, (token,)) for s, (token, _) in zip(sequences, nexts, strict=True)], last_only=True)
            for tokens, sequence, (token, margin) in zip(chosen, sequences, nexts, strict=True):
                tokens.append(token)
                sequence.margins.append(margin)
        return chosen

    def feed_recorded(
        self, sequence: Sequence, tokens: Items[int]
    ) -> tuple[FloatLogits, dict[str, npt.NDArray[np.generic]]]:
        """Logits of one chunk, and every intermediate under the reference's names: `blk.N.mixer`, `.experts`,
        `.streams` and `.ple`. Raises: InputError for more tokens than a chunk."""
        fed = self._checked(sequence, tokens)
        if len(fed) > self.settings.chunk:
            raise InputError(f"{len(fed)} tokens to record, expected at most a chunk of {self.settings.chunk}")
        length = self.settings.bucket(max(len(fed), min(RECORDED_LENGTH, self.settings.chunk)))
        chunk = self.chunks.make(next(self.chunks.cut([sequence.tokens], [fed])), length)
        outcome, streams, (state,), named = self.step.advance_recorded((sequence.take_state(),), chunk)
        sequence.give_state(state)
        pieces: list[list[FloatLogits]] = [[]]
        keep([sequence], chunk, outcome, self.step.logits(streams), pieces)
        if np.isnan(outcome.margins).any():
            raise not_finite(self.step, self.chunks, sequence.tokens)
        return pieces[0][0], {name: np.asarray(value)[: len(fed)] for name, value in named.items()}

    def memory(self) -> dict[str, int]:
        """Bytes by purpose; see `fast.engine.memory` for the formula."""
        return memory_bytes(self.plan, self.settings, self.step.weights_bytes, experts_bytes=self.step.experts_bytes)

    def close(self) -> None:
        """Stop the reading thread. The reader stays open: it is the caller's."""
        if os.getpid() == self._process:  # in a fork there is no such thread
            self._ahead.close()
            self._feeder.close()
            self.step.close()

    def check_process(self) -> None:
        """Raises: InputError in another process than the one that made the engine."""
        if os.getpid() != self._process:
            raise InputError(
                f"the engine was made in process {self._process} and this is process {os.getpid()}, forked from it "
                "without the threads that JAX computes in: make an engine in the process that uses it"
            )

    def __enter__(self) -> FastEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, sequence: Sequence, tokens: Items[int]) -> list[int]:
        self.check_process()
        fed = [int(token) for token in tokens]
        if not fed:
            raise InputError("no tokens to feed, expected at least one")
        wrong = next((place for place, token in enumerate(fed) if not 0 <= token < self.config.vocab), None)
        if wrong is not None:
            raise InputError(
                f"token {fed[wrong]} at place {wrong}, expected 0 to {self.config.vocab - 1}: ids of another model?"
            )
        self._check_room(sequence, len(fed))
        return fed

    def _check_room(self, sequence: Sequence, count: int) -> None:
        if sequence.engine is not self:
            raise InputError("the sequence belongs to another engine: make it with this engine's new_sequence")
        if sequence.position + count > self.settings.context:
            raise InputError(
                f"{sequence.position} tokens were fed and {count} more follow, expected at most the context of "
                f"{self.settings.context}: make the engine with a larger context"
            )

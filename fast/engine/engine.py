"""The engine: feeds sequences to the compiled programs, and reads their table rows while something else computes."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from types import TracebackType
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from fast.engine.chunks import Chunk, ChunkMaker, Reader
from fast.engine.decode import Decoder, measure_early_part, wait_for
from fast.engine.programs import Outcome, advance, advance_recorded, all_logits, early_weights
from fast.engine.sequence import FloatLogits, Sequence
from fast.engine.settings import EngineSettings, plan_for
from fast.engine.timings import Step, Timings, programs_compiled
from fast.model.packing import pack
from fast.model.weights import load_weights
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile
from model_file.tensors import TABLE


class FastEngine:
    """A model on the device, and the reader of its table. Sequences are made with `new_sequence`.

    Raises: InputError naming everything that is wrong with the file. One thread at a time may use an engine.
    """

    def __init__(self, gguf_file: GgufFile, reader: Reader, settings: EngineSettings | None = None) -> None:
        self.settings = settings or EngineSettings()
        self.config = config_from(gguf_file)
        if self.settings.cache_dir is not None:
            use_program_cache(str(self.settings.cache_dir))
        table = gguf_file.tensors[TABLE]
        self.plan = plan_for(self.config, int(table.type), self.settings)
        weights = load_weights(gguf_file, self.config)
        self.weights_bytes = weights.size_bytes
        self.weights, self.early_weights = pack(weights), early_weights(weights, self.plan)
        self.identity = tuple((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in gguf_file.paths)
        self.ratios = [
            ratio
            for ratio, linear in zip(self.config.compress_ratios, self.config.linear_layers, strict=True)
            if not linear
        ]
        self.timings = Timings()
        self.compilations = 0
        self.chunks = ChunkMaker(self.config, self.settings, reader, table.size_bytes // table.shape[0])
        self._gatherer = ThreadPoolExecutor(1, thread_name_prefix="rows")
        self.early_s = 0.0  # seconds that the layers before the PLE layer take a token, once `warm_up` has measured

    @property
    def reader(self) -> Reader:
        """The reader of the table; it may be exchanged between two steps, which compiles and loads nothing anew."""
        return self.chunks.reader

    @reader.setter
    def reader(self, reader: Reader) -> None:
        self.chunks.reader = reader

    def new_sequence(self) -> Sequence:
        """An empty sequence with room for `settings.context` tokens."""
        return Sequence(self)

    def new_sequence_after(self, token: int) -> Sequence:
        """A sequence that one token was fed to."""
        sequence = self.new_sequence()
        sequence.feed([token], last_only=True)
        return sequence

    def warm_up(self, with_logits: bool = True) -> float:
        """Compile all that single sequences need, and return the seconds it took.

        Afterwards no step of one sequence compiles anything; a batch of a new size does, once per bucket.
        """
        started = perf_counter()
        eos = self.config.ple.hash.eos
        for size in self.settings.bucket_sizes:
            tokens = [eos] * min(size, self.settings.context)
            for last_only in (True, False) if with_logits else (True,):
                scratch = self.new_sequence()
                scratch.feed(tokens, last_only=last_only)
        scratch.save(), scratch.fork()
        if scratch.position > 1:
            scratch.truncate(scratch.position - 1)
        self.early_s = measure_early_part(self)
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
        plan = self.chunks.cut([sequence.tokens for sequence in sequences], fed)
        upcoming: Future[Chunk] | None = self._gatherer.submit(self.chunks.make, next(plan))
        pieces: list[list[FloatLogits]] = [[] for _ in work]
        while upcoming is not None:
            asked = perf_counter()
            chunk = upcoming.result()
            started = perf_counter()
            outcome, logits, compile_s = self._dispatch(sequences, chunk, with_logits=not last_only)
            following = next(plan, None)
            upcoming = None if following is None else self._gatherer.submit(self.chunks.make, following)
            wait_for((outcome, logits))
            compute_s = perf_counter() - started - compile_s
            decode = chunk.tokens.shape[1] == 1
            self.timings.add(Step(chunk.total, decode, chunk.gather_s, started - asked, compute_s, compile_s))
            self._keep(sequences, chunk, outcome, logits, pieces)
        return [
            sequence.logits if last_only else np.concatenate(rows)
            for sequence, rows in zip(sequences, pieces, strict=True)
        ]

    def generate(self, sequence: Sequence, count: int) -> Iterator[tuple[int, float]]:
        """Greedy decoding of one sequence; see `Sequence.generate`."""
        self._check_room(sequence, count)
        yield from Decoder(self, sequence).run(count)

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
        chunk = self.chunks.make(next(self.chunks.cut([sequence.tokens], [fed])))
        outcome, streams, states, named = advance_recorded(
            self.weights, chunk.tokens, chunk.packed, (sequence.take_state(),), chunk.counts, self.plan
        )
        sequence.give_state(states[0])
        pieces: list[list[FloatLogits]] = [[]]
        self._keep([sequence], chunk, outcome, all_logits(self.weights, streams, self.plan), pieces)
        return pieces[0][0], {name: np.asarray(value)[: len(fed)] for name, value in named.items()}

    def memory(self) -> dict[str, int]:
        """Bytes by purpose; see `fast.engine.memory` for the formula."""
        from fast.engine.memory import memory_bytes

        return memory_bytes(self.plan, self.settings, self.weights_bytes)

    def close(self) -> None:
        """Stop the reading thread. The reader stays open: it is the caller's."""
        self._gatherer.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> FastEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(self, sequence: Sequence, tokens: Items[int]) -> list[int]:
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

    def _dispatch(
        self, sequences: Items[Sequence], chunk: Chunk, with_logits: bool
    ) -> tuple[Outcome, jax.Array | None, float]:
        """Start a step and give every sequence its next state.

        Returns the outcome, logits [sequences * t, v] of all tokens if asked for, and the seconds of compiling.
        """
        before, started = programs_compiled(), perf_counter()
        states = tuple(sequence.take_state() for sequence in sequences)
        outcome, streams, states = advance(self.weights, chunk.tokens, chunk.packed, states, chunk.counts, self.plan)
        for sequence, state in zip(sequences, states, strict=True):
            sequence.give_state(state)
        logits = all_logits(self.weights, streams, self.plan) if with_logits else None
        return outcome, logits, self.count_compilations(before, started)

    def count_compilations(self, before: int, started: float) -> float:
        compiled = programs_compiled() - before
        self.compilations += compiled
        return perf_counter() - started if compiled else 0.0

    def _keep(
        self,
        sequences: Items[Sequence],
        chunk: Chunk,
        outcome: Outcome,
        logits: jax.Array | None,
        pieces: list[list[FloatLogits]],
    ) -> None:
        """Note what a finished step means for every sequence."""
        count_all, length = chunk.tokens.shape
        by_sequence = None if logits is None else np.asarray(logits).reshape(count_all, length, -1)
        for index, sequence in enumerate(sequences):
            count = int(chunk.counts[index])
            if not count:
                continue
            if by_sequence is not None:
                pieces[index].append(by_sequence[index, :count])
            sequence.advanced(chunk.tokens[index, :count].tolist(), outcome, index, decoding=length == 1)


def use_program_cache(folder: str) -> None:
    """Keep compiled programs in `folder` for the next process; for all of JAX in this one."""
    set_option: Any = jax.config.update  # jax leaves it unannotated
    set_option("jax_compilation_cache_dir", folder)
    set_option("jax_persistent_cache_min_compile_time_secs", 0.2)
    set_option("jax_persistent_cache_min_entry_size_bytes", -1)

"""How each fault is planted: in this process, in a golden, or in a copy of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.answers.record import Golden
from harness.cases.models import model_path
from harness.faults.planting import flipped_copy, replace_function, rewrite


@dataclass
class Trial:
    """What a fault may change beside code: the modes that are run, and the goldens that are compared with."""

    case: str
    modes: list[str]
    golden: Golden
    scratch: Path
    rows_only: bool = False
    begin: Callable[[], None] = lambda: None  # called before every run: what a fault remembers must not reach the next


def flipped_bit(trial: Trial) -> None:
    """The lowest bit of byte 11 of the row that token 6, head 2 of the first prompt reads."""
    from fast.rows import locate_table
    from harness.gate.oracle import HashOracle
    from model_file.gguf_file import open_gguf

    path = model_path(trial.case)
    with open_gguf(path) as model:
        row = int(HashOracle(model).rows(trial.golden.prompts[0].ids)[6, 2])
        _, offset = locate_table(model).place(row)
    copy, _ = flipped_copy(path, trial.scratch, offset + 11)
    trial.modes = [f"mmap@{copy}"]


def stale_cache_entry(_: Trial) -> None:
    """A slot that is taken over gets the new row's tag and keeps the old row's bytes."""
    from fast.rows.cache import RowCache

    def stale(original: Any) -> Any:
        def insert(self: Any, ids: Any, slots: Any, rows: Any) -> None:
            taken = self._tags[slots] >= 0
            original(self, ids, slots, np.where(taken[:, None], self._rows[slots], rows))

        return insert

    replace_function(RowCache, "_insert", stale)


def off_by_one_row(_: Trial) -> None:
    """Reads of the file start one row too far."""
    from fast.rows.table import Table

    def one_further(original: Any) -> Any:
        return lambda self, ids: original(self, np.minimum(ids + 1, self.rows - 1))

    replace_function(Table, "offsets", one_further)


def lost_eos_reset(_: Trial) -> None:
    """A context looks through EOS into the document before."""
    from fast.engine import hashing

    rewrite(hashing, "_context", "cut | (columns[lag] == constants.eos)", "cut")


def lost_history(_: Trial) -> None:
    """Every chunk starts as if nothing had been fed before it."""
    from fast.engine.hashing import TokenHash

    replace_function(TokenHash, "many", lambda original: lambda self, tokens, _: original(self, tokens, []))


def with_multipliers(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    """Give the engine a configuration with other hash multipliers."""
    from fast.engine import engine

    def changed(original: Any) -> Any:
        def config_from(model: Any) -> Any:
            config = original(model)
            constants = replace(config.ple.hash, multipliers=change(config.ple.hash.multipliers))
            return replace(config, ple=replace(config.ple, hash=constants))

        return config_from

    replace_function(engine, "config_from", changed)


def float32_multiplier(_: Trial) -> None:
    """The multipliers pass through float32, which keeps 24 of their bits."""
    with_multipliers(lambda values: tuple(int(np.float32(value)) for value in values))


def reversed_multipliers(_: Trial) -> None:
    """The multipliers are taken oldest token first."""
    with_multipliers(lambda values: values[::-1])


def tail_block_dropped(_: Trial) -> None:
    """A query sees its best blocks and itself, not the other tokens of the unfinished block."""
    from fast.model import attention

    old = "complete[:, None] * ratio + jnp.arange(ratio) <= positions[:, None]"
    rewrite(attention, "_read_blocks", old, old.replace("<=", "=="))


def tie_rule_changed(_: Trial) -> None:
    """Of blocks that score alike the highest is kept."""
    from fast.model import attention

    old = "return jax.lax.top_k(scores, budget)[1]"
    new = "return scores.shape[1] - 1 - jax.lax.top_k(scores[:, ::-1], budget)[1]"
    rewrite(attention, "_best_blocks", old, new)


def silent_fallback(_: Trial) -> None:
    """The ring mode reads row by row with preads and says that it used its ring."""
    from fast.rows.uring import UringReader

    def by_preads(_: Any) -> Any:
        def read(self: Any, ids: Any, out: Any, counters: Any) -> None:
            segment = self.table.segments[0]
            with segment.path.open("rb", buffering=0) as file:
                for place, row in enumerate(ids.tolist()):
                    start = segment.offset_bytes + row * self.table.row_bytes
                    out[place] = np.frombuffer(os.pread(file.fileno(), self.table.row_bytes, start), np.uint8)
            counters.read_calls += 1

        return read

    replace_function(UringReader, "_read", by_preads)


def wrong_codebook(_: Trial) -> None:
    """One of the sixteen values of the table's type is off by one."""
    from fast.rows import dequantize

    values = tuple(int(value) + (place == 3) for place, value in enumerate(dequantize._IQ4_NL_VALUES))
    dequantize._IQ4_NL_VALUES = values  # type: ignore[assignment]


def sign_lost(_: Trial) -> None:
    """The PLE gate forgets the sign of the agreement."""
    from fast.model import ple

    rewrite(ple, "ple_gated", "jnp.sign(agreement) * root", "root")


def rounded_choice(_: Trial) -> None:
    """The best token is chosen from logits rounded to quarters; the logits themselves stay right."""
    import jax.numpy as jnp

    from fast.engine import programs

    def rounding(original: Any) -> Any:
        return lambda logits: original(jnp.round(logits * 4) / 4)._replace(logits=logits)

    replace_function(programs, "_outcome", rounding)


def unsteady_mode(_: Trial) -> None:
    """Every other large gather has one wrong bit."""
    from fast.rows.resident import ResidentReader

    calls = [0]

    def unsteady(original: Any) -> Any:
        def read(self: Any, ids: Any, out: Any, counters: Any) -> None:
            original(self, ids, out, counters)
            if len(ids) > 64:
                calls[0] += 1
                out[7, 5] ^= calls[0] % 2

        return read

    replace_function(ResidentReader, "_read", unsteady)


def leaking_history(trial: Trial) -> None:
    """A new request starts with the last tokens of the request before."""
    from fast.engine.chunks import ChunkMaker

    last: list[list[int]] = []

    def leaking(original: Any) -> Any:
        def cut(self: Any, before: list[list[int]], fed: list[list[int]]) -> Any:
            fresh = last and not any(before)
            yield from original(self, [list(last[0]) for _ in before] if fresh else before, fed)
            last[:] = [[*before[0], *fed[0]][-2:]]

        return cut

    replace_function(ChunkMaker, "cut", leaking)
    trial.begin = last.clear


def golden_of_another_file(trial: Trial) -> None:
    """The golden was recorded on a file with other bytes."""
    trial.golden = replace(trial.golden, model={**trial.golden.model, "sha256": "0" * 64})


def golden_of_other_rows(trial: Trial) -> None:
    """The golden's second chunk of rows was recorded from another table."""
    first, *rest = trial.golden.prompts
    digests = (first.row_digests[0], "0" * 64, *first.row_digests[2:])
    trial.golden = replace(trial.golden, prompts=(replace(first, row_digests=digests), *rest))


def rows_read_in_vain(_: Trial) -> None:
    """After an answer the engine reads the rows of one token more, and uses them for nothing."""
    from fast.engine.engine import FastEngine

    def reading_on(original: Any) -> Any:
        def greedy_batch(self: Any, sequences: Any, count: int) -> Any:
            chosen = original(self, sequences, count)
            self.reader.gather(np.zeros(len(self.config.ple.hash.sizes), np.uint64))
            return chosen

        return greedy_batch

    replace_function(FastEngine, "greedy_batch", reading_on)


def logits_wrong_between_probes(_: Trial) -> None:
    """The fourth logits of a prompt are a thousandth too large: no token is chosen from them, no golden has them."""
    from fast.engine.engine import FastEngine

    def scaling(original: Any) -> Any:
        def feed_recorded(self: Any, sequence: Any, tokens: Any) -> Any:
            first = not sequence.tokens
            logits, named = original(self, sequence, tokens)
            logits = np.array(logits)
            logits[3:4] *= 1.001 if first else 1.0
            return logits, named

        return feed_recorded

    replace_function(FastEngine, "feed_recorded", scaling)


def uncached_through_the_cache(_: Trial) -> None:
    """The mode that reads past the page cache opens the file as any other does, and says nothing."""
    from fast.rows.table_files import TableFiles

    rewrite(TableFiles, "__init__", "open_read_only(segment.path, flags)", "open_read_only(segment.path)")


def prefetch_of_one_range(_: Trial) -> None:
    """Of all page ranges of a batch only the first is advised."""
    from fast.rows.prefetch import Adviser

    replace_function(Adviser, "willneed", lambda original: lambda self, at, sizes: original(self, at[:1], sizes[:1]))


def golden_without_intermediates(trial: Trial) -> None:
    """The golden of a prompt lost what PLE layer and logits are judged by."""
    first, *rest = trial.golden.prompts
    trial.golden = replace(trial.golden, prompts=(replace(first, probes=()), *rest))

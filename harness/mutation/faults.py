"""The faults: what is planted, where it must be caught, by which check, and which words must be in its story."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.cases.models import model_path
from harness.goldens.record import Golden
from harness.mutation.planting import flipped_copy, replace_function, rewrite


@dataclass
class Trial:
    """What a fault may change beside code: the modes that are run, and the goldens that are compared with."""

    case: str
    modes: list[str]
    golden: Golden
    scratch: Path
    rows_only: bool = False
    begin: Callable[[], None] = lambda: None  # called before every run: what a fault remembers must not reach the next


@dataclass(frozen=True)
class Fault:
    """A fault, and the proof expected of the gate.

    check: which check must name it first. named: words that its story must contain. mode: what reads the rows.
    rows_only: no token is run, because the fault is in none.
    """

    name: str
    about: str
    check: str
    named: tuple[str, ...]
    plant: Callable[[Trial], None]
    case: str = "tiny-quant"
    mode: str = "resident"
    rows_only: bool = False


def _flipped_bit(trial: Trial) -> None:
    """The lowest bit of byte 11 of the row that token 6, head 2 of the first prompt reads."""
    from fast.rows import locate_table
    from harness.gate.oracle import HashOracle
    from reference.gguf_file import open_gguf

    path = model_path(trial.case)
    with open_gguf(path) as model:
        row = int(HashOracle(model).rows(trial.golden.prompts[0].ids)[6, 2])
        _, offset = locate_table(model).place(row)
    copy, _ = flipped_copy(path, trial.scratch, offset + 11)
    trial.modes = [f"mmap@{copy}"]


def _stale_cache_entry(_: Trial) -> None:
    """A slot that is taken over gets the new row's tag and keeps the old row's bytes."""
    from fast.rows.cache import RowCache

    def stale(original: Any) -> Any:
        def insert(self: Any, ids: Any, slots: Any, rows: Any) -> None:
            taken = self._tags[slots] >= 0
            original(self, ids, slots, np.where(taken[:, None], self._rows[slots], rows))

        return insert

    replace_function(RowCache, "_insert", stale)


def _off_by_one_row(_: Trial) -> None:
    """Reads of the file start one row too far."""
    from fast.rows.table import Table

    def one_further(original: Any) -> Any:
        return lambda self, ids: original(self, np.minimum(ids + 1, self.rows - 1))

    replace_function(Table, "offsets", one_further)


def _lost_eos_reset(_: Trial) -> None:
    """A context looks through EOS into the document before."""
    from reference.ngram import NgramHash

    rewrite(NgramHash, "context", "cut | (columns[lag] == self.eos)", "cut")


def _lost_history(_: Trial) -> None:
    """Every chunk starts as if nothing had been fed before it."""
    from fast.hashing import TokenHash

    replace_function(TokenHash, "many", lambda original: lambda self, tokens, _: original(self, tokens, []))


def _with_multipliers(change: Callable[[tuple[int, ...]], tuple[int, ...]]) -> None:
    """Give the engine a configuration with other hash multipliers."""
    from fast import engine

    def changed(original: Any) -> Any:
        def config_from(model: Any) -> Any:
            config = original(model)
            constants = replace(config.ple.hash, multipliers=change(config.ple.hash.multipliers))
            return replace(config, ple=replace(config.ple, hash=constants))

        return config_from

    replace_function(engine, "config_from", changed)


def _float32_multiplier(_: Trial) -> None:
    """The multipliers pass through float32, which keeps 24 of their bits."""
    _with_multipliers(lambda values: tuple(int(np.float32(value)) for value in values))


def _reversed_multipliers(_: Trial) -> None:
    """The multipliers are taken oldest token first."""
    _with_multipliers(lambda values: values[::-1])


def _tail_block_dropped(_: Trial) -> None:
    """A query sees its best blocks and itself, not the other tokens of the unfinished block."""
    from fast import attention

    old = "complete[:, None] * ratio + jnp.arange(ratio) <= positions[:, None]"
    rewrite(attention, "_read_blocks", old, old.replace("<=", "=="))


def _tie_rule_changed(_: Trial) -> None:
    """Of blocks that score alike the highest is kept."""
    from fast import attention

    old = "return jax.lax.top_k(scores, budget)[1]"
    new = "return scores.shape[1] - 1 - jax.lax.top_k(scores[:, ::-1], budget)[1]"
    rewrite(attention, "_best_blocks", old, new)


def _silent_fallback(_: Trial) -> None:
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


def _wrong_codebook(_: Trial) -> None:
    """One of the sixteen values of the table's type is off by one."""
    from fast.rows import dequantize

    values = tuple(int(value) + (place == 3) for place, value in enumerate(dequantize._IQ4_NL_VALUES))
    dequantize._IQ4_NL_VALUES = values  # type: ignore[assignment]


def _sign_lost(_: Trial) -> None:
    """The PLE gate forgets the sign of the agreement."""
    from fast import ple

    rewrite(ple, "ple_gated", "jnp.sign(agreement) * root", "root")


def _rounded_choice(_: Trial) -> None:
    """The best token is chosen from logits rounded to quarters; the logits themselves stay right."""
    import jax.numpy as jnp

    from fast import programs

    def rounding(original: Any) -> Any:
        return lambda logits: original(jnp.round(logits * 4) / 4)._replace(logits=logits)

    replace_function(programs, "_outcome", rounding)


def _unsteady_mode(_: Trial) -> None:
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


def _leaking_history(trial: Trial) -> None:
    """A new request starts with the last tokens of the request before."""
    from fast.chunks import ChunkMaker

    last: list[list[int]] = []

    def leaking(original: Any) -> Any:
        def cut(self: Any, before: list[list[int]], fed: list[list[int]]) -> Any:
            fresh = last and not any(before)
            yield from original(self, [list(last[0]) for _ in before] if fresh else before, fed)
            last[:] = [[*before[0], *fed[0]][-2:]]

        return cut

    replace_function(ChunkMaker, "cut", leaking)
    trial.begin = last.clear


def _golden_of_another_file(trial: Trial) -> None:
    """The golden was recorded on a file with other bytes."""
    trial.golden = replace(trial.golden, model={**trial.golden.model, "sha256": "0" * 64})


def _golden_of_other_rows(trial: Trial) -> None:
    """The golden's second chunk of rows was recorded from another table."""
    first, *rest = trial.golden.prompts
    digests = (first.row_digests[0], "0" * 64, *first.row_digests[2:])
    trial.golden = replace(trial.golden, prompts=(replace(first, row_digests=digests), *rest))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "flipped bit",
        "one bit of one row of the table",
        "packed rows",
        ("token 6, head 2", "byte 11 of the row"),
        _flipped_bit,
    ),
    Fault(
        "stale row cache entry",
        "a slot keeps the bytes of the row before",
        "row cache",
        ("through a row cache",),
        _stale_cache_entry,
    ),
    Fault(
        "off-by-one row",
        "reads start one row too far",
        "packed rows",
        ("token 0, head 0",),
        _off_by_one_row,
        mode="direct",
    ),
    Fault("lost EOS reset", "the hash looks through EOS", "row ids", ("prompt 0, position 11",), _lost_eos_reset),
    Fault(
        "history lost at a chunk boundary",
        "a chunk hashes without the tokens before",
        "row ids",
        ("position 64, head 0",),
        _lost_history,
    ),
    Fault(
        "float32-rounded multiplier",
        "hash constants lose their low bits",
        "row ids",
        ("position 0, head 0",),
        _float32_multiplier,
    ),
    Fault(
        "reversed multiplier order",
        "hash constants oldest first",
        "row ids",
        ("position 0, head 0",),
        _reversed_multipliers,
    ),
    Fault(
        "tail block dropped",
        "attention skips the unfinished block",
        "logits",
        ("blk.3.mixer at position",),
        _tail_block_dropped,
    ),
    Fault(
        "tie rule changed",
        "equal blocks: the highest is kept",
        "logits",
        ("blk.3.mixer at position",),
        _tie_rule_changed,
        case="tiny-ties",
    ),
    Fault(
        "silent fallback",
        "`uring` reads by pread and does not say so",
        "mode evidence",
        ("rows came by reads, expected ring",),
        _silent_fallback,
        mode="uring",
    ),
    Fault(
        "wrong codebook value",
        "unpacking is off by one in one of 16 values",
        "f32 rows",
        ("first difference in f32 rows",),
        _wrong_codebook,
    ),
    Fault(
        "sign of the PLE gate lost",
        "the gate takes the agreement's size only",
        "PLE layer",
        ("blk.1.ple at position",),
        _sign_lost,
    ),
    Fault(
        "choice from rounded logits",
        "tokens are chosen from logits rounded to quarters",
        "tokens",
        ("generated token", "the margin is large enough"),
        _rounded_choice,
    ),
    Fault(
        "unsteady mode",
        "every other gather has a wrong bit",
        "control rows",
        ("two gathers of one batch differ",),
        _unsteady_mode,
    ),
    Fault(
        "leaking history",
        "a request starts with the tokens of the one before",
        "control tokens",
        ("request 2 differs from request 1",),
        _leaking_history,
    ),
    Fault(
        "golden of another file",
        "the recorded SHA-256 is another file's",
        "golden file",
        ("stale",),
        _golden_of_another_file,
        case="tiny",
        rows_only=True,
    ),
    Fault(
        "golden of other rows",
        "recorded digests are another table's",
        "row digests",
        ("tokens 64 to 127",),
        _golden_of_other_rows,
        case="tiny",
        rows_only=True,
    ),
)

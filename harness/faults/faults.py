"""The faults: what is planted, where it must be caught, by which check, and which words must be in its story."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.faults import plants
from harness.faults.plants import Trial


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


FAULTS: tuple[Fault, ...] = (
    Fault(
        "flipped bit",
        "one bit of one row of the table",
        "packed rows",
        ("token 6, head 2", "byte 11 of the row"),
        plants.flipped_bit,
    ),
    Fault(
        "stale row cache entry",
        "a slot keeps the bytes of the row before",
        "row cache",
        ("through a row cache",),
        plants.stale_cache_entry,
    ),
    Fault(
        "off-by-one row",
        "reads start one row too far",
        "packed rows",
        ("token 0, head 0",),
        plants.off_by_one_row,
        mode="direct",
    ),
    Fault("lost EOS reset", "the hash looks through EOS", "row ids", ("prompt 0, position 11",), plants.lost_eos_reset),
    Fault(
        "history lost at a chunk boundary",
        "a chunk hashes without the tokens before",
        "row ids",
        ("position 64, head 0",),
        plants.lost_history,
    ),
    Fault(
        "float32-rounded multiplier",
        "hash constants lose their low bits",
        "row ids",
        ("position 0, head 0",),
        plants.float32_multiplier,
    ),
    Fault(
        "reversed multiplier order",
        "hash constants oldest first",
        "row ids",
        ("position 0, head 0",),
        plants.reversed_multipliers,
    ),
    Fault(
        "tail block dropped",
        "attention skips the unfinished block",
        "logits",
        ("blk.3.mixer at position",),
        plants.tail_block_dropped,
    ),
    Fault(
        "tie rule changed",
        "equal blocks: the highest is kept",
        "logits",
        ("blk.3.mixer at position",),
        plants.tie_rule_changed,
        case="tiny-ties",
    ),
    Fault(
        "silent fallback",
        "`uring` reads by pread and does not say so",
        "mode evidence",
        ("rows came by reads, expected ring",),
        plants.silent_fallback,
        mode="uring",
    ),
    Fault(
        "wrong codebook value",
        "unpacking is off by one in one of 16 values",
        "f32 rows",
        ("first difference in f32 rows",),
        plants.wrong_codebook,
    ),
    Fault(
        "sign of the PLE gate lost",
        "the gate takes the agreement's size only",
        "PLE layer",
        ("blk.1.ple at position",),
        plants.sign_lost,
    ),
    Fault(
        "choice from rounded logits",
        "tokens are chosen from logits rounded to quarters",
        "tokens",
        ("generated token", "the margin is large enough"),
        plants.rounded_choice,
    ),
    Fault(
        "unsteady mode",
        "every other gather has a wrong bit",
        "control rows",
        ("two gathers of one batch differ",),
        plants.unsteady_mode,
    ),
    Fault(
        "leaking history",
        "a request starts with the tokens of the one before",
        "control tokens",
        ("request 2 differs from request 1",),
        plants.leaking_history,
    ),
    Fault(
        "golden of another file",
        "the recorded SHA-256 is another file's",
        "golden file",
        ("stale",),
        plants.golden_of_another_file,
        case="tiny",
        rows_only=True,
    ),
    Fault(
        "golden of other rows",
        "recorded digests are another table's",
        "row digests",
        ("tokens 64 to 127",),
        plants.golden_of_other_rows,
        case="tiny",
        rows_only=True,
    ),
    Fault(
        "rows read in vain",
        "the engine reads the rows of a token that is not there",
        "row ids",
        ("the engine asked for", "rows, expected"),
        plants.rows_read_in_vain,
    ),
    Fault(
        "logits wrong between probes",
        "the logits of one position are off by a thousandth, which no golden records",
        "logits",
        ("position 3", "against an outside engine"),
        plants.logits_wrong_between_probes,
    ),
    Fault(
        "uncached mode through the cache",
        "`direct-uncached` opens the file without O_DIRECT",
        "mode evidence",
        ("no uncached descriptor of the table",),
        plants.uncached_through_the_cache,
        mode="direct-uncached",
        rows_only=True,
    ),
    Fault(
        "prefetch of one range",
        "`prefetch` advises one page range of many",
        "mode evidence",
        ("pages were advised before they were touched, expected all",),
        plants.prefetch_of_one_range,
        mode="prefetch",
        rows_only=True,
    ),
    Fault(
        "golden without intermediates",
        "nothing is recorded for PLE layer and logits",
        "golden file",
        ("the golden has no blk.1.ple at position",),
        plants.golden_without_intermediates,
        case="tiny",
        rows_only=True,
    ),
)

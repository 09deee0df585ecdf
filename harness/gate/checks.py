"""The checks of the gate by name, each at the level it judges. Every one of them is proven by `nox -s mutation`.

A check can be taken out by name, for that proof only: the mutation session shows that a planted fault then goes unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.cases.case import LOGITS, PLE, ROWS, TOKENS

MODE, CONTROL, GOLDEN = "mode", "control", "golden"
ORDER = (GOLDEN, MODE, ROWS, PLE, LOGITS, TOKENS)
"""From the cause up: when several levels show a fault, the first one in this order is where to look."""


@dataclass(frozen=True)
class Check:
    """One comparison that the gate makes."""

    name: str
    level: str
    about: str


CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        Check("golden file", GOLDEN, "a registered case has its golden, recorded on this very file (SHA-256)"),
        Check(
            "row digests",
            GOLDEN,
            "the rows that the file holds for prompt and answer have the recorded SHA-256, chunk by chunk",
        ),
        Check(
            "mode evidence",
            MODE,
            "what the kernel saw while rows were read is what this mode does, and not another one's way",
        ),
        Check(
            "row ids", ROWS, "the engine asks for the rows that plain integer arithmetic gives, in order, across chunks"
        ),
        Check(
            "packed rows", ROWS, "bytes through the mode equal positional reads of the file, in large and small batches"
        ),
        Check("f32 rows", ROWS, "unpacked values equal the gguf package's dequantizer, bit for bit"),
        Check(
            "row cache",
            ROWS,
            "bytes through a small row cache in front of the mode equal the file's, on a miss and on a hit",
        ),
        Check("PLE layer", PLE, "what the PLE layer adds is the recorded vector, within the case's bound"),
        Check(
            "logits",
            LOGITS,
            "attention outputs, last streams and logits are the recorded ones, within the case's bound",
        ),
        Check("tokens", TOKENS, "greedy tokens are the recorded ones, or the first mode's where nothing is recorded"),
        Check(
            "variations",
            TOKENS,
            "tokens are the recorded ones however a prompt is fed: split, padded, in a batch, rolled back, restored",
        ),
        Check("control rows", CONTROL, "two gathers of one batch give the same bytes"),
        Check("control tokens", CONTROL, "two requests in one process give the same tokens"),
    )
}


@dataclass(frozen=True)
class Finding:
    """A difference that a check found, in a sentence; `detail` holds its values for machines."""

    check: str
    case: str
    prompt: str
    message: str
    detail: dict[str, object]

    @property
    def level(self) -> str:
        """The level that the check judges."""
        return CHECKS[self.check].level

"""What an engine is to the rest of the harness: a model loaded, and sequences that tokens are fed to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader
from model_file.config import ModelConfig

Float32 = npt.NDArray[np.float32]
Named = dict[str, npt.NDArray[Any]]

ROWS, LOGITS, RECORD, SAVE, ROLLBACK, BATCH = "rows", "logits", "record", "save", "rollback", "batch"
MEMORY = "memory"
ABILITIES = {
    ROWS: "reads the table through a reader of ours, which may be exchanged between two sequences",
    LOGITS: "gives the logits at every position",
    RECORD: "gives named intermediates beside them",
    SAVE: "saves a sequence and restores it into another one",
    ROLLBACK: "goes back to an earlier position",
    BATCH: "runs several sequences together",
    MEMORY: "keeps to a memory that it is given, and says what takes how much of it",
}
"""What an engine may be able to do beyond feeding ids and continuing greedily; `Engine.abilities` names what it can."""


@dataclass(frozen=True)
class Run:
    """A greedy continuation: the token of every step, and its margin (top-1 minus top-2 logit; NaN where not given)."""

    tokens: tuple[int, ...]
    margins: tuple[float, ...]


@dataclass(frozen=True)
class Completion:
    """A server's answer to one request. Units: seconds, by the server's clock.

    prompt_tokens: those it computed; cached_tokens: those it had. top: logprobs of the best ids at every step, where
    they were asked for. written: tokens of an answer that is text alone. drafted, accepted: of speculative decoding.
    """

    tokens: list[int]
    prompt_tokens: int
    prompt_s: float
    decode_s: float
    text: str = ""
    top: list[dict[int, float]] = field(default_factory=list)
    cached_tokens: int = 0
    written: int | None = None
    drafted: int = 0
    accepted: int = 0
    logits: Float32 | None = None

    @property
    def margins(self) -> list[float]:
        """The best logprob minus the second of every step, which is the margin of the logits; none where not given."""
        ranked = [sorted(step.values(), reverse=True) for step in self.top]
        return [step[0] - step[1] if len(step) > 1 else float("nan") for step in ranked]


class EngineSequence(Protocol):
    """One sequence of tokens; two sequences share nothing but weights.

    What an engine is not able to do raises CannotRun.
    """

    @property
    def position(self) -> int:
        """Tokens fed so far."""

    def feed(self, ids: Sequence[int]) -> None:
        """Feed the next tokens."""

    def logits(self, ids: Sequence[int]) -> Float32:
        """Feed the next tokens; logits [t, v] at each of them."""

    def generate(self, count: int) -> Iterator[tuple[int, float]]:
        """The temperature-0 continuation: `count` times the token and its margin. EOS does not stop it."""

    def record(self, ids: Sequence[int]) -> tuple[Float32, Named]:
        """As `logits`, with every named intermediate [t, ...]: `blk.N.mixer`, `.experts`, `.streams` and `.ple`."""

    def save(self) -> Any:
        """Everything of this sequence, for `restore` of any sequence of the engine."""

    def restore(self, saved: Any) -> None:
        """Become what was saved."""

    def truncate(self, position: int) -> None:
        """Forget what was fed after `position`."""


class Engine(Protocol):
    """An engine with a model loaded; close it, or use it as a context manager."""

    name: str
    abilities: frozenset[str]
    config: ModelConfig
    reader: RowReader

    def new_sequence(self) -> EngineSequence:
        """A sequence at its start."""

    def feed_batch(self, work: Sequence[tuple[Any, Sequence[int]]]) -> None:
        """Feed several sequences together, each its own tokens of any number."""

    def greedy_batch(self, sequences: Sequence[Any], count: int) -> list[Run]:
        """The greedy continuations of several sequences, run as one batch; all tokens are fed."""

    def close(self) -> None:
        """Release what the engine holds beside the model."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def run_of(steps: Iterator[tuple[int, float]]) -> Run:
    """All steps of a continuation."""
    pairs = list(steps)
    return Run(tuple(token for token, _ in pairs), tuple(margin for _, margin in pairs))

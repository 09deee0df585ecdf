"""How an arm is asked: a server behind its adapter, or an engine of ours, in the same words."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fast.rows import Table, open_rows, residency
from fast.rows.reader import RowReader
from harness.engines.arms import DEVICE, SERVERS, TRANSFORMERS, Arm
from harness.engines.program import ProgramFacts
from harness.engines.protocol import Completion, EngineSequence, Float32, run_of
from harness.engines.serving import Adapter, Room, checked, connect
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from harness.errors import CannotRun
from harness.gate.arm_evidence import ArmSight, look_at
from model_file.gguf_file import GgufFile

Top = dict[int, float]


class Answering(Protocol):
    """An arm that is ready. process: what /proc is asked about, None where it is not visible. start_s: it took so long.

    started: what this process held before it was an arm, of ours. restartable: it can be ended and started again.
    """

    command: str
    start_s: float
    restartable: bool

    @property
    def process(self) -> int | str | None: ...

    @property
    def started(self) -> ArmSight | None: ...

    def complete(self, ids: Sequence[int], count: int) -> Completion:
        """The greedy continuation with its best logprobs. Raises: CannotRun."""

    def tokenize(self, text: str) -> list[int] | None:
        """The ids that it makes of a text; None where it has no way of its own."""

    def log(self) -> str:
        """The end of what it printed."""


@dataclass
class Subject:
    """What all arms are asked about. top: best logprobs of each step. room: positions that the longest needs."""

    path: Path
    model: GgufFile
    table: Table
    vocab: int
    room: int
    top: int
    limits: dict[str, float]
    tell: Callable[[str], None]
    program_cache: Path | None = None
    facts: dict[str, ProgramFacts] = field(default_factory=dict)

    @contextmanager
    def answering(self, arm: Arm, slots: int = 1) -> Iterator[Answering]:
        """The arm, started. Raises: CannotRun."""
        with ExitStack() as stack:
            if arm.mode in SERVERS:
                room = Room(self.path, self.room, slots, **self.limits, tell=self.tell)
                adapter = connect(arm, room, self.facts.get(arm.name))
                stack.enter_context(adapter.server)
                yield OfServer(adapter, self)
            elif arm.commit or arm.mode == DEVICE:
                raise CannotRun(f"{arm.name}: {arm.ran or arm.mode} answers no prompts here: use it in `plegate bench`")
            else:
                yield OfOurs(arm, self, stack)


class OfServer:
    """A server; every answer is looked at for nonsense."""

    started = None

    def __init__(self, adapter: Adapter, subject: Subject) -> None:
        self.adapter, self.subject = adapter, subject
        server = adapter.server
        self.command = shlex.join(server.command) or server.address
        self.process, self.start_s, self.restartable = server.process_id, server.start_s, bool(server.command)

    def complete(self, ids: Sequence[int], count: int, remember: bool = False, slot: int = -1) -> Completion:
        """One request."""
        done = self.adapter.complete(ids, count, self.subject.top, remember, slot)
        return checked(done, self.adapter.server.name, ids, count, self.subject.vocab, remember)

    def tokenize(self, text: str) -> list[int] | None:
        """By its own `/tokenize`."""
        return self.adapter.tokenize(text)

    def log(self) -> str:
        """The end of what it printed."""
        return self.adapter.server.log()


class OfOurs:
    """Our engine in one mode, or transformers."""

    restartable = False

    def __init__(self, arm: Arm, subject: Subject, stack: ExitStack) -> None:
        self.subject, self.command = subject, arm.label
        self.started, self.start_s = look_at("self", subject.table), 0.0
        settings = engine_settings(subject.room, cache_dir=subject.program_cache, **_engine_settings(arm))
        reader: RowReader | None = None
        if arm.mode != TRANSFORMERS:
            residency.evict(subject.table)
            reader = stack.enter_context(open_rows(subject.table, arm.mode, _row_settings(arm)))
        name = TRANSFORMERS if arm.mode == TRANSFORMERS else "fast"
        self.process: str | None = None if reader is None else "self"
        self.engine = stack.enter_context(load_engine(name, subject.model, reader, settings))  # type: ignore[arg-type]

    def complete(self, ids: Sequence[int], count: int) -> Completion:
        """By the decoder that `run` has; the logprobs are those that it chose by."""
        sequence = self.engine.new_sequence()
        sequence.feed(ids)
        if not hasattr(sequence, "inner"):
            return Completion(list(run_of(sequence.generate(count)).tokens), len(ids), 0.0, 0.0)
        tokens, top = [], []
        steps = sequence.generate(count)
        for _ in range(count):
            top.append(best_of(_last_logits(sequence), self.subject.top))
            tokens.append(next(steps)[0])
        return Completion(tokens, len(ids), 0.0, 0.0, top=top)

    def tokenize(self, _: str) -> list[int] | None:
        """The ids that are sent are ours."""
        return None

    def log(self) -> str:
        """Nothing is printed."""
        return ""


def best_of(logits: Float32, top: int) -> Top:
    """The best logprobs of a step by id, the lowest id first among equals."""
    exact = log_softmax(logits)
    return {int(token): float(exact[token]) for token in np.argsort(-exact, kind="stable")[:top]}


def log_softmax(logits: Any) -> Any:
    """Logprobs in float64. Shapes: [..., v]."""
    exact = np.asarray(logits, np.float64)
    shifted = exact - exact.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _last_logits(sequence: EngineSequence) -> Float32:
    logits: Float32 = sequence.inner.logits  # type: ignore[attr-defined]
    return logits


def _engine_settings(arm: Arm) -> dict[str, Any]:
    return {} if arm.mode == TRANSFORMERS else arm.engine_settings


def _row_settings(arm: Arm) -> Any:
    from fast.rows import RowSettings

    return RowSettings(**arm.row_settings)

"""The same token ids through several engines in turn: what each takes for prefill and decode at a depth.

Engines take turns within every repeat, and every other repeat the other way round, so that a slower minute of the
machine hits all of them; ratios are formed within a repeat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Protocol

from harness.engines.llama_cpp import LlamaServer
from harness.engines.transformers_engine import TransformersEngine
from harness.errors import CannotRun

OURS = "plegate"


@dataclass(frozen=True)
class Measured:
    """One engine, once. Units: seconds. first_token: the greedy answer, so that a wrong engine is not a fast one."""

    prefill_s: float
    decode_s: float
    first_token: int | None


class Contender(Protocol):
    """An engine that can be timed at a depth."""

    name: str

    def measure(self, before: Sequence[int], fed: Sequence[int], count: int) -> Measured:
        """Time feeding `fed` after `before`, which is not timed, and then decoding `count` tokens."""
        ...


@dataclass
class Cell:
    """One depth: the repeats of every engine. ratios: how many times faster ours is than each other one, per repeat."""

    depth: int
    prefill_tokens: int
    decode_tokens: int
    runs: dict[str, list[Measured]] = field(default_factory=dict)

    def speed(self, name: str, kind: str) -> float:
        """Median tokens per second of "prefill" or "decode"."""
        tokens = self.prefill_tokens if kind == "prefill" else self.decode_tokens
        return tokens / median(getattr(run, f"{kind}_s") for run in self.runs[name])

    def ratios(self, name: str, kind: str) -> list[float]:
        """Their seconds over ours, of every repeat: above 1, ours is faster."""
        pairs = zip(self.runs[name], self.runs[OURS], strict=True)
        return [getattr(theirs, f"{kind}_s") / getattr(ours, f"{kind}_s") for theirs, ours in pairs]

    def as_dict(self) -> dict[str, Any]:
        """Everything measured, for JSON."""
        others = [name for name in self.runs if name != OURS]
        kinds = ["prefill", *(["decode"] if self.decode_tokens else [])]
        return {
            "depth": self.depth,
            "prefill_tokens": self.prefill_tokens,
            "decode_tokens": self.decode_tokens,
            "runs": {name: [asdict(run) for run in runs] for name, runs in self.runs.items()},
            "tokens_per_second": {name: {kind: self.speed(name, kind) for kind in kinds} for name in self.runs},
            "ratio": {name: {kind: median(self.ratios(name, kind)) for kind in kinds} for name in others},
        }


def compare(
    contenders: Sequence[Contender],
    depth: int,
    prefill: int,
    decode: int,
    repeats: int,
    prompt: Callable[[int], Sequence[int]],
    say: Callable[[str], None] = lambda _: None,
) -> Cell:
    """Measure every engine `repeats` times at one depth. prompt: the ids of a repeat, depth + prefill of them."""
    cell = Cell(depth, prefill, decode, {contender.name: [] for contender in contenders})
    for repeat in range(repeats):
        ids = prompt(repeat)
        before, fed = ids[:depth], ids[depth : depth + prefill]
        for contender in contenders if repeat % 2 == 0 else contenders[::-1]:
            say(f"depth {depth}: {contender.name}, {repeat + 1} of {repeats}")
            cell.runs[contender.name].append(contender.measure(before, fed, decode))
    return cell


class OursContender:
    """The fast engine of this project, in this process."""

    name = OURS

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._before: list[int] = []
        self._at_depth: Any = None

    def measure(self, before: Sequence[int], fed: Sequence[int], count: int) -> Measured:
        """As `Contender` says; what stands before is computed once and forked."""
        from time import perf_counter

        if self._at_depth is None or self._before != list(before):
            self._at_depth, self._before = self.engine.new_sequence(), list(before)
            if before:
                self._at_depth.feed(before, last_only=True)
        sequence = self._at_depth.fork()
        started = perf_counter()
        sequence.feed(fed, last_only=True)
        prefill_s = perf_counter() - started
        started = perf_counter()
        chosen = sequence.greedy(count) if count else []
        return Measured(prefill_s, perf_counter() - started, chosen[0] if chosen else None)


class LlamaContender:
    """llama.cpp's server, by its own clock."""

    name = "llama.cpp"

    def __init__(self, server: LlamaServer) -> None:
        self.server = server

    def measure(self, before: Sequence[int], fed: Sequence[int], count: int) -> Measured:
        """As `Contender` says. Raises: CannotRun when the server computed other tokens than it was meant to."""
        if before:
            self.server.complete(before, 1, remember=True)
        done = self.server.complete([*before, *fed], max(count, 1), remember=bool(before))
        # It goes back to a checkpoint a few tokens before the end of what it remembers, and computes those again.
        if not len(fed) <= done.prompt_tokens <= len(fed) + 16:
            raise CannotRun(
                f"llama-server computed {done.prompt_tokens} tokens of the prompt, expected the {len(fed)} after depth "
                f"{len(before)}: it remembered more or less than that depth"
            )
        scale = len(fed) / done.prompt_tokens
        return Measured(done.prompt_s * scale, done.decode_s, done.tokens[0] if count else None)


class TransformersContender:
    """transformers, by the clock of its process."""

    name = "transformers"

    def __init__(self, engine: TransformersEngine) -> None:
        self.engine = engine

    def measure(self, before: Sequence[int], fed: Sequence[int], count: int) -> Measured:
        """As `Contender` says, at depth 0 only."""
        if before:
            raise CannotRun("transformers is measured at depth 0 only: its selection loops over every query in Python")
        answer = self.engine.complete(fed, max(count, 1))
        return Measured(answer.prompt_s, answer.decode_s, answer.tokens[0])

"""Which known fault an engine's answers follow: every one is planted in our own run of the same tokens, one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter

import numpy as np

from fast.engine.engine import FastEngine
from fast.rows import Table, locate_table
from harness.diagnose.known import HISTORY, Known, known_faults
from harness.diagnose.planted import Planted, changed, packed_rows
from harness.engines.closing import Closing
from harness.engines.protocol import Float32
from harness.engines.settings import engine_settings
from harness.oracle import HashOracle, PlainReader
from model_file.gguf_file import GgufFile

CHUNK = 64  # one length for all steps, so that little is compiled; the shortest chunk of `known.CHUNKS`
CLOSE = 1e-3  # in logits: float32 engines differ by less (relative 1.5e-5 of logits of about 10)
SAME_ERROR, ROUNDING = 3.0, 1e-6  # faults whose errors are this near each other cannot be told apart
EXPLAINS = 1 / 3  # a fault explains logprobs that it comes this much closer to than our own run does
Report = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Observed:
    """What an engine answered. top: for each token the logprobs it told, by id; None where it tells none."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    top: tuple[dict[int, float], ...] | None = None


@dataclass(frozen=True)
class Fit:
    """How well our run under a fault follows the answers. followed: steps before the first other token, in all prompts;
    agreed: steps with the same token at all. error: the median of the logprobs' largest differences; None without.
    first_other: the position of the first other token; None where all are the same.
    """

    name: str
    followed: int
    agreed: int
    steps: int
    error: float | None
    first_other: int | None

    @property
    def all_ids(self) -> bool:
        """Whether every token is the same, close calls included."""
        return self.agreed == self.steps

    @property
    def key(self) -> tuple[float, ...]:
        """Smaller is better."""
        return -self.followed, -self.agreed, self.error if self.error is not None else 0.0


@dataclass
class Diagnosis:
    """plain: our own run without a fault. fits: every fault that changes anything, the best first.

    named: the fault that explains the answers, or those that cannot be told apart on these prompts; none where none
    does. same: faults that do to these prompts what another one does, by that one's name. left_out: what there was no
    time for.
    """

    plain: Fit
    fits: list[Fit] = field(default_factory=list)
    named: list[str] = field(default_factory=list)
    same: dict[str, list[str]] = field(default_factory=dict)
    left_out: int = 0

    def sentence(self) -> str:
        """The answer in a line."""
        if not self.named:
            best = f"; the nearest: {self.fits[0].name} ({_told(self.fits[0])})" if self.fits else ""
            return f"none of the known faults explains it (our own run: {_told(self.plain)}{best})"
        names = [name for one in self.named for name in (one, *self.same.get(one, []))]
        fit = next(each for each in self.fits if each.name == self.named[0])
        after = next((each for each in self.fits if each.name not in self.named), self.plain)
        told = f"behaves as if {names[0]} ({_told(fit)}; next: {_told(after)})"
        return told + (f"; on these prompts the same as: {'; '.join(names[1:])}" if names[1:] else "")


def _told(fit: Fit) -> str:
    error = "" if fit.error is None else f", logprobs within {fit.error:.2g}"
    return f"{fit.agreed} of {fit.steps} ids{error}"


class Diagnoser(Closing):
    """Plants faults in our own engine on a model; close it, or use it as a context manager."""

    def __init__(self, model: GgufFile, room: int, slack: float = CLOSE) -> None:
        """room: tokens of the longest prompt with its answer. slack: the noise of logits between the two engines."""
        self._table: Table = locate_table(model)
        self._oracle, self._slack = HashOracle(model), slack
        self.eos = self._oracle.eos
        settings = engine_settings(room, chunk=CHUNK, buckets=(CHUNK,))
        self._engine = FastEngine(model, PlainReader(self._table), settings)

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def planted(self, known: Known, prompt: int) -> Planted:
        """A sequence under a fault. A fault with a `change` needs `planted.changed` around its steps."""
        return Planted(self._engine, self._table, self._oracle, known, prompt)

    def diagnose(
        self,
        observed: Sequence[Observed],
        budget_s: float = float("inf"),
        report: Report = lambda *_: None,
        faults: Sequence[Known] | None = None,
    ) -> Diagnosis:
        """Try the faults (None: all that are known) for so many seconds; those that compile programs only where no
        other one explains all ids and every logprob."""
        began = perf_counter()
        right = Known("nothing were wrong")
        found = Diagnosis(self._fit(right, observed))
        faults = known_faults(found.plain.first_other) if faults is None else faults
        effects = {self._effect(right, observed): right.name}
        for done, known in enumerate(faults):
            explained = known.change and any(self._explains_all(fit) for fit in found.fits)
            if explained or perf_counter() - began > budget_s:
                found.left_out = len(faults) - done
                break
            effect = self._effect(known, observed)
            if effect in effects:
                found.same.setdefault(effects[effect], []).append(known.name)
                continue
            report(known.name, done, len(faults))
            effects[effect] = known.name
            with changed(known):
                found.fits.append(self._fit(known, observed))
        found.fits.sort(key=lambda fit: fit.key)
        found.named = self._named(found)
        return found

    def _explains_all(self, fit: Fit) -> bool:
        return fit.all_ids and fit.error is not None and fit.error <= self._slack

    def _effect(self, known: Known, observed: Sequence[Observed]) -> str:
        """Equal for faults that do the same to these tokens."""
        digest = hashlib.sha256()
        for one in observed:
            tokens = [*one.prompt, *one.answer[:-1]]
            digest.update(packed_rows(known, self._table, self._oracle, tokens, len(one.prompt)).tobytes())
            lost = known.at(len(tokens), len(one.prompt)) if known.at is not None and known.lost != HISTORY else set()
            places = sorted(place for place in lost if place < len(tokens))
            digest.update(repr((known.lost if places else "", places, known.change)).encode())
        return digest.hexdigest()

    def _fit(self, known: Known, observed: Sequence[Observed]) -> Fit:
        followed = agreed = 0
        errors: list[float] = []
        first_other = None
        for one in observed:
            steps = len(one.answer)
            sequence = self.planted(known, len(one.prompt))
            logits = sequence.feed([*one.prompt, *one.answer[:-1]], steps)
            same = logits[np.arange(steps), list(one.answer)] >= logits.max(axis=1) - self._slack
            agreed += int(same.sum())
            followed += int(np.argmin(same)) if not same.all() else steps
            if first_other is None and not same.all():
                first_other = len(one.prompt) + int(np.argmin(same))
            if one.top is not None:
                errors += [_error(row, top) for row, top in zip(logits, one.top, strict=True)]
        total = sum(len(one.answer) for one in observed)
        return Fit(known.name, followed, agreed, total, median(errors) if errors else None, first_other)

    def _named(self, found: Diagnosis) -> list[str]:
        """The best fit and its equals, of those that explain every token and the logprobs."""
        whole = [fit for fit in found.fits if fit.all_ids]
        if found.plain.all_ids or not whole:
            return []
        least, plain = whole[0].error, found.plain.error
        if least is None or plain is None:
            return [fit.name for fit in whole]
        if not least <= max(self._slack, EXPLAINS * plain):
            return []
        near = SAME_ERROR * least + ROUNDING
        return [fit.name for fit in whole if fit.error is not None and fit.error <= near]


def _error(logits: Float32, top: dict[int, float]) -> float:
    """The largest difference between our logprobs and those that were told."""
    highest = float(logits.max())
    total = highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
    return max(abs(float(logits[token]) - total - told) for token, told in top.items())

"""The gate above the rows: what the engine asks for, what its layers give, which tokens come out, all twice."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fast.rows import RowReader
from harness.answers.produce import fixture_answers, probes_of
from harness.answers.record import Golden, GoldenPrompt, Probe
from harness.cases.case import LOGITS, PLE, Case
from harness.engines.runner import Run, Runner
from harness.gate import compare
from harness.gate.checks import CHECKS, Finding
from harness.gate.oracle import HashOracle
from harness.gate.verdicts import ModeVerdict

Tell = Callable[[str], None]
OUTSIDE_BOUND = 5e-5
"""Relative error of a position's logits (L2 over the vocabulary) against an outside engine: two float32 engines differ
by up to 1.5e-5 on the fixtures (measured); a wrong rounding mode, gate or tie shows as 1e-3 and more."""


class Traced:
    """A reader that notes every id it is asked for, in order; everything else is the inner reader's."""

    def __init__(self, inner: RowReader) -> None:
        self._inner = inner
        self.batches: list[npt.NDArray[np.uint64]] = []

    def gather(self, ids: Any, out: Any = None) -> Any:
        """The inner reader's rows."""
        self.batches.append(np.array(ids, np.uint64))
        return self._inner.gather(ids, out)

    def take(self) -> npt.NDArray[np.uint64]:
        """All ids since the last time."""
        asked = np.concatenate(self.batches) if self.batches else np.empty(0, np.uint64)
        self.batches = []
        return asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass
class CaseRun:
    """A case as a run of the gate takes it: how many tokens, and the answers that count as right.

    expected: the golden's answers; without a golden, the first mode's. first: whose answers they are.
    """

    case: Case
    generate: int
    golden: Golden | None
    expected: list[Run] | None = None
    first: str = ""

    def __post_init__(self) -> None:
        if self.golden is not None:
            count = self.generate
            self.expected = [Run(p.generated[:count], p.margins[:count]) for p in self.golden.prompts]
            self.first = f"golden of {self.golden.producer['engine']}"


class TokenJudge:
    """Runs cases through one engine, mode after mode."""

    def __init__(self, runner: Runner, oracle: HashOracle, without: Collection[str], tell: Tell) -> None:
        self.runner, self.oracle, self.without, self.tell = runner, oracle, without, tell

    def judge(self, verdict: ModeVerdict, reader: RowReader, run: CaseRun) -> None:
        """Every request twice; ids, intermediates, logits and tokens against what is right."""
        traced = Traced(reader)
        self.runner.reader = traced  # type: ignore[assignment]
        prompts = [prompt.ids for prompt in run.case.prompts]
        self.tell(f"{verdict.name}: {run.case.id}")
        found = self.runner.generate(prompts, run.generate)
        if "row ids" not in self.without:
            self._judge_ids(verdict, traced.take(), run, found)
        for repeat in range(1, run.case.repeats):
            self.tell(f"{verdict.name}: {run.case.id} again, as control")
            self._judge_control(verdict, run, found, self.runner.generate(prompts, run.generate), repeat)
        if run.expected is None:  # the others are compared with it; with itself it would always agree
            run.expected, run.first = found, f"mode {verdict.name}"
        else:
            self._judge_tokens(verdict, run, found)
        if run.golden is not None:
            self._judge_probes(verdict, run)
        self._judge_outside(verdict, run)

    def _add(
        self, verdict: ModeVerdict, check: str, run: CaseRun, prompt: str, story: str, detail: dict[str, object]
    ) -> None:
        """Note a finding, the first of its check for each case."""
        known = any((finding.check, finding.case) == (check, run.case.id) for finding in verdict.findings)
        if check not in self.without and not known:
            verdict.findings.append(Finding(check, run.case.id, prompt, story, detail))

    def _judge_ids(
        self, verdict: ModeVerdict, asked: npt.NDArray[np.uint64], run: CaseRun, found: Sequence[Run]
    ) -> None:
        seen = [[*prompt.ids, *answer.tokens] for prompt, answer in zip(run.case.prompts, found, strict=True)]
        right = [self.oracle.rows(tokens) for tokens in seen]
        order = self.runner.asked([len(prompt.ids) for prompt in run.case.prompts], run.generate)
        heads, at = self.oracle.heads, 0
        for number, start, stop in order:
            expected = right[number][start:stop].reshape(-1)
            part = asked[at : at + expected.size]
            at += expected.size
            if part.size == expected.size and bool((part == expected).all()):
                continue
            place = int(np.argmax(part != expected[: part.size])) if part.size == expected.size else part.size
            position, head = start + place // heads, place % heads
            name = run.case.prompts[number].name
            got = int(part[place]) if place < part.size else None
            story = (
                f"first difference in row ids: case {run.case.id}, prompt {name}, position {position}, head {head}: "
                f"the engine asked for row {got}, expected {int(expected[place])} "
                f"(tokens up to there: {seen[number][max(0, position - 2) : position + 1]})"
            )
            detail: dict[str, object] = {
                "position": position,
                "head": head,
                "found": got,
                "expected": int(expected[place]),
            }
            self._add(verdict, "row ids", run, name, story, detail)
            return
        if at != asked.size:
            story = f"case {run.case.id}: the engine asked for {asked.size} rows, expected {at}"
            self._add(verdict, "row ids", run, "", story, {"found": int(asked.size), "expected": at})

    def _judge_control(
        self, verdict: ModeVerdict, run: CaseRun, found: Sequence[Run], again: Sequence[Run], repeat: int
    ) -> None:
        for prompt, first, second in zip(run.case.prompts, found, again, strict=True):
            difference = compare.first_token_difference(second.tokens, first.tokens, first.margins, prompt.name)
            if difference is not None:
                story = f"request {repeat + 1} differs from request 1: {difference.story()}"
                detail = compare.as_json(difference) or {}
                self._add(verdict, "control tokens", run, prompt.name, story, detail)

    def _judge_tokens(self, verdict: ModeVerdict, run: CaseRun, found: Sequence[Run]) -> None:
        assert run.expected is not None
        for prompt, mine, right in zip(run.case.prompts, found, run.expected, strict=True):
            verdict.tokens_compared += len(mine.tokens)
            difference = compare.first_token_difference(mine.tokens, right.tokens, right.margins, prompt.name)
            if difference is None:
                continue
            story = f"{difference.story()}, compared with the {run.first}"
            if run.golden is not None and difference.margin is not None:
                story += f"; {_margin_verdict(difference.margin, run.golden)}"
            self._add(verdict, "tokens", run, prompt.name, story, compare.as_json(difference) or {})

    def _judge_probes(self, verdict: ModeVerdict, run: CaseRun) -> None:
        """Named intermediates at the recorded positions, in the order in which the model computes them."""
        assert run.golden is not None
        for prompt in run.golden.prompts:
            if not prompt.probes or {"PLE layer", "logits"} <= set(self.without):
                continue
            self._compare_probes(verdict, run, prompt)

    def _compare_probes(self, verdict: ModeVerdict, run: CaseRun, prompt: GoldenPrompt) -> None:
        positions = sorted({probe.position for probe in prompt.probes})
        found: dict[tuple[str, int], Probe] = {}
        for recorded in self.runner.record(prompt.ids):
            named = {**recorded.named, "logits": recorded.logits}
            for probe in probes_of(recorded.start, named, self.runner.config, positions):
                found[probe.name, probe.position] = probe
        for right in prompt.probes:
            check = PLE if right.name.endswith(".ple") else LOGITS
            verdict.ple_compared += check == PLE
            verdict.logits_compared += check == LOGITS
            mine = found.get((right.name, right.position))
            error = float("nan") if mine is None else right.error(mine)
            if error <= run.case.bound:
                continue
            story = (
                f"first value outside the bound: case {run.case.id}, prompt {prompt.name}, position {right.position}, "
                f"{right.name}: error {error:.2g} of its root mean square, bound {run.case.bound:g}"
            )
            detail = {"tensor": right.name, "position": right.position, "error": error, "bound": run.case.bound}
            self._add(verdict, check, run, prompt.name, story, detail)

    def _judge_outside(self, verdict: ModeVerdict, run: CaseRun) -> None:
        """Logits at every position against an outside engine, where its answers lie beside the file."""
        answers = fixture_answers(run.case) if run.golden is not None and "logits" not in self.without else None
        for number, prompt in enumerate(run.case.prompts if answers is not None else ()):
            assert answers is not None
            right = answers[f"logits_{number}"]
            found = np.concatenate([chunk.logits for chunk in self.runner.record(prompt.ids)])
            errors = np.linalg.norm(found - right, axis=1) / np.linalg.norm(right, axis=1)
            if not float(errors.max()) <= OUTSIDE_BOUND:
                position = int(np.argmax(~(errors <= OUTSIDE_BOUND)))
                story = (
                    f"first logits outside the bound: case {run.case.id}, prompt {prompt.name}, position {position}: "
                    f"relative error {errors[position]:.2g} against an outside engine, bound {OUTSIDE_BOUND:g}"
                )
                detail = {"tensor": "logits", "position": position, "error": float(errors[position])}
                self._add(verdict, "logits", run, prompt.name, story, detail)


def _margin_verdict(margin: float, golden: Golden) -> str:
    needed = golden.needed_margin
    if margin < needed:
        return f"that margin is too small: below {needed:g}, ten times the stated numeric error"
    return f"the margin is large enough ({margin / needed:.1f} times what is needed): rounding does not explain it"


assert {"row ids", "control tokens", "tokens", PLE, "logits"} <= CHECKS.keys()

"""The gate above the rows: what the engine asks for, what its layers give, which tokens come out, all twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fast.rows import RowReader
from harness.answers.produce import fixture_answers, probes_of
from harness.answers.record import Golden, Probe
from harness.cases.case import LOGITS, PLE, Case
from harness.engines.protocol import LOGITS as GIVES_LOGITS
from harness.engines.protocol import RECORD, ROWS, Engine, EngineSequence, Named, Run, run_of
from harness.engines.recorded import recorded
from harness.engines.tracing import Ids, Traced, first_wrong_row
from harness.gate import compare
from harness.gate.checks import CHECKS, Finding
from harness.gate.verdicts import ModeVerdict
from harness.oracle import HashOracle

Report = Callable[[str], None]
OUTSIDE_BOUND = 5e-5
"""Relative error of a position's logits (L2 over the vocabulary) against an outside engine: two float32 engines differ
by up to 1.5e-5 on the fixtures (measured); a wrong rounding mode, gate or tie shows as 1e-3 and more."""


@dataclass
class CaseRun:
    """A case as a run of the gate takes it, and the answers that count as right.

    expected: the golden's answers; without a golden, the first mode's. first: whose answers they are.
    """

    case: Case
    golden: Golden | None
    expected: list[Run] | None = None
    first: str = ""

    def __post_init__(self) -> None:
        if self.golden is not None:
            count = self.case.generate
            self.expected = [Run(p.generated[:count], p.margins[:count]) for p in self.golden.prompts]
            self.first = f"golden of {self.golden.producer['engine']}"

    def beside(self) -> CaseRun | None:
        """As it is run in the modes beside the main one."""
        case = self.case.form_beside()
        if case is None:
            return None
        short = self.golden and replace(self.golden, prompts=self.golden.prompts[: len(case.prompts)])
        return self if case is self.case else CaseRun(case, short)


class TokenJudge:
    """Runs cases through one engine, mode after mode."""

    def __init__(self, engine: Engine, oracle: HashOracle, without: Collection[str], report: Report) -> None:
        self.engine, self.oracle, self.without, self.report = engine, oracle, without, report
        self.where = ""  # said before every message: the variation that is run, if one is

    def judge(self, verdict: ModeVerdict, reader: RowReader, run: CaseRun) -> None:
        """Every request twice; ids, intermediates, logits and tokens against what is right."""
        traced = Traced(reader)
        self.engine.reader = traced  # type: ignore[assignment]
        self.report(f"{verdict.name}: {run.case.id}")
        found = []
        for prompt in run.case.prompts:
            sequence = self.engine.new_sequence()
            sequence.feed(prompt.ids)
            found.append(run_of(sequence.generate(run.case.generate)))
            self.judge_ids(verdict, run, traced.take(), [(prompt.name, [*prompt.ids, *found[-1].tokens], sequence)])
        for repeat in range(2, run.case.repeats + 1):
            self.report(f"{verdict.name}: {run.case.id} again, as control")
            self._judge_control(verdict, run, found, repeat)
        if run.expected is None:  # the others are compared with it; with itself it would always agree
            run.expected, run.first = found, f"mode {verdict.name}"
        else:
            self.judge_tokens(verdict, run, found)
        if run.golden is not None and RECORD in self.engine.abilities:
            self._judge_probes(verdict, run)
        self._judge_outside(verdict, run)

    def note(
        self, verdict: ModeVerdict, check: str, run: CaseRun, prompt: str, message: str, detail: dict[str, object]
    ) -> None:
        """Note a finding, the first of its check for each case."""
        known = any((finding.check, finding.case) == (check, run.case.id) for finding in verdict.findings)
        if check not in self.without and not known:
            verdict.findings.append(Finding(check, run.case.id, prompt, self.where + message, detail))

    def judge_ids(
        self,
        verdict: ModeVerdict,
        run: CaseRun,
        calls: Sequence[Ids],
        fed: Sequence[tuple[str, list[int], EngineSequence | None]],
    ) -> None:
        """Were the rows of these tokens asked for, in order, and no others? fed: name, tokens, and the sequence that
        took them, whose position says how many of them were fed (None: all)."""
        if "row ids" in self.without or ROWS not in self.engine.abilities:
            return
        seen = [(name, tokens[: len(tokens) if one is None else one.position]) for name, tokens, one in fed]
        expected = [self.oracle.rows(tokens) for _, tokens in seen]
        wrong = first_wrong_row(calls, expected)
        if wrong is None:
            return
        name, tokens = seen[wrong.sequence]
        asked, needed = sum(call.size for call in calls), sum(rows.size for rows in expected)
        if wrong.expected is None or wrong.found is None:
            message = f"case {run.case.id}, prompt {name}: the engine asked for {asked} rows, expected {needed}"
            self.note(verdict, "row ids", run, name, message, {"found": asked, "expected": needed})
            return
        message = (
            f"first difference in row ids: case {run.case.id}, prompt {name}, position {wrong.position}, head "
            f"{wrong.head}: the engine asked for row {wrong.found}, expected {wrong.expected} "
            f"(tokens up to there: {tokens[max(0, wrong.position - self.oracle.heads) : wrong.position + 1]})"
        )
        places = {"position": wrong.position, "head": wrong.head, "found": wrong.found, "expected": wrong.expected}
        self.note(verdict, "row ids", run, name, message, dict(places))

    def _judge_control(self, verdict: ModeVerdict, run: CaseRun, found: Sequence[Run], repeat: int) -> None:
        for prompt, first in zip(run.case.prompts, found, strict=True):
            sequence = self.engine.new_sequence()
            sequence.feed(prompt.ids)
            again = run_of(sequence.generate(run.case.generate))
            difference = compare.first_token_difference(again.tokens, first.tokens, first.margins, prompt.name)
            if difference is not None:
                message = f"request {repeat} differs from request 1: {difference.message()}"
                self.note(verdict, "control tokens", run, prompt.name, message, compare.as_json(difference) or {})

    def judge_tokens(self, verdict: ModeVerdict, run: CaseRun, found: Sequence[Run], check: str = "tokens") -> None:
        """Are these the right tokens, chosen from logits that are numbers?"""
        assert run.expected is not None
        for prompt, mine, right in zip(run.case.prompts, found, run.expected, strict=False):
            verdict.tokens_compared += len(mine.tokens)
            step = next((step for step, margin in enumerate(mine.margins) if not math.isfinite(margin)), None)
            if step is not None and GIVES_LOGITS in self.engine.abilities:
                message = f"case {run.case.id}, prompt {prompt.name}: the logits of step {step} are no finite numbers"
                self.note(verdict, "logits", run, prompt.name, message, {"step": step})
            difference = compare.first_token_difference(mine.tokens, right.tokens, right.margins, prompt.name)
            if difference is None:
                continue
            message = f"{difference.message()}, compared with the {run.first}"
            if run.golden is not None and difference.margin is not None:
                message += f"; {_margin_verdict(difference.margin, run.golden)}"
            self.note(verdict, check, run, prompt.name, message, compare.as_json(difference) or {})

    def _judge_probes(self, verdict: ModeVerdict, run: CaseRun) -> None:
        """Named intermediates at the recorded positions, in the order in which the model computes them."""
        assert run.golden is not None
        for prompt in run.golden.prompts:
            if prompt.probes and not {PLE, "logits"} <= set(self.without):
                for start, named in recorded(self.engine, prompt.ids):
                    self.judge_recorded(verdict, run, prompt.name, start, named)

    def judge_recorded(self, verdict: ModeVerdict, run: CaseRun, prompt: str, start: int, named: Named) -> None:
        """What was recorded of a prompt from a position on, against the probes that fall into it."""
        assert run.golden is not None
        probes = next(one.probes for one in run.golden.prompts if one.name == prompt)
        positions = sorted({probe.position for probe in probes})
        found = {(p.name, p.position): p for p in probes_of(start, named, self.engine.config, positions)}
        for right in probes:
            if not start <= right.position < start + len(named["logits"]):
                continue
            check = PLE if right.name.endswith(".ple") else LOGITS
            verdict.ple_compared += check == PLE
            verdict.logits_compared += check == LOGITS
            mine: Probe | None = found.get((right.name, right.position))
            error = float("nan") if mine is None else right.error(mine)
            if error <= run.case.bound:
                continue
            message = (
                f"first value outside the bound: case {run.case.id}, prompt {prompt}, position {right.position}, "
                f"{right.name}: error {error:.2g} of its root mean square, bound {run.case.bound:g}"
            )
            detail = {"tensor": right.name, "position": right.position, "error": error, "bound": run.case.bound}
            self.note(verdict, check, run, prompt, message, detail)

    def _judge_outside(self, verdict: ModeVerdict, run: CaseRun) -> None:
        """Logits at every position against an outside engine, where its answers lie beside the file."""
        wanted = run.golden is not None and "logits" not in self.without and GIVES_LOGITS in self.engine.abilities
        answers = fixture_answers(run.case) if wanted else None
        for number, prompt in enumerate(run.case.prompts if answers is not None else ()):
            assert answers is not None
            right = answers[f"logits_{number}"]
            found = self.engine.new_sequence().logits(prompt.ids)
            errors = np.linalg.norm(found - right, axis=1) / np.linalg.norm(right, axis=1)
            if not float(errors.max()) <= OUTSIDE_BOUND:
                position = int(np.argmax(~(errors <= OUTSIDE_BOUND)))
                message = (
                    f"first logits outside the bound: case {run.case.id}, prompt {prompt.name}, position {position}: "
                    f"relative error {errors[position]:.2g} against an outside engine, bound {OUTSIDE_BOUND:g}"
                )
                detail = {"tensor": "logits", "position": position, "error": float(errors[position])}
                self.note(verdict, "logits", run, prompt.name, message, detail)


def _margin_verdict(margin: float, golden: Golden) -> str:
    needed = golden.needed_margin
    if margin < needed:
        return f"that margin is too small: below {needed:g}, ten times the stated numeric error"
    return f"the margin is large enough ({margin / needed:.1f} times what is needed): rounding does not explain it"


assert {"row ids", "control tokens", "tokens", PLE, "logits"} <= CHECKS.keys()

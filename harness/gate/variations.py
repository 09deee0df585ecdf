"""The variations that must not matter, on the cases that ask for them: same rows, same last values, same tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fast.rows import RowReader
from harness.cases.case import TokenPrompt
from harness.engines.protocol import RECORD, Engine, Run, run_of
from harness.engines.tracing import Traced
from harness.engines.variations import VARIATIONS, Bench, Variation
from harness.gate.tokens import CaseRun, TokenJudge
from harness.gate.verdicts import ModeVerdict


class VariationJudge:
    """Runs variations through the engine of a token judge. other: another engine on the same model, by settings."""

    def __init__(self, judge: TokenJudge, reader: RowReader, other: Callable[..., Engine]) -> None:
        self.judge, self.reader, self._made = judge, reader, other
        self._traced = Traced(reader)

    def run(self, verdict: ModeVerdict, runs: Sequence[CaseRun]) -> None:
        """Every variation on every case that is `varied`, and has answers to compare with."""
        for run in runs:
            for variation in VARIATIONS if run.case.varied and run.expected is not None else ():
                kind = "together" if variation.together else "alone"
                if run.case.varied == kind and variation.needs <= self.judge.engine.abilities:
                    self._run(verdict, run, variation)
        self.judge.where = ""

    def _run(self, verdict: ModeVerdict, run: CaseRun, variation: Variation) -> None:
        judge = self.judge
        judge.report(f"{verdict.name}: {run.case.id}, {variation.name}")
        judge.where = f"{variation.name}: "

        def fed(tokens: Sequence[Sequence[int]]) -> None:
            named = [(f"{number} of a batch", list(ids), None) for number, ids in enumerate(tokens)]
            judge.judge_ids(verdict, run, self._traced.take(), named)

        bench = Bench(judge.engine, self.reader, self._other, fed)
        if variation.together is not None:
            self._run_together(verdict, run, variation, bench)
            return
        found = [self._run_alone(verdict, run, variation, bench, prompt) for prompt in run.case.prompts]
        judge.judge_tokens(verdict, run, found, "variations")

    def _run_alone(
        self, verdict: ModeVerdict, run: CaseRun, variation: Variation, bench: Bench, prompt: TokenPrompt
    ) -> Run:
        """All but the last token as the variation has it, the last one recorded, then the answer."""
        judge = self.judge
        judge.engine.reader = self._traced  # type: ignore[assignment]
        assert variation.feed is not None
        sequence = variation.feed(bench, prompt.ids[:-1])
        last = prompt.ids[-1:]
        if RECORD in judge.engine.abilities and run.golden is not None:
            logits, named = sequence.record(last)
            if any(one.name == prompt.name and one.probes for one in run.golden.prompts):
                judge.judge_recorded(verdict, run, prompt.name, len(prompt.ids) - 1, {**named, "logits": logits})
        else:
            sequence.feed(last)
        answer = run_of(sequence.generate(run.case.generate))
        calls = self._traced.take()
        if variation.traced:
            judge.judge_ids(verdict, run, calls, [(prompt.name, [*prompt.ids, *answer.tokens], sequence)])
        return answer

    def _run_together(self, verdict: ModeVerdict, run: CaseRun, variation: Variation, bench: Bench) -> None:
        assert variation.together is not None
        self.judge.engine.reader = self._traced  # type: ignore[assignment]
        found = variation.together(bench, [prompt.ids for prompt in run.case.prompts], run.case.generate)
        self._traced.take()  # of what was fed beside
        self.judge.judge_tokens(verdict, run, found, "variations")

    def _other(self, **changes: Any) -> Engine:
        """The engine with these settings changed, its rows read and noted as the engine's own."""
        engine = self._made(**changes)
        engine.reader = self._traced  # type: ignore[assignment]
        return engine

"""The gate: every mode reads the same rows, byte for byte, and leads to the same tokens, id for id.

Each mode is judged level by level (rows, PLE layer, logits, tokens), always beside its control: the same mode a second
time. What is right comes from outside the code under test: positional reads, plain integers, the `gguf` package's
dequantizer, recorded goldens of the reference and of outside engines. `harness.gate.checks` names every check.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np

from fast.rows import ModeCannotRun, RowReader, RowSettings, Table, locate_table, open_rows
from harness.answers.produce import missing_probe
from harness.answers.record import Golden
from harness.answers.store import how_to_make
from harness.cases.case import LOGITS, PLE, TOKENS, Case, ModeSource
from harness.cases.models import model_digest
from harness.cases.prompts import check_context, check_ids
from harness.engines.runner import Runner, make_runner
from harness.gate.advice import watching_madvise
from harness.gate.checks import Finding
from harness.gate.compare import copy_of_table
from harness.gate.evidence import CountingCalls, Evidence, look
from harness.gate.oracle import HashOracle, PlainReader, row_digests
from harness.gate.rows import expect_rows, judge_rows, judge_unpacking
from harness.gate.story import with_place, without_place
from harness.gate.tokens import CaseRun, TokenJudge
from harness.gate.verdicts import GateResult, MarginLine, ModeVerdict
from model_file.config import ModelConfig, config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from model_file.inventory import inventory_to_load

Tell = Callable[[str], None]
UNSEEN = "the rows were compared, how they were read could not be seen: no /proc"
EVIDENCE_ROWS = 256  # gathered while the kernel is watched: enough that each mode's own way shows
STORY_BYTES = 2 << 30  # a model up to this size is loaded again, by the reference, to find where a difference starts


@dataclass(frozen=True)
class GateOptions:
    """How a run goes. goldens: by case; None where nothing was ever recorded for these prompts (a user's own).

    without: checks taken out, for the proof that each is needed. program_cache: where compiled programs are kept.
    """

    engine: str = "fast"
    goldens: Mapping[str, Golden | None] | None = None
    settings: RowSettings = field(default_factory=RowSettings)
    without: Collection[str] = frozenset()
    program_cache: Path | None = None
    repeat: str = "plegate gate"


def run_gate(
    path: Path, cases: Sequence[Case], modes: Sequence[ModeSource], options: GateOptions, tell: Tell = lambda _: None
) -> GateResult:
    """Judge every mode on a model. Reads the model, writes nothing beside the program cache.

    Raises: InputError for a model, table or prompt that cannot be used.
    """
    started = time.perf_counter()
    with open_gguf(path) as model:
        config = config_from(model)
        inventory_to_load(model, config)  # here, because warnings are not shown while a mode is judged
        for case in cases:
            for prompt in case.prompts:
                check_ids(prompt.ids, config.vocab, prompt.name)
                advice = f"shorten {prompt.name}, or use a smaller --generate"
                check_context(path, config.context, len(prompt.ids) + case.generate, advice)
        gate = _Gate(model, config, path, cases, options, tell)
        gate.check_goldens()
        for source in modes:
            gate.judge(source)
        gate.tell_stories()
        gate.result.wall_s = time.perf_counter() - started
        gate.close()
        return gate.result


class _Gate:
    """One run: what is right, once, then every mode against it."""

    def __init__(
        self,
        model: GgufFile,
        config: ModelConfig,
        path: Path,
        cases: Sequence[Case],
        options: GateOptions,
        tell: Tell,
    ) -> None:
        self.model, self.config, self.path, self.options, self.tell = model, config, path, options, tell
        self.table, self.oracle = locate_table(model), HashOracle(model)
        self.plain = cast(RowReader, PlainReader(self.table))
        goldens = options.goldens
        self.runs = [CaseRun(case, case.generate, _golden_of(case, goldens)) for case in cases]
        self.result = GateResult(
            model=str(path),
            sha256=None,
            engine=options.engine,
            cases=list(cases),
            goldens={run.case.id: run.golden is not None for run in self.runs} if goldens is not None else {},
            modes=[],
            repeat=options.repeat,
        )
        tell("reading what the file holds, row by row")
        self.expected = [
            expect_rows(self.table, self.oracle, run.case, prompt, _answer(run, number))
            for run in self.runs
            for number, prompt in enumerate(run.case.prompts)
        ]
        for expected in self.expected:
            judge_unpacking(self.result.findings, expected, self.table, options.without)
        self._runners: dict[tuple[str, int], Runner] = {}
        self._sources: dict[str, tuple[ModeSource, Table]] = {}

    def check_goldens(self) -> None:
        """Goldens are there, are of this file, and the file's rows are the recorded ones."""
        if self.options.goldens is None:
            return
        self.tell("checking the goldens")
        self.result.sha256 = model_digest(self.path)
        for run in self.runs:
            story = self._golden_problem(run)
            if story is not None:
                self._note("golden file", run.case, "", story)
            elif run.golden is not None:
                self._check_digests(run, run.golden)

    def _golden_problem(self, run: CaseRun) -> str | None:
        if (self.options.goldens or {}).get(run.case.id) is None:
            return f"case {run.case.id} has no golden: {how_to_make(run.case.id)}"
        if run.golden is None:
            return f"case {run.case.id}: the golden's prompts are not the case's: {how_to_make(run.case.id)}"
        if run.golden.model["sha256"] != self.result.sha256:
            return (
                f"case {run.case.id}: the golden is of a file with SHA-256 {run.golden.model['sha256']}, found "
                f"{self.result.sha256}: the model was changed, or the golden is stale; {how_to_make(run.case.id)}"
            )
        missing = missing_probe(run.case, run.golden, self.config)
        if missing is not None:
            prompt, name, position = missing
            return (
                f"case {run.case.id}, prompt {prompt}: the golden has no {name} at position {position}, needed "
                f"to judge {PLE} and {LOGITS}; {how_to_make(run.case.id)}"
            )
        return None

    def _check_digests(self, run: CaseRun, golden: Golden) -> None:
        for prompt in golden.prompts:
            rows = self.oracle.rows([*prompt.ids, *prompt.generated[:-1]])
            found = row_digests(self.table, rows, golden.chunk)
            if found == prompt.row_digests:
                continue
            chunk = next(
                (i for i, pair in enumerate(zip(found, prompt.row_digests, strict=False)) if pair[0] != pair[1]), 0
            )
            story = (
                f"case {run.case.id}, prompt {prompt.name}: the rows of tokens {chunk * golden.chunk} to "
                f"{(chunk + 1) * golden.chunk - 1} have another SHA-256 than recorded: the table's bytes, the hash "
                f"constants or the golden were changed"
            )
            self._note("row digests", run.case, prompt.name, story)
            return

    def _note(self, check: str, case: Case, prompt: str, story: str) -> None:
        if check not in self.options.without:
            self.result.findings.append(Finding(check, case.id, prompt, story, {}))

    def judge(self, source: ModeSource) -> None:
        """All levels of one mode."""
        started = time.perf_counter()
        verdict = ModeVerdict(source.name)
        table = self.table if source.path is None else copy_of_table(source.path, self.table)
        self._sources[source.name] = (source, table)
        try:
            self._judge_opened(verdict, source, table)
        except ModeCannotRun as refused:  # the other modes can be judged all the same
            verdict.not_run = str(refused)
        verdict.wall_s = time.perf_counter() - started
        self.result.modes.append(verdict)

    def _judge_opened(self, verdict: ModeVerdict, source: ModeSource, table: Table) -> None:
        door = CountingCalls(self.options.settings.syscall)
        before = look(table, door)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a fallback is told in the verdict
            with open_rows(table, source.mode, replace(self.options.settings, syscall=door)) as reader:
                self.tell(f"{source.name}: rows")
                opened = look(table, door)
                spread = np.linspace(0, table.rows - 1, EVIDENCE_ROWS).astype(np.uint64)
                with watching_madvise(door.advised):
                    reader.gather(spread)
                after = look(table, door)
                for expected in self.expected:
                    judge_rows(verdict, reader, expected, table, self.options.without)
                self._judge_tokens(verdict, source, reader)
                verdict.effective, verdict.fallback_reason = reader.effective_mode, reader.fallback_reason
                verdict.counters = reader.totals.as_dict()
        if verdict.effective != source.mode:
            verdict.not_run = f"ran as {verdict.effective}: {verdict.fallback_reason}"
        elif not (before and opened and after):
            verdict.unseen = UNSEEN
        else:
            evidence = Evidence.between(source.mode, table, spread.tolist(), before, opened, after)
            self._judge_evidence(verdict, evidence)

    def _judge_evidence(self, verdict: ModeVerdict, evidence: Evidence) -> None:
        verdict.evidence = evidence.as_dict()
        problems = evidence.problems()
        if problems and "mode evidence" not in self.options.without:
            story = f"{verdict.name} does not read as {evidence.mode} does: {'; '.join(problems)}"
            verdict.findings.append(Finding("mode evidence", "", "", story, {"evidence": verdict.evidence}))

    def _judge_tokens(self, verdict: ModeVerdict, source: ModeSource, reader: RowReader) -> None:
        for run in self.runs:
            if not run.generate or not (run.case.runs_in(source.mode) or source.path is not None):
                continue
            runner = self._runner(self.options.engine, run.case, reader)
            TokenJudge(runner, self.oracle, self.options.without, self.tell).judge(verdict, reader, run)
            if run.expected is not None and run.case.id not in {line.case for line in self.result.margins}:
                needed = run.golden.needed_margin if run.golden else None
                self.result.margins += [
                    MarginLine(run.case.id, prompt.name, answer.margins, needed)
                    for prompt, answer in zip(run.case.prompts, run.expected, strict=True)
                ]

    def _runner(self, engine: str, case: Case, reader: RowReader) -> Runner:
        """One engine for all cases of a chunk size: its room is that of the longest of them."""
        key = (engine, case.chunk)
        if key not in self._runners:
            self.tell(f"loading weights for the {engine} engine")
            room = max(run.case.tokens for run in self.runs if run.case.chunk == case.chunk)
            cache = self.options.program_cache
            self._runners[key] = make_runner(engine, self.model, reader, room, case.chunk, cache)
        return self._runners[key]

    def tell_stories(self) -> None:
        """For every mode that differs above the rows: where its values first leave the bound."""
        if self.options.engine == "reference":
            return
        for verdict in self.result.modes:
            finding = next((f for f in verdict.ordered if f.level in (PLE, LOGITS, TOKENS)), None)
            if finding is not None:
                index = verdict.findings.index(finding)
                verdict.findings[index] = self._with_place(finding, verdict.name)

    def _with_place(self, finding: Finding, mode: str) -> Finding:
        if self.model.size_bytes > STORY_BYTES:
            size = f"{self.model.size_bytes / 2**30:.1f} GiB, more than the {STORY_BYTES / 2**30:.0f} GiB"
            return without_place(finding, f"the model has {size} that the reference is loaded for")
        run = next(run for run in self.runs if run.case.id == finding.case)
        number = next(n for n, prompt in enumerate(run.case.prompts) if prompt.name == finding.prompt)
        ids = [*run.case.prompts[number].ids, *_answer(run, number)[:-1]]
        source, table = self._sources[mode]
        self.tell(f"{mode}: looking for the first tensor outside the bound")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with open_rows(table, source.mode, self.options.settings) as reader:
                    mine = self._runner(self.options.engine, run.case, reader)
                    right = self._runner("reference", run.case, self.plain)
                    # An engine made for an earlier mode still has that mode's reader, which is closed.
                    mine.reader, right.reader = reader, self.plain
                    return with_place(finding, mine, right, ids, run.case.bound)
        except InputError as error:
            return without_place(finding, error)

    def close(self) -> None:
        """Release the engines."""
        for runner in self._runners.values():
            runner.close()


def _golden_of(case: Case, goldens: Mapping[str, Golden | None] | None) -> Golden | None:
    """The case's golden; None where it is of other prompts, which `check_goldens` says: it has no answers to these."""
    golden = (goldens or {}).get(case.id)
    same = golden is not None and [prompt.ids for prompt in golden.prompts] == [prompt.ids for prompt in case.prompts]
    return golden if same else None


def _answer(run: CaseRun, number: int) -> tuple[int, ...]:
    return run.golden.prompts[number].generated[: run.generate] if run.golden is not None else ()

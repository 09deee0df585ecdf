"""The gate: every mode reads the same rows, byte for byte, and leads to the same tokens, id for id.

Each mode is judged level by level (rows, PLE layer, logits, tokens), always beside its control: the same mode a second
time. The engine runs as `plegate run` runs it, in the same settings. What is right comes from outside the code under
test: positional reads, plain integers, the `gguf` package's dequantizer, recorded goldens of the reference and of
outside engines. `harness.gate.checks` names every check.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock
from typing import Any, cast

import numpy as np

from fast.rows import ModeCannotRun, RowReader, RowSettings, Table, locate_table, open_rows
from harness.answers.record import Golden
from harness.cases.case import LOGITS, PLE, TOKENS, Case, ModeSource
from harness.cases.prompts import check_context, check_ids
from harness.engines.protocol import RECORD, Engine
from harness.engines.protocol import ROWS as READS_ROWS
from harness.engines.settings import engine_settings
from harness.engines.table import load_engine
from harness.gate.batches import random_rows
from harness.gate.checks import Finding
from harness.gate.far_rows import FarRows, far_rows
from harness.gate.place import with_place, without_place
from harness.gate.recorded_rows import check_goldens
from harness.gate.rows import RANDOM_ROWS, Report, RowJudge, expect_rows
from harness.gate.tokens import CaseRun, TokenJudge
from harness.gate.unpacking import judge_types, judge_unpacking
from harness.gate.variations import VariationJudge
from harness.gate.verdicts import GateResult, MarginLine, ModeVerdict, blame_no_mode
from harness.gate.warm import compile_ahead
from harness.gate.whole_table import compare_whole
from harness.identity import Changed, Identity
from harness.oracle import HashOracle, PlainReader, check_type, copy_of_table
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from model_file.inventory import inventory_to_load

PLACE_BYTES = 2 << 30  # a model up to this size is loaded again, by the reference, to find where a difference starts
MAIN_MODE = "auto"  # which runs every case whole, and the variations; where it is not asked for, the first one does


@dataclass(frozen=True)
class GateOptions:
    """How a run goes. goldens: by case; None where nothing was ever recorded for these prompts (a user's own).

    without: checks taken out, for the proof that each is needed. program_cache: where compiled programs are kept.
    whole: compare every row of the files that modes are given as copies. engine_settings: fields of `EngineSettings`
    that differ from their defaults.
    """

    engine: str = "fast"
    goldens: Mapping[str, Golden | None] | None = None
    settings: RowSettings = field(default_factory=RowSettings)
    without: Collection[str] = frozenset()
    program_cache: Path | None = None
    engine_settings: Mapping[str, Any] = field(default_factory=dict)
    repeat: str = "plegate gate"
    whole: bool = False


Job = tuple[Path, Sequence[Case]]
"""A model, and the cases to run on it."""


def run_gate(
    path: Path,
    cases: Sequence[Case],
    modes: Sequence[ModeSource],
    options: GateOptions,
    report: Report = lambda _: None,
) -> GateResult:
    """Judge every mode on one model; see `run_gates`."""
    return run_gates([(path, cases)], modes, options, report)


def run_gates(
    jobs: Sequence[Job], modes: Sequence[ModeSource], options: GateOptions, report: Report = lambda _: None
) -> GateResult:
    """Judge every mode on these models. Reads them, writes nothing beside the program cache.

    Rows of all modes come first: meanwhile the engines load and compile. Raises: InputError for a model, table or
    prompt that cannot be used.
    """
    started = time.perf_counter()
    result = GateResult(
        model=", ".join(str(path) for path, _ in jobs),
        sha256=None,
        engine=options.engine,
        cases=[case for _, cases in jobs for case in cases],
        goldens={case: golden is not None for case, golden in (options.goldens or {}).items()},
        modes=[ModeVerdict(source.name) for source in modes],
        repeat=options.repeat,
    )
    if memory := options.engine_settings.get("memory_bytes"):
        how = options.engine_settings.get("expert_mode") or "each mode, `auto` beside `resident`"
        result.notes.append(f"experts were read when they were chosen, by {how}, in a memory of {memory >> 20:,} MiB")
    identity = Identity([*(path for path, _ in jobs), *(source.path for source in modes if source.path)])
    try:
        with identity.watched():
            _judge(jobs, modes, options, result, identity, report)
    except Changed as change:
        result.changed = str(change)
        blame_no_mode(result.modes, result.findings)
    result.wall_s = time.perf_counter() - started
    return result


def _judge(
    jobs: Sequence[Job],
    modes: Sequence[ModeSource],
    options: GateOptions,
    result: GateResult,
    identity: Identity,
    report: Report,
) -> None:
    with ExitStack() as stack:
        loading = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="loading"))
        judged = [
            _Model(stack.enter_context(open_gguf(path)), path, cases, options, result, report) for path, cases in jobs
        ]
        for model in judged:
            stack.callback(model.close)
            model.begin(loading)
        stack.callback(loading.shutdown, wait=False, cancel_futures=True)  # first, on the way out
        main = next((source for source in modes if source.mode == MAIN_MODE), modes[0])
        far = _far_rows(stack, result)
        if options.goldens is not None:
            judge_types(result.findings, options.without)
        for model in judged:
            model.judge_rows(modes, far, identity)
        for model in judged:
            for source, verdict in zip(modes, result.modes, strict=True):
                with identity.watched():
                    model.judge_tokens(source, verdict, source is main)
                verdict.judged = model is judged[-1]
        for model in judged:
            model.add_places(modes)


def _far_rows(stack: ExitStack, result: GateResult) -> FarRows | None:
    try:
        return stack.enter_context(far_rows(None))
    except OSError as error:
        result.notes.append(f"rows beyond 2^32 were not tried: no sparse file here: {error.strerror}")
        return None


class _Model:
    """One model of a run: what is right, once, then every mode against it."""

    def __init__(
        self,
        model: GgufFile,
        path: Path,
        cases: Sequence[Case],
        options: GateOptions,
        result: GateResult,
        report: Report,
    ) -> None:
        self.model, self.path, self.options, self.result, self.report = model, path, options, result, report
        self.config = config_from(model)
        inventory_to_load(model, self.config)  # here, because warnings are not shown while a mode is judged
        for case in cases:
            for prompt in case.prompts:
                check_ids(prompt.ids, self.config.vocab, prompt.name)
                advice = f"shorten {prompt.name}, or use a smaller --generate"
                check_context(path, self.config.context, len(prompt.ids) + case.generate, advice)
        self.table, self.oracle = check_type(locate_table(model)), HashOracle(model)
        self.plain = cast(RowReader, PlainReader(self.table))
        self.runs = [CaseRun(case, _golden_of(case, options.goldens)) for case in cases]
        self.room = max((case.tokens for case in cases), default=1)
        self._engine: Future[Engine] | None = None
        self._others: dict[str, Engine] = {}
        self._making = Lock()
        self._right: Engine | None = None
        self._needs_engine = any(run.case.generate for run in self.runs)

    def begin(self, loading: ThreadPoolExecutor) -> None:
        """Load and compile in another thread, one model after the other, while rows are judged in this one."""
        if self._needs_engine:
            self.report(f"loading weights for the {self.options.engine} engine")
            self._engine = loading.submit(self._made, self.options.engine)
            loading.submit(self._compile)

    def _compile(self) -> None:
        assert self._engine is not None
        compile_ahead(self._engine.result(), [run.case for run in self.runs], self._other)

    def _other(self, **changes: Any) -> Engine:
        """The engine with these settings changed, made once."""
        key = repr(sorted(changes.items()))
        with self._making:
            if key not in self._others:
                self._others[key] = self._made(self.options.engine, **changes)
        return self._others[key]

    def _made(self, name: str, **changes: Any) -> Engine:
        chosen = {**self.options.engine_settings, **changes}
        if chosen.get("draft"):  # a head's engine has all experts in memory
            chosen = {name: value for name, value in chosen.items() if name not in ("memory_bytes", "expert_mode")}
        settings = engine_settings(self.room, cache_dir=self.options.program_cache, **chosen)
        return load_engine(name, self.model, self.plain, settings)

    def judge_rows(self, modes: Sequence[ModeSource], far: FarRows | None, identity: Identity) -> None:
        """Goldens against the file, then the rows of every mode."""
        self.report("reading what the file holds, row by row")
        rows = RANDOM_ROWS if self.options.goldens is not None else 0  # of a user's prompts, their own rows alone
        expected = [expect_rows(self.table, random_rows(self.table, rows, 1), "random rows", 0)] if rows else []
        by_prompt = []
        for run in self.runs:
            for number, prompt in enumerate(run.case.prompts):
                ids = self.oracle.rows([*prompt.ids, *_answer(run, number)[:-1]])
                by_prompt.append(expect_rows(self.table, ids.reshape(-1), prompt.name, self.oracle.heads, run.case.id))
        for one in (*expected, *by_prompt):
            judge_unpacking(self.result.findings, one, self.table, self.options.without)
        if self.options.goldens is not None:
            self.report("checking the goldens")
            digest, findings = check_goldens(self.path, self.runs, by_prompt, self.config, self.options.goldens)
            self.result.sha256 = self.result.sha256 or digest
            self.result.findings += [one for one in findings if one.check not in self.options.without]
        judge = RowJudge((*expected, *by_prompt), self.options.settings, self.options.without, self.report, far=far)
        for source, verdict in zip(modes, self.result.modes, strict=True):
            started = time.perf_counter()
            with identity.watched():
                table = self.table if source.path is None else copy_of_table(source.path, self.table)
                judge.judge(verdict, source, table)
                if source.path is not None:
                    self._judge_copy(verdict, source.path, table, np.concatenate([one.ids for one in judge.expected]))
            verdict.wall_s += time.perf_counter() - started

    def _judge_copy(self, verdict: ModeVerdict, path: Path, table: Table, ids: np.ndarray) -> None:
        """What of a copy was looked at, and all of it where that was asked for."""
        if not self.options.whole:
            seen = int(np.unique(ids).size)
            verdict.copy = (
                f"{seen:,} of the {table.rows:,} rows of {path} were compared, {table.rows - seen:,} were not looked "
                "at: --whole compares them all"
            )
            return
        whole = compare_whole(table, self.table, self.report)
        verdict.copy = f"{path}: {whole.message()}"
        if whole.different and "packed rows" not in self.options.without:
            verdict.findings.append(Finding("packed rows", "", "", whole.message(), whole.as_json()))

    def judge_tokens(self, source: ModeSource, verdict: ModeVerdict, main: bool) -> None:
        """Tokens of all cases, whole in the main mode and in a copy of the table; in the main mode the variations."""
        if self._engine is None or not verdict.effective:
            return
        started = time.perf_counter()
        engine = self._engine.result()
        if reads_rows := READS_ROWS in engine.abilities:
            whole = main or source.path is not None
        else:  # it reads the table its own way: once is enough
            whole = main = verdict is self.result.modes[0]
        runs = [run if whole else run.beside() for run in self.runs if run.case.generate and (whole or reads_rows)]
        mine = [run for run in runs if run is not None]
        table = self.table if source.path is None else copy_of_table(source.path, self.table)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a fallback was said when rows were judged
                with open_rows(table, source.mode, replace(self.options.settings, metering="full")) as reader:
                    judge = TokenJudge(engine, self.oracle, self.options.without, self.report)
                    for run in mine:
                        judge.judge(verdict, reader, run)
                    if main:
                        VariationJudge(judge, reader, self._other).run(verdict, mine)
                    verdict.add_counters(reader.totals)
        except ModeCannotRun as refused:
            verdict.not_run = str(refused)
        finally:
            engine.reader = self.plain
        verdict.wall_s += time.perf_counter() - started

    def _keep_margins(self, run: CaseRun) -> None:
        needed = run.golden.needed_margin if run.golden else None
        self.result.margins += [
            MarginLine(run.case.id, prompt.name, answer.margins, needed)
            for prompt, answer in zip(run.case.prompts, run.expected or (), strict=run.expected is not None)
        ]

    def add_places(self, modes: Sequence[ModeSource]) -> None:
        """The margins of the answers and, for every mode that differs above the rows, where it leaves the bound."""
        for run in self.runs:
            self._keep_margins(run)
        mine = {run.case.id for run in self.runs}
        for source, verdict in zip(modes, self.result.modes, strict=True):
            levels = (PLE, LOGITS, TOKENS)
            finding = next((f for f in verdict.ordered if f.level in levels), None)
            if finding is not None and finding.case in mine and self.options.engine != "reference":
                verdict.findings[verdict.findings.index(finding)] = self._with_place(finding, source)

    def _with_place(self, finding: Finding, source: ModeSource) -> Finding:
        if self.model.size_bytes > PLACE_BYTES:
            size = f"{self.model.size_bytes / 2**30:.1f} GiB, more than the {PLACE_BYTES / 2**30:.0f} GiB"
            return without_place(finding, f"the model has {size} that the reference is loaded for")
        assert self._engine is not None
        mine = self._engine.result()
        if RECORD not in mine.abilities:
            return without_place(finding, f"the engine {mine.name} gives no named intermediates")
        run = next(run for run in self.runs if run.case.id == finding.case)
        number = next(n for n, prompt in enumerate(run.case.prompts) if prompt.name == finding.prompt)
        ids = [*run.case.prompts[number].ids, *_answer(run, number)[:-1]]
        table = self.table if source.path is None else copy_of_table(source.path, self.table)
        self.report(f"{source.name}: looking for the first tensor outside the bound")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with open_rows(table, source.mode, replace(self.options.settings, metering="full")) as reader:
                    self._right = self._right or self._made("reference")
                    mine.reader = reader
                    return with_place(finding, mine, self._right, ids, run.case.bound)
        except InputError as error:
            return without_place(finding, error)

    def close(self) -> None:
        """Release the engines."""
        if self._engine is not None and not self._engine.cancelled() and self._engine.exception() is None:
            self._engine.result().close()
        for engine in (*self._others.values(), *([self._right] if self._right else [])):
            engine.close()


def _golden_of(case: Case, goldens: Mapping[str, Golden | None] | None) -> Golden | None:
    """The case's golden; None where it is of other prompts, which `check_goldens` says: it has no answers to these."""
    golden = (goldens or {}).get(case.id)
    same = golden is not None and [prompt.ids for prompt in golden.prompts] == [prompt.ids for prompt in case.prompts]
    return golden if same else None


def _answer(run: CaseRun, number: int) -> tuple[int, ...]:
    return run.golden.prompts[number].generated[: run.case.generate] if run.golden is not None else ()

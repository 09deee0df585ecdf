"""The gate for arms: servers and modes of ours on the same ids, each beside its control, never two servers at once.

For each arm: the same request again in the same server, and after a restart; then its ids against the first arm's, or
a golden's; how its process read the table; its logprobs against the other arm's and our own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from fast.rows import Table, locate_table, residency
from harness.answers.own import margins_of, producer_of, stale
from harness.answers.record import Golden
from harness.cases.case import Case, TokenPrompt
from harness.cases.prompts import check_context, check_ids, decode
from harness.engines.arms import SERVERS, Arm
from harness.engines.program import inspect_program
from harness.engines.protocol import Completion
from harness.errors import CannotRun
from harness.gate.arm_compare import Difference, Followed, apart, compare_text, follow, known, noise_of
from harness.gate.arm_evidence import ArmEvidence, in_memory, look_at
from harness.gate.arm_runs import Answering, OfServer, Subject
from harness.gate.arm_states import STATES, check_states
from harness.gate.arm_verdicts import GOLDEN, ArmsResult, ArmVerdict, kind_of
from harness.gate.our_view import OurView, does_not_fit
from harness.identity import Changed, Identity
from harness.oracle import HashOracle
from model_file.config import config_from
from model_file.errors import InputError
from model_file.gguf_file import GgufFile, open_gguf
from model_file.tensors import TABLE

QUICK_START_S = 60.0  # a server that takes longer to start is not started again for its control
_READING = re.compile(r"-+(lzm|lm|v|lv|.*(lazy|mmap|mlock|load-mode|direct-io|dio|verbos|log-).*)", re.ASCII)
"""Arguments that say how weights and table are read, or what is printed: they may change no id."""
_MODEL = ("-m", "--model")
EXACT_ARGUMENTS = ("-ctk f32", "-ctv f32", "-fa off")
EXACT_BOUND = 1e-3
"""Of a logprob, where weights and caches are float32 and nothing is rounded to 16 bits: llama-server and ours differ by
up to 4.4e-5 on nano and 2.4e-6 on the fixtures (measured)."""


@dataclass(frozen=True)
class ArmOptions:
    """How arms are judged. close_calls: arms that must be equal may have them too. states: checks asked by name.

    texts: of the prompts that were given as text, by name. top: best logprobs asked for. golden: of the prompts.
    """

    close_calls: bool = False
    restart: bool = True
    states: Sequence[str] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    top: int = 10
    goldens: Mapping[str, Golden | None] | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    program_cache: Path | None = None
    repeat: str = "plegate gate"


@dataclass
class _Right:
    """The ids that count as right, by prompt, whose they are, and what is known of their margins and logprobs."""

    name: str
    arm: Arm | None
    answers: dict[str, Completion]
    margins: dict[str, Sequence[float]]


def judge_arms(
    path: Path, cases: Sequence[Case], arms: Sequence[Arm], options: ArmOptions, tell: Callable[[str], None]
) -> ArmsResult:
    """Judge every arm on the prompts of these cases. Raises: InputError for what cannot be used at all."""
    began = time.perf_counter()
    unknown = next((name for name in options.states if name not in STATES), None)
    if unknown is not None:
        raise InputError(f"--state {unknown}: expected one of {', '.join(STATES)}")
    result = ArmsResult(str(path), None, list(cases), {}, [ArmVerdict(arm) for arm in arms], repeat=options.repeat)
    result.goldens = {name: golden is not None for name, golden in (options.goldens or {}).items()}
    try:
        with open_gguf(path) as model, Identity([path]).watched():
            _judge(path, model, cases, options, result, tell)
    except Changed as change:
        result.changed = str(change)
    result.wall_s = time.perf_counter() - began
    return result


def _judge(
    path: Path,
    model: GgufFile,
    cases: Sequence[Case],
    options: ArmOptions,
    result: ArmsResult,
    tell: Callable[[str], None],
) -> None:
    judge = _Judge(path, model, cases, options, result, tell)
    for golden in (options.goldens or {}).values():
        if golden is not None and producer_of(golden) is not None:
            why, note = stale(golden, model)
            result.findings += [why] if why else []
            result.notes += [note] if note else []
    for verdict in result.arms:
        judge.look_at_program(verdict)
    for verdict in result.arms:
        judge.judge(verdict)
    judge.compare_with_ours()
    result.answers = judge.right.answers if judge.right is not None else {}
    by_way: dict[str, list[str]] = {}
    for verdict in result.arms:
        if verdict.evidence is not None:
            by_way.setdefault(verdict.evidence.way, []).append(verdict.arm.name)
    result.alike = [f"{' and '.join(names)} read the table alike: {way}" for way, names in by_way.items() if names[1:]]


class _Judge:
    """One model and its prompts; the first arm that answers gives the right ids where no golden does."""

    def __init__(
        self,
        path: Path,
        model: GgufFile,
        cases: Sequence[Case],
        options: ArmOptions,
        result: ArmsResult,
        tell: Callable[[str], None],
    ) -> None:
        self.model, self.options, self.result, self.tell = model, options, result, tell
        self.config = config_from(model)
        self.prompts: list[tuple[TokenPrompt, int]] = [(p, case.generate) for case in cases for p in case.prompts]
        for prompt, count in self.prompts:
            check_ids(prompt.ids, self.config.vocab, prompt.name)
            check_context(path, self.config.context, len(prompt.ids) + count, f"shorten {prompt.name}")
        room = max(len(prompt.ids) + count for prompt, count in self.prompts) + 8
        self.subject = Subject(
            path, model, locate_table(model), self.config.vocab, room, options.top, dict(options.limits), tell,
            options.program_cache,
        )  # fmt: skip
        oracle = HashOracle(model)
        self.rows = sum(oracle.rows(prompt.ids).size for prompt, _ in self.prompts)
        self.right: _Right | None = _recorded(options.goldens)
        self.followed: dict[str, list[Followed]] = {}

    def look_at_program(self, verdict: ArmVerdict) -> None:
        """What is known of it before anything starts. Raises: InputError for arguments that it does not know."""
        if verdict.arm.words:
            try:
                verdict.facts = self.subject.facts[verdict.arm.name] = inspect_program(verdict.arm)
            except CannotRun as reason:
                verdict.not_run = str(reason)

    def judge(self, verdict: ArmVerdict) -> None:
        """Answers, evidence, control, comparison, states, and the control after a restart."""
        if verdict.not_run:
            return
        began, name = time.perf_counter(), verdict.arm.name
        try:
            self.table = self._table_of(verdict.arm)
            residency.evict(self.table)
            before = in_memory(self.table)
            with self.subject.answering(verdict.arm) as answering:
                verdict.command, verdict.start_s = answering.command, answering.start_s
                try:
                    self._judge(verdict, answering, before)
                finally:
                    verdict.log = answering.log()
            if answering.restartable and self.options.restart:
                self._after_restart(verdict, answering.start_s)
            if self.options.states and isinstance(answering, OfServer):
                self.tell(f"{name}: states")
                check_states(verdict, self.subject, self.options.states, [p for p, _ in self.prompts], self._answers)
        except CannotRun as reason:
            verdict.not_run = str(reason)
        verdict.wall_s = time.perf_counter() - began

    def _table_of(self, arm: Arm) -> Table:
        """The table that an arm reads: that of a model of its own where its arguments name one."""
        named = next((word for before, word in pairwise(arm.words) if before in _MODEL), None)
        if named is None:
            return self.subject.table
        try:
            with open_gguf(Path(named)) as model:
                return locate_table(model)
        except InputError as error:
            raise CannotRun(f"{arm.name}: {error}") from None

    def _judge(self, verdict: ArmVerdict, answering: Answering, before: float | None) -> None:
        self._tokenized(verdict, answering)
        process, table = answering.process, self.table
        ready = look_at(process, table) if process is not None else None
        answers: dict[str, Completion] = {}
        for prompt, count in self.prompts:
            self.tell(f"{verdict.arm.name}: {prompt.name}")
            answers[prompt.name] = answering.complete(prompt.ids, count)
        after = look_at(process, table) if process is not None and ready is not None else None
        if ready is not None and after is not None:
            verdict.evidence = ArmEvidence.between(answering.started, ready, after, before, self.rows)
        else:
            verdict.notes.append("its process is not visible from here: how it reads the table is not known")
        verdict.drafted = sum(done.drafted for done in answers.values())
        verdict.accepted = sum(done.accepted for done in answers.values())
        self._answers = verdict.answers = answers
        for prompt, count in self.prompts:
            again = answering.complete(prompt.ids, count)
            self._control(verdict, prompt, answers[prompt.name], again, "the same request again")
        if verdict.controls:
            return
        if self.right is None:
            margins: dict[str, Sequence[float]] = {name: done.margins for name, done in answers.items()}
            self.right = _Right(verdict.arm.name, verdict.arm, answers, margins)
            self.followed[verdict.arm.name] = [
                Followed(name, len(done.tokens), tops=done.top) for name, done in answers.items()
            ]
            return
        self._compare(verdict, answering, answers, self.right)

    def _tokenized(self, verdict: ArmVerdict, answering: Answering) -> None:
        """Does the server make the same ids of the texts? The ids that are sent are ours in any case."""
        for prompt, _ in self.prompts:
            if (text := self.options.texts.get(prompt.name)) is None:
                continue
            try:
                ids = answering.tokenize(text)
            except CannotRun:
                verdict.notes.append("it has no /tokenize: how it would split the texts is not known")
                return
            if ids is not None and list(prompt.ids) != ids:
                step = next((n for n, (a, b) in enumerate(zip(ids, prompt.ids, strict=False)) if a != b), len(ids))
                verdict.notes.insert(
                    0,
                    f"it makes other ids of the text of {prompt.name}: token {step} is {ids[step : step + 1]}, ours "
                    f"{list(prompt.ids[step : step + 1])}; ours were sent",
                )

    def _control(self, verdict: ArmVerdict, prompt: TokenPrompt, one: Completion, two: Completion, how: str) -> None:
        if one.tokens and two.tokens:
            pairs = zip(one.tokens, two.tokens, strict=True)
            step = next((n for n, (a, b) in enumerate(pairs) if a != b), None)
            if step is not None:
                verdict.controls.append(
                    f"{how} differs: prompt {prompt.name}, step {step}: {two.tokens[step]}, before {one.tokens[step]}"
                )
        elif (found := compare_text(prompt.name, two.text, one.text)) is not None:
            verdict.controls.append(f"{how} differs: prompt {prompt.name}, character {found.step}")

    def _after_restart(self, verdict: ArmVerdict, start_s: float) -> None:
        if start_s > QUICK_START_S:
            verdict.notes.append(f"not started again for its control: starting took {start_s:.0f} s")
            return
        self.tell(f"{verdict.arm.name}: control after a restart")
        with self.subject.answering(verdict.arm) as again:
            for prompt, count in self.prompts:
                done = again.complete(prompt.ids, count)
                self._control(verdict, prompt, self._answers[prompt.name], done, "the same request after a restart")

    def _compare(
        self, verdict: ArmVerdict, answering: Answering, answers: Mapping[str, Completion], right: _Right
    ) -> None:
        verdict.against = right.name
        verdict.strict = why_equal(verdict.arm, right.arm, self.subject.path) if right.arm else None
        mine: list[Followed] = []
        for prompt, _ in self.prompts:
            expected, done = right.answers.get(prompt.name), answers[prompt.name]
            if expected is None:
                verdict.notes.append(f"prompt {prompt.name}: {right.name} has no answer to it")
            elif not (expected.tokens and done.tokens):
                verdict.notes.append(f"prompt {prompt.name}: ids are not told, compared as text")
                verdict.steps += done.written or len(done.tokens)
                texts = (one.text or self._text(one.tokens) for one in (done, expected))
                found = compare_text(prompt.name, *texts)
                verdict.differences += [found] if found else []
            else:
                mine.append(follow(prompt.name, prompt.ids, expected.tokens, done, answering.complete))
        self.followed[verdict.arm.name] = mine
        verdict.noise = noise_of([(one, right.margins.get(one.prompt, ())) for one in mine])
        for one in mine:
            verdict.steps += one.steps
            verdict.differences += one.differences
            if not one.whole:
                verdict.notes.append(f"prompt {one.prompt}: left out after step {one.differences[-1].step}")
        for difference in verdict.differences:
            self._judge_difference(verdict, difference, right)
        tops = [(a, b) for one in mine for a, b in zip(right.answers[one.prompt].top, one.tops, strict=False)]
        verdict.apart = apart(tops)

    def _judge_difference(self, verdict: ArmVerdict, one: Difference, right: _Right) -> None:
        if one.found is None or one.expected is None:
            return
        margins = right.margins.get(one.prompt, ())
        one.margin_expected = known(margins[one.step]) if one.step < len(margins) else None
        one.found_text, one.expected_text = self._text([one.found]), self._text([one.expected])
        may_be_close = verdict.strict is None or self.options.close_calls
        if may_be_close and one.margin is not None and verdict.noise is not None:
            one.close = one.margin < verdict.noise

    def _text(self, ids: Sequence[int]) -> str:
        try:
            return decode(self.model, list(ids))
        except InputError:
            return ""

    def compare_with_ours(self) -> None:
        """Logprobs of every arm against our own along the right ids, and our margins and near ties where ids differ."""
        if self.right is None or not any(self.right.answers[name].tokens for name in self.right.answers):
            return
        answers = self.right.answers
        wanted = [(p.name, p.ids, answers[p.name].tokens) for p, _ in self.prompts if p.name in answers]
        ways = [(verdict, self.followed.get(verdict.arm.name, [])) for verdict in self.result.arms]
        if not any(one.tops for _, followed in ways for one in followed):
            return
        if (why := does_not_fit(self.model, self.subject.table)) is not None:
            self.result.notes.append(f"logprobs were not compared with our own: {why}")
            return
        self.tell("our own logprobs, and its closest calls where ids differ")
        OurView(self.subject).compare(wanted, ways)
        floats = {info.type.name for name, info in self.model.tensors.items() if name != TABLE} == {"F32"}
        for verdict in self.result.arms:
            found, words = verdict.ours, " ".join(verdict.arm.words)
            exact = floats and all(argument in words for argument in EXACT_ARGUMENTS)
            if exact and found is not None and not found.largest <= EXACT_BOUND:
                verdict.findings.append(
                    f"logprobs differ from ours by up to {found.largest:.2g}, bound {EXACT_BOUND:g}: weights and "
                    "caches are float32 on both sides, rounding does not explain it"
                )


def _recorded(goldens: Mapping[str, Golden | None] | None) -> _Right | None:
    answers: dict[str, Completion] = {}
    margins: dict[str, Sequence[float]] = {}
    for golden in (goldens or {}).values():
        for prompt in golden.prompts if golden is not None else ():
            answers[prompt.name] = Completion(list(prompt.generated), len(prompt.ids), 0.0, 0.0)
            margins[prompt.name] = margins_of(prompt)
    producers = [producer_of(golden) for golden in (goldens or {}).values() if golden is not None]
    return _Right(GOLDEN, producers[0] if len(producers) == 1 else None, answers, margins) if answers else None


def why_equal(one: Arm, other: Arm, model: Path) -> str | None:
    """Why two arms must give the same ids, None where rounding may turn one.

    Arms of one kind whose arguments differ only in how weights and table are read do the same arithmetic.
    """
    if kind_of(one) != kind_of(other):
        return None
    if kind_of(one) == "ours":
        precise = [dict(arm.engine_settings).get("precision") for arm in (one, other)]
        return "both are our engine" if precise[0] == precise[1] else None
    if one.mode not in SERVERS or one.address or other.address:
        return None
    mine, others = ((_arithmetic(arm.words[1:], model), arm.environment) for arm in (one, other))
    if mine != others:
        return None
    return "their arguments differ only in how weights and table are read"


def _arithmetic(words: Sequence[str], model: Path) -> list[str]:
    """The arguments without those that say how something is read. A model counts by its size: a copy is equal."""
    kept: list[str] = []
    left_out = False
    for before, word in zip(("", *words), words, strict=False):
        if word.startswith("-") and not word[1:2].isdigit():
            left_out = _READING.fullmatch(word.partition("=")[0]) is not None
        if before in _MODEL:
            model = Path(word)
        elif not left_out and word not in _MODEL:
            kept.append(word)
    return [f"{model.stat().st_size} bytes" if model.is_file() else str(model), *kept]

"""`plegate golden check`: every case against its golden, on its own model, in one mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.answers.store import read_golden
from harness.cases.case import Case, ModeSource
from harness.cases.models import model_path
from harness.cases.registry import case_by_id, cases
from harness.errors import CannotRun
from harness.gate.checks import Finding
from harness.gate.run import GateOptions, run_gate
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, GateResult
from harness.pages.tables import print_line, print_table, text_column
from harness.synth import cache_folder

Tell = Callable[[str], None]


@dataclass(frozen=True)
class ModelCheck:
    """The cases of one model, and what the gate said of them; `missing` says why the model is not here."""

    model: str
    cases: tuple[Case, ...]
    result: GateResult | None
    missing: str | None = None

    @property
    def exit_code(self) -> int:
        """As the gate's; 3 where the model is not here."""
        return 3 if self.result is None else self.result.exit_code


def check_goldens(names: Sequence[str], engine: str, mode: str, cache_dir: Path | None, tell: Tell) -> list[ModelCheck]:
    """Run the named cases, all where none is named, model by model. Raises: InputError for an unknown case or mode."""
    from fast.rows import canonical_mode

    chosen = [case_by_id(name) for name in names] or list(cases().values())
    source = ModeSource(canonical_mode(mode))
    results = []
    for model in dict.fromkeys(case.model for case in chosen):
        mine = tuple(_in_any_mode(case) for case in chosen if case.model == model)
        try:
            path = model_path(model, cache_dir, tell)
        except CannotRun as reason:
            results.append(ModelCheck(model, mine, None, str(reason)))
            continue
        options = GateOptions(
            engine=engine,
            goldens={case.id: read_golden(case.id) for case in mine},
            program_cache=cache_folder(cache_dir) / "programs",
            repeat=f"plegate golden check --engine {engine} --mode {source.mode}",
        )
        results.append(ModelCheck(model, mine, run_gate(path, mine, [source], options, tell)))
    return results


def _in_any_mode(case: Case) -> Case:
    """The case with its tokens run in whatever mode was asked for."""
    return replace(case, modes=None)


def print_checks(results: Sequence[ModelCheck]) -> None:
    """A line for each case, the story of every difference, and the verdict."""
    rows = [(case.id, case.model, _verdict(check, case)) for check in results for case in check.cases]
    print_table([text_column("case"), text_column("model", 0), text_column("verdict")], rows, title="goldens")
    for check in results:
        if check.missing:
            print_line(f"{check.model}: {check.missing}")
        for finding in _findings(check):
            print_line(f"{finding.level}: {finding.story}")
        for mode in check.result.modes if check.result else ():
            for note in mode.notes:
                print_line(f"{check.model}: {mode.name}: {note}")
    equal = sum(verdict == EQUAL for *_, verdict in rows)
    print_line(f"verdict: {equal} of {len(rows)} cases answer as recorded.")


def _findings(check: ModelCheck) -> list[Finding]:
    if check.result is None:
        return []
    return [*check.result.findings, *(finding for mode in check.result.modes for finding in mode.findings)]


def _verdict(check: ModelCheck, case: Case) -> str:
    if check.result is None:
        return NOT_RUN
    found = [finding for finding in _findings(check) if finding.case in (case.id, "")]
    if found:
        return DIFFERENT
    return NOT_RUN if any(mode.not_run for mode in check.result.modes) else EQUAL

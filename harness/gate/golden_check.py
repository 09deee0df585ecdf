"""`plegate golden check`: every case against its golden, on its own model, in one mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.answers.store import read_golden
from harness.cases.case import Case, ModeSource
from harness.cases.models import model_path
from harness.cases.registry import case_by_id, cases
from harness.errors import CannotRun
from harness.gate.checks import Finding
from harness.gate.rows import Report
from harness.gate.run import GateOptions, Job, run_gates
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, GateResult
from harness.synth import cache_folder


@dataclass(frozen=True)
class GoldenCheck:
    """Cases, what the gate said of those whose model is here, and why the other models are not."""

    cases: list[Case]
    result: GateResult | None
    missing: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """As the gate's; 3 where a model is not here and nothing else is wrong."""
        found = 0 if self.result is None else self.result.exit_code
        return found or (3 if self.missing else 0)

    @property
    def findings(self) -> list[Finding]:
        """All of them."""
        modes = self.result.modes if self.result is not None else []
        return [
            *(self.result.findings if self.result is not None else ()),
            *(f for mode in modes for f in mode.findings),
        ]

    def verdict(self, case: Case) -> str:
        """equal, different, or not run."""
        if case.model in self.missing or self.result is None or self.result.changed:
            return NOT_RUN
        if any(finding.case in (case.id, "") for finding in self.findings):
            return DIFFERENT
        return NOT_RUN if any(mode.not_run for mode in self.result.modes) else EQUAL


def check_goldens(names: Sequence[str], engine: str, mode: str, cache_dir: Path | None, report: Report) -> GoldenCheck:
    """Run the named cases, all where none is named. Raises: InputError for an unknown case or mode."""
    from fast.rows import canonical_mode

    chosen = [case_by_id(name) for name in names] or [*cases().values()]
    source, jobs, missing = ModeSource(canonical_mode(mode)), list[Job](), dict[str, str]()
    for model in dict.fromkeys(case.model for case in chosen):
        try:
            jobs.append((model_path(model, cache_dir, report), [case for case in chosen if case.model == model]))
        except CannotRun as reason:
            missing[model] = str(reason)
    options = GateOptions(
        engine=engine,
        goldens={case.id: read_golden(case.id) for _, mine in jobs for case in mine},
        program_cache=cache_folder(cache_dir) / "programs",
        repeat=f"plegate golden check --engine {engine} --mode {source.mode}",
    )
    return GoldenCheck(chosen, run_gates(jobs, [source], options, report) if jobs else None, missing)

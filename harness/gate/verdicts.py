"""What a run of the gate found: one verdict for each mode, with its control, and one for the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fast.rows import GatherCounters
from harness.cases.case import LOGITS, PLE, ROWS, TOKENS, Case
from harness.gate.checks import CONTROL, GOLDEN, ORDER, Finding

EQUAL, DIFFERENT, UNSTEADY, NOT_RUN, CHANGED = "equal", "different", "unsteady", "not run", "changed"


@dataclass
class ModeVerdict:
    """What the gate found of one mode.

    effective: the mode that really ran, empty where none did. evidence: what the kernel saw of it; unseen: why that
    could not be asked. timed: counters of the first batch, `cold` where it was, and `warm`; not_cold: why it was not.
    copy: what of another file was compared. judged: to its end; changed: a file was another one before that.
    """

    name: str
    effective: str = ""
    fallback_reason: str | None = None
    rows_compared: int = 0
    tokens_compared: int = 0
    ple_compared: int = 0
    logits_compared: int = 0
    findings: list[Finding] = field(default_factory=list)
    not_run: str | None = None
    counters: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] | None = None
    wall_s: float = 0.0
    unseen: str | None = None
    timed: dict[str, dict[str, Any]] = field(default_factory=dict)
    not_cold: str | None = None
    cold_required: bool = False
    copy: str | None = None
    judged: bool = False
    changed: bool = False
    totals: GatherCounters = field(default_factory=GatherCounters.none_yet, repr=False)

    def add_counters(self, counters: GatherCounters) -> None:
        """Add what a reader counted of itself."""
        self.totals.add(counters)
        self.counters = self.totals.as_dict()

    @property
    def controls(self) -> list[Finding]:
        """Findings of the A/A runs: the mode against itself."""
        return [finding for finding in self.findings if finding.level == CONTROL]

    @property
    def control(self) -> str:
        """What the A/A runs say: `steady`, `failed`, or `-` where nothing was run twice."""
        return "failed" if self.controls else "steady" if self.rows_compared else "-"

    @property
    def verdict(self) -> str:
        """equal, different, unsteady (its control failed, nothing else is judged), not run (another did, or none).

        changed: nothing is said of the mode, because the file was another one before it was judged.
        """
        if self.changed:
            return CHANGED
        if self.controls:
            return UNSTEADY
        if self.findings:
            return DIFFERENT
        return NOT_RUN if self.not_run else EQUAL

    @property
    def ordered(self) -> list[Finding]:
        """Findings, controls first, then from the mode and its rows up to its tokens: the cause before what follows."""
        order = [CONTROL, *ORDER]
        return sorted(self.findings, key=lambda finding: order.index(finding.level))

    @property
    def first_level(self) -> str | None:
        """The lowest level that shows a difference."""
        found = {finding.level for finding in self.findings}
        return next((level for level in ORDER if level in found), None)

    @property
    def notes(self) -> list[str]:
        """What is to be known of the verdict, whatever it is."""
        without = None if self.not_run else self.fallback_reason  # what a mode that ran had to do without
        return [note for note in (self.not_run, without, self.unseen, self.copy) if note]

    def compared(self, level: str) -> int:
        """How much was compared at that level: rows, recorded intermediates of the PLE layer and above it, tokens."""
        return {
            ROWS: self.rows_compared,
            PLE: self.ple_compared,
            LOGITS: self.logits_compared,
            TOKENS: self.tokens_compared,
        }[level]

    def found_at(self, level: str) -> bool:
        """Whether something differs at that level."""
        return any(finding.level == level for finding in self.findings)


@dataclass(frozen=True)
class MarginLine:
    """The margins of one prompt's answer: what the plots and the report's tables show."""

    case: str
    prompt: str
    margins: tuple[float, ...]
    needed: float | None


@dataclass
class GateResult:
    """All verdicts of a run, and what was run. `findings` are about goldens and the file, whatever the mode.

    changed: which file was another one before all was judged; None: none was.
    """

    model: str
    sha256: str | None
    engine: str
    cases: list[Case]
    goldens: dict[str, bool]
    modes: list[ModeVerdict]
    findings: list[Finding] = field(default_factory=list)
    margins: list[MarginLine] = field(default_factory=list)
    repeat: str = "plegate gate"
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    changed: str | None = None

    @property
    def exit_code(self) -> int:
        """0 all equal, 1 a difference or an unsteady mode, 3 a mode that was asked for did not run, or a change."""
        if self.changed:
            return 3
        verdicts = {mode.verdict for mode in self.modes}
        if self.findings or verdicts & {DIFFERENT, UNSTEADY}:
            return 1
        return 3 if NOT_RUN in verdicts else 0

    @property
    def golden_findings(self) -> list[Finding]:
        """Findings about the recorded answers themselves."""
        return [finding for finding in self.findings if finding.level == GOLDEN]


def blame_no_mode(modes: Sequence[ModeVerdict], findings: list[Finding]) -> None:
    """After a change of a file: forget what was found of it, and of modes that were not judged before."""
    findings.clear()
    for mode in modes:
        if not mode.judged:
            mode.changed = True
            mode.findings.clear()

"""What judging arms found: a verdict for each with what it stands on, and one for the run."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from harness.cases.case import Case
from harness.engines.arms import Arm
from harness.engines.program import ProgramFacts
from harness.engines.protocol import Completion
from harness.gate.arm_compare import MOST_CLOSE, Apart, Difference
from harness.gate.arm_evidence import ArmEvidence
from harness.gate.verdicts import DIFFERENT, EQUAL, NOT_RUN, UNSTEADY

UNDECIDED = "undecided"
GOLDEN = "golden"


@dataclass
class ArmVerdict:
    """One arm. against: whose ids were right for it, empty where it gave them itself. steps: compared with these.

    strict: why it must be equal whatever its margins. noise: of the pair's margins. states: by check, "equal" or what
    differs. apart, ours: how far its logprobs are from the other arm's and from our own. answers: its own, by prompt.
    diagnosis: which known fault they follow, where that was looked for.
    """

    arm: Arm
    command: str = ""
    facts: ProgramFacts | None = None
    against: str = ""
    steps: int = 0
    differences: list[Difference] = field(default_factory=list)
    strict: str | None = None
    noise: float | None = None
    controls: list[str] = field(default_factory=list)
    not_run: str | None = None
    evidence: ArmEvidence | None = None
    apart: Apart | None = None
    ours: Apart | None = None
    states: dict[str, str] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    start_s: float = 0.0
    wall_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    log: str = ""
    answers: dict[str, Completion] = field(default_factory=dict)
    diagnosis: str | None = None

    @property
    def clear(self) -> list[Difference]:
        """Differences that no noise explains."""
        return [one for one in self.differences if not one.close]

    @property
    def close_calls(self) -> list[Difference]:
        """Differences whose margins are below the noise of the pair."""
        return [one for one in self.differences if one.close]

    @property
    def wrong_states(self) -> dict[str, str]:
        """State checks that found a difference."""
        return {name: found for name, found in self.states.items() if found.startswith(DIFFERENT)}

    @property
    def verdict(self) -> str:
        """not run, unsteady (its control failed), different, undecided (too many close calls) or equal."""
        if self.controls:
            return UNSTEADY
        if self.clear or self.wrong_states or self.findings:
            return DIFFERENT
        if self.not_run:
            return NOT_RUN
        return UNDECIDED if len(self.close_calls) > MOST_CLOSE * max(self.steps, 1) else EQUAL

    @property
    def agreement(self) -> float | None:
        """Share of the compared steps with the right id."""
        return 1 - len(self.differences) / self.steps if self.steps else None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        first = next(iter(self.clear or self.close_calls), None)
        facts = self.facts
        return {
            "name": self.arm.name,
            "kind": kind_of(self.arm),
            "command": self.command or self.arm.label,
            "sha256": facts.sha256 if facts else None,
            "libraries_sha256": facts.libraries if facts else None,
            "version": facts.version if facts else None,
            "environment": dict(self.arm.environment),
            "verdict": self.verdict,
            "against": self.against,
            "strict": self.strict,
            "tokens_compared": self.steps,
            "agreement": self.agreement,
            "noise": self.noise,
            "close_calls": [one.as_dict() for one in self.close_calls],
            "first_difference": first.as_dict() if first else None,
            "differences": [one.as_dict() for one in self.clear],
            "findings": self.findings,
            "control": self.controls,
            "not_run": self.not_run,
            "evidence": self.evidence.as_dict() if self.evidence else None,
            "logprobs": {"arm": self.apart and asdict(self.apart), "ours": self.ours and asdict(self.ours)},
            "states": self.states,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "start_s": round(self.start_s, 3),
            "wall_s": round(self.wall_s, 3),
            "notes": self.notes,
            "diagnosis": self.diagnosis,
            "log": self.log,
        }


def kind_of(arm: Arm) -> str:
    """`llama-server`, `openai`, `transformers`, or `ours`."""
    from harness.engines.arms import OUTSIDE

    return arm.mode if arm.mode in OUTSIDE else "ours"


@dataclass
class ArmsResult:
    """All verdicts of a run. findings: about the golden, whatever the arm. alike: arms that read the same way.

    answers: those that counted as right, by prompt. changed: which file was written to meanwhile.
    """

    model: str
    sha256: str | None
    cases: list[Case]
    goldens: dict[str, bool]
    arms: list[ArmVerdict]
    findings: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    answers: dict[str, Completion] = field(default_factory=dict)
    changed: str | None = None
    repeat: str = "plegate gate"
    wall_s: float = 0.0

    @property
    def exit_code(self) -> int:
        """0 all equal, 1 a difference or an unsteady arm, 3 an arm did not run, nothing decided, or a file changed."""
        if self.changed:
            return 3
        verdicts = {arm.verdict for arm in self.arms}
        if self.findings or verdicts & {DIFFERENT, UNSTEADY}:
            return 1
        return 3 if verdicts & {NOT_RUN, UNDECIDED} else 0

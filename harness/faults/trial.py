"""One fault in a process of its own: planted, judged by the gate, and judged again without the check that caught it."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from harness.answers.store import how_to_make, read_golden
from harness.cases.case import parse_modes
from harness.cases.models import model_path
from harness.cases.registry import case_by_id
from harness.faults.faults import FAULTS, Fault
from harness.faults.plants import Trial
from harness.gate.checks import CHECKS, CONTROL, ORDER, Finding
from harness.gate.run import GateOptions, run_gate
from harness.gate.verdicts import GateResult
from harness.synth import cache_folder
from model_file.errors import InputError


@dataclass(frozen=True)
class Caught:
    """What the gate said first of a fault; check and level None: nothing, it slipped through."""

    check: str | None
    level: str | None
    story: str
    wall_s: float


@dataclass(frozen=True)
class TrialResult:
    """With all checks, and with the fault's own check taken out."""

    whole: Caught
    without: Caught


def first_caught(result: GateResult, wall_s: float) -> Caught:
    """The finding to look at first: a control's, else the lowest level's, in the order of the checks."""
    order, names = [CONTROL, *ORDER], list(CHECKS)
    found: list[Finding] = [*result.findings, *(finding for mode in result.modes for finding in mode.findings)]
    if not found:
        return Caught(None, None, "", wall_s)
    first = min(found, key=lambda finding: (order.index(finding.level), names.index(finding.check)))
    return Caught(first.check, first.level, first.story, wall_s)


def run_trial(fault: Fault | None, without: frozenset[str] = frozenset()) -> TrialResult:
    """Plant a fault (None: none) in this process and run the gate; `without` is taken out in both runs."""
    golden = read_golden(fault.case if fault else "tiny-quant")
    if golden is None:
        raise InputError(f"the mutation session needs a golden: {how_to_make(fault.case if fault else 'tiny-quant')}")
    with tempfile.TemporaryDirectory(prefix="plegate-mutation-") as scratch:
        modes = sorted({fault.mode for fault in FAULTS}) if fault is None else [fault.mode]
        trial = Trial(golden.case, modes, golden, Path(scratch), fault is not None and fault.rows_only)
        if fault is not None:
            fault.plant(trial)
        whole = _judge(trial, without)
        return TrialResult(whole, _judge(trial, without | {fault.check}) if fault is not None else whole)


def _judge(trial: Trial, without: frozenset[str]) -> Caught:
    started = time.perf_counter()
    trial.begin()
    case = replace(case_by_id(trial.case), modes=None)
    case = replace(case, generate=0) if trial.rows_only else case
    options = GateOptions(
        goldens={trial.case: trial.golden}, without=without, program_cache=cache_folder() / "programs"
    )
    result = run_gate(model_path(trial.case), [case], parse_modes(trial.modes), options)
    return first_caught(result, time.perf_counter() - started)


def main(arguments: list[str]) -> None:
    """`python -m harness.faults.trial NAME [CHECK]...`: the result as JSON, the last line of standard output."""
    name, *without = arguments
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    print(json.dumps(asdict(run_trial(fault, frozenset(without)))))


if __name__ == "__main__":
    main(sys.argv[1:])

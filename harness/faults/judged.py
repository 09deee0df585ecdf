"""What the gate says of planted code: the one place here that knows how a gate is run. For use in a child process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from harness.answers.record import Golden
from harness.answers.store import how_to_make, read_golden
from harness.cases.case import Case, parse_modes
from harness.cases.models import model_path
from harness.cases.registry import case_by_id
from harness.faults.child import Send
from harness.faults.fault import Trial, faults
from harness.gate.checks import CHECKS, CONTROL, ORDER, Finding
from harness.gate.choice import choose
from harness.gate.run import GateOptions, Job, run_gate, run_gates
from harness.gate.verdicts import GateResult
from harness.synth import cache_folder
from model_file.errors import InputError

Said = tuple[str | None, str, float]
"""The check that found something first, or None; its message; seconds."""


@dataclass(frozen=True)
class Step:
    """A part of `plegate gate --quick`. cases: None for all. modes: none named means every one."""

    name: str
    cases: tuple[str, ...] | None = None
    modes: tuple[str, ...] = ()
    rows_only: bool = False

    def of(self, cases: Sequence[Case]) -> list[Case]:
        """Its part of these cases."""
        mine = [case for case in cases if self.cases is None or case.id in self.cases]
        return [replace(case, generate=0) for case in mine] if self.rows_only else mine


STEPS = {
    step.name: step
    for step in (
        Step("rows", rows_only=True),
        Step("first tokens", ("pico-eos",), ("auto",)),
        Step("all tokens", None, ("auto",)),
    )
}
"""Cheapest first. Equal rows give equal tokens: rows are read in every mode, and tokens run in one."""


def say_steps(send: Send, names: Sequence[str]) -> None:
    """Send (step, check, message, seconds) of each step, up to the first finding."""
    for name in names:
        step = STEPS[name]
        started = time.perf_counter()
        _end_at_first_finding(lambda check, message: send((name, check, message, 0.0)))  # noqa: B023
        jobs, options = _default(quick=True)
        jobs = [(path, step.of(cases)) for path, cases in jobs]
        result = run_gates([job for job in jobs if job[1]], parse_modes(step.modes), options)
        refused = next((mode for mode in result.modes if mode.not_run), None)
        if refused is not None:
            send((name, "not run", f"{refused.name}: {refused.not_run}", 0.0))
            return
        send((name, None, "", time.perf_counter() - started))


def say_trial(send: Send, name: str, without: Collection[str], quick: bool = False) -> None:
    """Plant a fault ("" for none) and send what the gate says, with all checks and without the fault's own.

    Where a fault has no case of its own: what `plegate gate`, or its short form, says first.
    """
    known = faults()
    fault = known.get(name)
    golden = _golden(fault.case if fault and fault.case else "tiny-quant")
    modes = sorted({one.mode for one in known.values()}) if fault is None else [fault.mode]
    trial = Trial(golden.case, modes, golden, Path(os.environ["TMPDIR"]), fault is not None and fault.rows_only)
    if fault is not None:
        fault.plant(trial)
    if fault is not None and fault.case is None:
        started = time.perf_counter()
        _end_at_first_finding(lambda check, message: send((check, message, time.perf_counter() - started)))
        send(_say_default(fault.mode, quick, without))
        return
    send(_say_case(trial, without))
    if fault is not None:
        send(_say_case(trial, {*without, fault.check}))


def _say_case(trial: Trial, without: Collection[str]) -> Said:
    started = time.perf_counter()
    trial.begin()
    case = case_by_id(trial.case)
    case = replace(case, generate=0) if trial.rows_only else case
    return _first(_run([case], {case.id: trial.golden}, trial.modes, without), started)


def _say_default(mode: str, quick: bool, without: Collection[str]) -> Said:
    """What `plegate gate`, or its short form, says of one mode."""
    started = time.perf_counter()
    jobs, options = _default(quick, without)
    return _first(run_gates(jobs, parse_modes([mode]), options), started)


def _default(quick: bool, without: Collection[str] = ()) -> tuple[list[Job], GateOptions]:
    """What `plegate gate` runs where nothing is given."""
    return choose(None, [], ([], [], []), None, quick, None, False, GateOptions(without=without), lambda _: None)


def _run(
    cases: Sequence[Case], goldens: dict[str, Golden], modes: Sequence[str], without: Collection[str] = ()
) -> GateResult:
    options = GateOptions(goldens=goldens, without=without, program_cache=cache_folder() / "programs")
    return run_gate(model_path(cases[0].model), cases, parse_modes(modes), options)


def _first(result: GateResult, started: float) -> Said:
    """The finding to look at first: a control's, else the lowest level's, in the order of the checks."""
    order, names = [CONTROL, *ORDER], list(CHECKS)
    found: list[Finding] = [*result.findings, *(finding for mode in result.modes for finding in mode.findings)]
    wall_s = time.perf_counter() - started
    if not found:
        return None, "", wall_s
    first = min(found, key=lambda finding: (order.index(finding.level), names.index(finding.check)))
    return first.check, first.message, wall_s


def _golden(case: str) -> Golden:
    golden = read_golden(case)
    if golden is None:
        raise InputError(f"the mutation session needs a golden: {how_to_make(case)}")
    return golden


def _end_at_first_finding(send: Any) -> None:
    """From now on the first finding is sent, and the process ends with it."""
    make: Any = Finding.__init__

    def last(self: Finding, *values: Any, **named: Any) -> NoReturn:
        make(self, *values, **named)
        send(self.check, self.message)
        os._exit(0)

    Finding.__init__ = last  # type: ignore[method-assign]
